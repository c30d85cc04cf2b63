//! The records in the output of `qemu-img map --output=json`.

use serde::Deserialize;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::{GuestOffset, HostOffset};

/// A record in the output of any version of qemu-img.
#[derive(Debug, Deserialize)]
pub(crate) struct QemuMapRecord {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    /// The key exists since QEMU 8.2.
    compressed: Option<bool>,
    offset: Option<u64>,
}

impl QemuMapRecord {
    /// Reports whether the record states that data are compressed, or not.
    pub(crate) fn has_compressed(&self) -> bool {
        self.compressed.is_some()
    }
}

impl From<QemuMapRecord> for Extent {
    fn from(record: QemuMapRecord) -> Self {
        let QemuMapRecord { start, length, depth, present, zero, data, compressed, offset } =
            record;
        // Without this key, data without a host offset is compressed.
        let compressed = compressed.unwrap_or(data && offset.is_none());
        let offset = offset.map(HostOffset::new);
        let mapping = Mapping { depth, present, zero, data, compressed, offset };
        Self { start: GuestOffset::new(start), length_bytes: length, mapping }
    }
}

/// Parses the records, one in each line, and reports whether the list has an end.
pub(crate) fn parse_map(printed: &str) -> (Vec<Extent>, bool) {
    let lines =
        printed.lines().map(|line| line.trim_start_matches('[').trim_end_matches([']', ',']));
    let records = lines.filter_map(|line| serde_json::from_str::<QemuMapRecord>(line).ok());
    let extents = records.map(Extent::from).filter(|extent| extent.length_bytes > 0);
    (extents.collect(), printed.trim_end().ends_with(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_older_versions_are_read() {
        let old = r#"{ "start": 0, "length": 9, "depth": 0, "present": true, "zero": false, "data": true,
            "filename": "x"}"#;
        let extent = Extent::from(serde_json::from_str::<QemuMapRecord>(old).unwrap());
        assert_eq!(extent.to_string(), "0x0+0x9 compressed");
    }
}
