//! Extents in the form of `qemu-img map --output=json`, with the spacing of its text.

use std::io::{self, Write};
use std::ops::Range;

use serde::Serialize;

use crate::disk::extent::{Extent, Mapping};

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

/// A list of records with the text of `qemu-img map --output=json`: one object per line.
///
/// The text of a key and of a flag has a fixed length, which the compiler turns into a few stores. With a serializer,
/// which does not know these lengths, the command `map` would take a third more time for a million records.
pub struct RecordList<W> {
    out: W,
    is_empty: bool,
}

impl<W: Write> RecordList<W> {
    /// Begins a list.
    pub fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(b"[")?;
        Ok(Self { out, is_empty: true })
    }

    /// Writes the next record.
    #[inline]
    pub fn push(&mut self, record: &MapRecord) -> io::Result<()> {
        let MapRecord { start, length, depth, present, zero, data, compressed, offset } = *record;
        let out = &mut self.out;
        match std::mem::take(&mut self.is_empty) {
            true => out.write_all(b"{ \"start\": ")?,
            false => out.write_all(b",\n{ \"start\": ")?,
        }
        serde_json::to_writer(&mut *out, &start)?;
        out.write_all(b", \"length\": ")?;
        serde_json::to_writer(&mut *out, &length)?;
        out.write_all(b", \"depth\": ")?;
        serde_json::to_writer(&mut *out, &depth)?;
        match present {
            true => out.write_all(b", \"present\": true")?,
            false => out.write_all(b", \"present\": false")?,
        }
        match zero {
            true => out.write_all(b", \"zero\": true")?,
            false => out.write_all(b", \"zero\": false")?,
        }
        match data {
            true => out.write_all(b", \"data\": true")?,
            false => out.write_all(b", \"data\": false")?,
        }
        match compressed {
            true => out.write_all(b", \"compressed\": true")?,
            false => out.write_all(b", \"compressed\": false")?,
        }
        if let Some(offset) = offset {
            out.write_all(b", \"offset\": ")?;
            serde_json::to_writer(&mut *out, &offset)?;
        }
        out.write_all(b"}")
    }

    /// Ends the list. Returns the writer.
    pub fn end(mut self) -> io::Result<W> {
        self.out.write_all(b"]")?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::offsets::{GuestOffset, HostOffset};

    #[test]
    fn the_text_of_a_list_is_that_of_its_records() {
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
        let mut list = RecordList::begin(Vec::new()).unwrap();
        records.iter().for_each(|record| list.push(record).unwrap());
        let text = String::from_utf8(list.end().unwrap()).unwrap();
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
