//! Extents in the form of `qemu-img map --output=json`, with the spacing of its text.

use std::io::{self, Write};
use std::ops::Range;

use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::{GuestOffset, HostOffset};

/// A record of `qemu-img map --output=json`, with its keys in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MapRecord {
    /// The first guest byte.
    pub start: u64,
    /// The number of guest bytes.
    pub length: u64,
    /// The number of layers above the layer that has the bytes.
    pub depth: u32,
    /// True if some layer has the bytes.
    pub present: bool,
    /// True if the bytes read as zeros.
    pub zero: bool,
    /// True if the bytes are stored as data.
    pub data: bool,
    /// True if the data are compressed.
    pub compressed: bool,
    /// The host offset of the first byte, if the data lies uncompressed in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl MapRecord {
    /// Returns the record that qemu-img prints for a window without a byte of the disk.
    pub fn empty(start: u64) -> Self {
        let (present, zero, data, compressed) = (false, false, false, false);
        Self { start, length: 0, depth: 0, present, zero, data, compressed, offset: None }
    }

    /// Returns the extent.
    pub fn extent(&self) -> Extent {
        let Self { start, length, depth, present, zero, data, compressed, offset } = *self;
        let offset = offset.map(HostOffset::new);
        let mapping = Mapping { depth, present, zero, data, compressed, offset };
        Extent { start: GuestOffset::new(start), length_bytes: length, mapping }
    }

    /// Returns the range of guest bytes.
    pub fn guest(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.length)
    }
}

impl From<&Extent> for MapRecord {
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

/// A record without its keys, which [`QemuMapFormatter`] writes.
pub struct Row<'r>(pub &'r MapRecord);

impl Serialize for Row<'_> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let MapRecord { start, length, depth, present, zero, data, compressed, offset } = *self.0;
        let mut row = serializer.serialize_tuple(KEYS.len())?;
        row.serialize_element(&start)?;
        row.serialize_element(&length)?;
        row.serialize_element(&depth)?;
        for flag in [present, zero, data, compressed] {
            row.serialize_element(&flag)?;
        }
        if let Some(offset) = offset {
            row.serialize_element(&offset)?;
        }
        row.end()
    }
}

/// The spacing of `qemu-img map --output=json` for a list of [`Row`]s: one object per line.
///
/// It writes each key together with the punctuation around it. As maps, each key would be five pieces, with a search
/// for characters to escape, and a million records would take twice the time.
#[derive(Clone, Copy, Debug, Default)]
pub enum QemuMapFormatter {
    /// Before the list.
    #[default]
    Outside,
    /// Between two rows.
    List,
    /// In a row, before the value of this key.
    Row(usize),
}

const KEYS: [&str; 8] = [
    "{ \"start\": ",
    ", \"length\": ",
    ", \"depth\": ",
    ", \"present\": ",
    ", \"zero\": ",
    ", \"data\": ",
    ", \"compressed\": ",
    ", \"offset\": ",
];

impl Formatter for QemuMapFormatter {
    #[inline]
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        match self {
            Self::Outside => {
                *self = Self::List;
                out.write_all(b"[")
            }
            _ => {
                *self = Self::Row(0);
                Ok(())
            }
        }
    }

    #[inline]
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        match self {
            Self::Row(key) => {
                out.write_all(KEYS.get(*key).map_or(b"", |key| key.as_bytes()))?;
                *key += 1;
                Ok(())
            }
            _ if first => Ok(()),
            _ => out.write_all(b",\n"),
        }
    }

    #[inline]
    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        match self {
            Self::Row(_) => {
                *self = Self::List;
                out.write_all(b"}")
            }
            _ => out.write_all(b"]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_records_say_the_same() {
        let offset = Some(HostOffset::new(7));
        let mapping = Mapping { present: true, offset, ..Mapping::HOLE };
        let start = GuestOffset::new(5);
        let extents = [
            Extent { start, length_bytes: 6, mapping },
            Extent {
                start,
                length_bytes: u64::MAX,
                mapping: Mapping { data: true, compressed: true, depth: 3, ..Mapping::HOLE },
            },
        ];
        let records = extents.each_ref().map(MapRecord::from);
        let mut out = Vec::new();
        let mut serializer =
            serde_json::Serializer::with_formatter(&mut out, QemuMapFormatter::default());
        serializer.collect_seq(records.iter().map(Row)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "[{ \"start\": 5, \"length\": 6, \"depth\": 0, \"present\": true, \"zero\": true, \
             \"data\": false, \"compressed\": false, \"offset\": 7},\n\
             { \"start\": 5, \"length\": 18446744073709551615, \"depth\": 3, \"present\": false, \
             \"zero\": true, \"data\": true, \"compressed\": true}]"
        );
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed, serde_json::to_value(records).unwrap());
    }
}
