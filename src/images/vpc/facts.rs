//! Facts about VHD images, as data: the messages about them, and sectors of guest data that look like one.

use bytes::BufMut;

use crate::base::reasons::ReasonClass::{Invalid, NotThisFormat};
use crate::base::reasons::{FormatMessages, family};
use crate::formats::anatomy::SealKind;
use crate::formats::vpc::constants::footer;
use crate::images::content::{LOOK_BYTES, LookForm};

/// The messages, and the faults for which QEMU's message has another class than ours (QEMU 10.0.2).
pub(super) const FORMAT_MESSAGES: FormatMessages = FormatMessages {
    ours: &[
        family("no footer in the first sector", NotThisFormat, "MapError::NotImage, vpc"),
        family("not a vpc image: ", Invalid, "MapError::NotImage"),
    ],
    qemu: &[
        family("invalid VPC image", NotThisFormat, "block/vpc.c, vpc_open"),
        family("File too small for a VHD header", NotThisFormat, "block/vpc.c, vpc_open"),
        family("Incorrect header checksum", Invalid, "block/vpc.c, vpc_open"),
        family("Invalid header magic", Invalid, "block/vpc.c, vpc_open"),
        family("Error reading dynamic VHD header", Invalid, "block/vpc.c, vpc_open"),
        family("Invalid block size", Invalid, "block/vpc.c, vpc_open"),
        family("Page table too small", Invalid, "block/vpc.c, vpc_open"),
        family("Max Table Entries too large", Invalid, "block/vpc.c, vpc_open"),
        family("Error reading pagetable", Invalid, "block/vpc.c, vpc_open"),
        family("free_data_block_offset points after", Invalid, "block/vpc.c, vpc_open"),
    ],
    pairs: &[],
};

/// Sectors of guest data that look like an image.
pub(crate) const LOOKS: &[LookForm] = &[
    // At the beginning, where dynamic disks have a copy of the footer.
    LookForm { is_footer: true, ..LookForm::first(5, "vpc", footer) },
    // At the end, where all disks have it.
    LookForm { is_footer: true, is_at_end: true, ..LookForm::first(6, "vpc_end", footer) },
];

/// Writes the footer of a dynamic disk.
fn footer(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"conectix");
    // Features, version, the offset of the dynamic header.
    out.put_u32(2);
    out.put_u32(0x1_0000);
    out.put_u64(512);
    // The time; the creator, its version and its system.
    out.put_u32(0);
    out.put_slice(b"qem2\x00\x05\x00\x03Wi2k");
    // Both sizes; the geometry; a dynamic disk.
    out.put_u64(1 << 20);
    out.put_u64(1 << 20);
    out.put_slice(&[0, 30, 4, 17]);
    out.put_u32(3);
    let checksum = SealKind::ComplementOfSum.of(sector, footer::CHECKSUM.at);
    sector[footer::CHECKSUM.at..][..checksum.len()].copy_from_slice(&checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_begins_with_its_cookie() {
        let mut sector = [0; LOOK_BYTES];
        footer(&mut sector);
        assert!(sector.starts_with(b"conectix"));
    }
}
