//! Probes the format of a file.

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;

use super::error::MapError;
use super::qcow2::constants::MAGIC;
use super::vpc::constants::COOKIE;

/// The first bytes of files in other formats that QEMU recognizes when it probes a file. To read such a file as a raw
/// disk would return wrong data.
const OTHER_FORMATS: [&[u8]; 9] = [
    b"KDMV",
    b"COWD",
    b"vhdxfile",
    b"QED\0",
    b"LUKS\xba\xbe",
    b"WithoutFreeSpace",
    b"WithouFreSpacExt",
    b"Bochs Virtual HD Image",
    b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
];

/// The bytes of every VDI image at [`VDI_SIGNATURE_AT`], little-endian (QEMU `block/vdi.c`).
const VDI_SIGNATURE: [u8; 4] = 0xBEDA_107F_u32.to_le_bytes();
const VDI_SIGNATURE_AT: usize = 64;

/// The number of bytes that probing reads. Text before the version of a VMDK descriptor may be long.
const PROBED_BYTES: usize = 2048;

/// Returns the format of a file by its first bytes (QEMU `block.c`, `find_image_format`).
///
/// # Errors
/// The format is not one of [`ImageFormat`], or a read fails.
pub fn probe<S: Storage + ?Sized>(storage: &S) -> Result<ImageFormat, MapError> {
    let mut first_bytes = [0; PROBED_BYTES];
    storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
    let [a, b, c, d, e, f, g, h, ..] = first_bytes;
    let version = u32::from_be_bytes([e, f, g, h]);
    match u32::from_be_bytes([a, b, c, d]) {
        MAGIC if version >= 2 => return Ok(ImageFormat::Qcow2),
        MAGIC if version == 1 => {
            return Err(MapError::Unsupported("image in the first qcow format"));
        }
        _ => {}
    }
    if first_bytes.starts_with(&COOKIE) {
        return Ok(ImageFormat::Vpc);
    }
    let vdi =
        first_bytes.get(VDI_SIGNATURE_AT..).is_some_and(|rest| rest.starts_with(&VDI_SIGNATURE));
    let other = OTHER_FORMATS.iter().any(|magic| first_bytes.starts_with(magic));
    if vdi || other || is_vmdk_descriptor(&first_bytes) {
        return Err(MapError::Unsupported("image in a format other than qcow2, raw and vpc"));
    }
    Ok(ImageFormat::Raw)
}

/// Reports whether a text begins with a version, after comments and empty lines (QEMU `block/vmdk.c`, `vmdk_probe`).
fn is_vmdk_descriptor(first_bytes: &[u8]) -> bool {
    let blank = |line: &&[u8]| {
        line.first() == Some(&b'#') || line.iter().all(|byte| matches!(byte, b' ' | b'\r'))
    };
    let mut lines = first_bytes.split(|byte| *byte == b'\n').skip_while(blank);
    lines.next().is_some_and(|line| line.starts_with(b"version="))
}
