//! Extents as `qemu-img map` prints them, and the spacing of its JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

use qcowfuzz::extent::{Extent, Mapping};

/// One record of `qemu-img map --output=json`: its keys, in its order.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Record {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    compressed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

impl Record {
    /// What qemu-img prints for a window without a byte of the disk: one record of length 0.
    pub fn empty(start: u64) -> Self {
        let (present, zero, data, compressed) = (false, false, false, false);
        Self { start, length: 0, depth: 0, present, zero, data, compressed, offset: None }
    }
}

impl From<&Extent> for Record {
    fn from(extent: &Extent) -> Self {
        let Mapping { depth, present, zero, data, compressed, offset } = extent.mapping;
        Self {
            start: extent.start.get(),
            length: extent.length_bytes,
            depth,
            present,
            zero,
            data,
            compressed,
            offset: offset.map(|offset| offset.get()),
        }
    }
}

/// The spacing of `qemu-img map --output=json`: a record a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct QemuMap;

impl Formatter for QemuMap {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b",\n") }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b"{ ")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
