//! Facts about VHDX images, as data: the messages about them, and sectors of guest data that look like one.

use bytes::BufMut;

use crate::base::reasons::ReasonClass::{
    Entry, Invalid, LogReplay, NotThisFormat, Read, Unsupported,
};
use crate::base::reasons::{FormatMessages, family, pair};
use crate::images::content::{LOOK_BYTES, LookForm};

/// The messages, and the faults for which QEMU's message has another class than ours (QEMU 10.0.2).
pub(super) const FORMAT_MESSAGES: FormatMessages = FormatMessages {
    ours: &[
        family("header: logical sector size is ", Unsupported, "MapError::Header, VHDX"),
        family(
            "the file does not begin with 'vhdxfile'",
            NotThisFormat,
            "MapError::NotImage, VHDX",
        ),
        family("not a vhdx image: ", Invalid, "MapError::NotImage"),
    ],
    qemu: &[
        family("VHDX BAT entry ", Entry, "block/vhdx.c, vhdx_check_bat_entries"),
        family("contains a log that needs to be replayed", LogReplay, "block/vhdx-log.c"),
        family("No valid VHDX header found", Invalid, "block/vhdx.c, vhdx_parse_header"),
        family("overlaps with region", Invalid, "block/vhdx.c, vhdx_region_check"),
    ],
    pairs: &[
        pair(
            (Entry, Read),
            "block allocation table entry ",
            "error while reading at byte",
            "QEMU reports a failed read; we name the entry of a VHDX table",
        ),
        pair(
            (Invalid, Read),
            "expected a table that QEMU can read",
            "Could not open '",
            "QEMU reports a failed read of a VHDX table; we name its end",
        ),
        pair(
            (NotThisFormat, Invalid),
            "the file does not begin with 'vhdxfile'",
            ": Invalid argument",
            "QEMU prints only an error number if the signature of a VHDX file is wrong",
        ),
        pair(
            (Entry, Invalid),
            "the block overlaps a region or the log",
            "overlaps with region",
            "QEMU has one message for VHDX blocks and regions that overlap",
        ),
    ],
};

/// Sectors of guest data that look like an image.
pub(crate) const LOOKS: &[LookForm] = &[LookForm::first(7, "vhdx", identifier)];

/// Writes the file identifier of an image.
fn identifier(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"vhdxfile");
    "looks like a VHDX image".encode_utf16().for_each(|unit| out.put_u16_le(unit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_begins_with_its_signature() {
        let mut sector = [0; LOOK_BYTES];
        identifier(&mut sector);
        assert!(sector.starts_with(b"vhdxfile"));
    }
}
