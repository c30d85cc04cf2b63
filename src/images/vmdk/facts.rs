//! Facts about VMDK images, as data: the messages about them, and sectors of guest data that look like one.

use bytes::BufMut;

use crate::base::reasons::ReasonClass::{
    Entry, Invalid, LogReplay, NotThisFormat, Payload, Read, Unsupported,
};
use crate::base::reasons::{FormatMessages, family, pair};
use crate::images::content::{LOOK_BYTES, LookForm};

/// The messages, and the faults for which QEMU's message has another class than ours (QEMU 10.0.2).
pub(super) const FORMAT_MESSAGES: FormatMessages = FormatMessages {
    ours: &[
        family(": the zlib stream ", Payload, "MapError::Grain, formats::vmdk::inflate"),
        family(
            ": the length in its marker is ",
            Payload,
            "MapError::Grain, formats::vmdk::inflate",
        ),
        family("grain at guest offset ", Entry, "MapError::Grain"),
        family("header: replay of the journal is ", LogReplay, "MapError::Header, seSparse"),
        family("image: the file is empty", NotThisFormat, "MapError::NotImage, VMDK"),
        family("no type of disk in the descriptor", NotThisFormat, "MapError::NotImage, VMDK"),
        family("no header of a sparse extent", NotThisFormat, "MapError::NotImage, VMDK"),
        family(
            "no constant header in the first sector",
            NotThisFormat,
            "MapError::NotImage, seSparse",
        ),
        family("not a vmdk image: ", Invalid, "MapError::NotImage"),
        family("not a seSparse image: ", Invalid, "MapError::NotImage"),
    ],
    qemu: &[
        family("points after EOF", Entry, "block/vmdk.c, vmdk_check"),
        family("could not get cluster_offset for sector", Entry, "block/vmdk.c, vmdk_check"),
        family("invalid VMDK image descriptor", NotThisFormat, "block/vmdk.c, vmdk_open_desc_file"),
        family("Image not in VMDK format", NotThisFormat, "block/vmdk.c, vmdk_open_sparse"),
        family(
            "File is too small, not a valid image",
            NotThisFormat,
            "block/vmdk.c, vmdk_read_desc",
        ),
        family("Bad const header magic", NotThisFormat, "check_se_sparse_const_header"),
        family("Bad volatile header magic", Invalid, "check_se_sparse_volatile_header"),
        family("Replaying journal not supported", LogReplay, "check_se_sparse_volatile_header"),
        family("Unsupported VMDK version", Unsupported, "block/vmdk.c, vmdk_open_vmdk4"),
        family("Unsupported version: ", Unsupported, "check_se_sparse_const_header"),
        family("Unsupported image type '", Unsupported, "block/vmdk.c, vmdk_open_desc_file"),
        family("Unsupported grain size", Invalid, "check_se_sparse_const_header"),
        family("Unsupported grain table size", Invalid, "check_se_sparse_const_header"),
        family("Unsupported flags: ", Invalid, "check_se_sparse_const_header"),
        family("Unsupported reserved bits", Invalid, "check_se_sparse_const_header"),
        family("Unsupported non-zero", Invalid, "check_se_sparse_const_header"),
        family("Invalid footer", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
        family("Failed to read footer", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
        family("File truncated, expecting at least", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
        family("L1 entry size is invalid", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
        family("L2 table size too big", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
        family("Invalid granularity", Invalid, "block/vmdk.c, vmdk_add_extent"),
        family("L1 size too big", Invalid, "block/vmdk.c, vmdk_add_extent"),
        family("Could not read l1 ", Invalid, "block/vmdk.c, vmdk_init_tables"),
        family("Invalid extent line", Invalid, "block/vmdk.c, vmdk_parse_extents"),
    ],
    pairs: &[
        pair(
            (Entry, Read),
            "grain at guest offset ",
            "",
            "QEMU reports a failed read; we name the entry of a VMDK table",
        ),
        pair(
            (Invalid, Read),
            "header: parentCID is ",
            "error while reading at byte",
            "QEMU compares the parentCID of a VMDK image only when it reads data",
        ),
        pair(
            (Invalid, Read),
            "smaller than 2^63 bytes",
            "error while reading block status",
            "QEMU opens a VMDK disk of 2^63 bytes and more, and fails to read it",
        ),
        pair(
            (Invalid, Entry),
            "smaller than 2^63 bytes",
            "could not get cluster_offset",
            "QEMU opens a VMDK disk of 2^63 bytes and more, and fails at an entry",
        ),
    ],
};

/// Sectors of guest data that look like an image.
pub(crate) const LOOKS: &[LookForm] = &[
    LookForm::first(2, "vmdk", sparse),
    LookForm::first(3, "cowd", cowd),
    LookForm::first(4, "descriptor", |sector| sector.as_mut_slice().put_slice(DESCRIPTOR)),
];

/// A descriptor with one flat extent.
const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n\
    createType=\"monolithicFlat\"\n\nRW 2048 FLAT \"looks-like.vmdk\" 0\n";

/// Writes the header of a sparse extent.
fn sparse(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"KDMV");
    // Version, flags.
    out.put_u32_le(1);
    out.put_u32_le(3);
    // The disk, a grain, the descriptor and its length, in sectors.
    for sectors in [2048, 128, 1, 20] {
        out.put_u64_le(sectors);
    }
    out.put_u32_le(512);
    // Both directories, and the part before the grains.
    for sector in [21, 26, 128] {
        out.put_u64_le(sector);
    }
    out.put_u8(0);
    out.put_slice(b"\n \r\n");
}

/// Writes the header of an extent as ESX writes it.
fn cowd(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"COWD");
    // Version, flags; the disk and a grain; the directory and its entries; the next free sector.
    for field in [1, 3, 2048, 1, 4, 1, 5] {
        out.put_u32_le(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_begin_with_their_signatures() {
        let starts: [&[u8]; 3] = [b"KDMV", b"COWD", b"# Disk DescriptorFile\nversion=1\n"];
        for (form, start) in LOOKS.iter().zip(starts) {
            let mut sector = [0; LOOK_BYTES];
            (form.write)(&mut sector);
            assert!(sector.starts_with(start), "{}", form.word);
        }
    }
}
