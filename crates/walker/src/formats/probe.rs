//! The recognition of formats by the first bytes of a file.

use crate::formats::error::MapError;

/// The first bytes of files in other formats that QEMU recognizes when it probes a file. To read such a file as a raw
/// disk would return wrong data.
const OTHER_FORMATS: [&[u8]; 6] = [
    b"QED\0",
    b"LUKS\xba\xbe",
    b"WithoutFreeSpace",
    b"WithouFreSpacExt",
    b"Bochs Virtual HD Image",
    b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
];

/// The first bytes of images in the first qcow format.
const QCOW_1: &[u8] = b"QFI\xfb\0\0\0\x01";

/// The bytes that probing reads (QEMU `include/block/block_int-common.h`, `BLOCK_PROBE_BUF_SIZE`).
pub(crate) type ProbedBytes = [u8; 512];

/// Rejects a file in a format that QEMU has and this walker has not. No format of the walker has these first bytes.
pub(super) fn reject_other_formats(first_bytes: &ProbedBytes) -> Result<(), MapError> {
    if first_bytes.starts_with(QCOW_1) {
        return Err(MapError::Unsupported("image in the first qcow format"));
    }
    match OTHER_FORMATS.iter().any(|magic| first_bytes.starts_with(magic)) {
        true => Err(MapError::Unsupported("image in a format that only QEMU knows")),
        false => Ok(()),
    }
}
