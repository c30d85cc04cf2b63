//! Probes the format of a file.

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;

use super::error::MapError;
use super::qcow2::constants::MAGIC;
use super::vhdx::constants::FILE_SIGNATURE;
use super::vmdk::constants::{COWD_MAGIC, SPARSE_MAGIC};
use super::vpc::constants::COOKIE;

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

/// The bytes of every VDI image at [`VDI_SIGNATURE_AT`], little-endian (QEMU `block/vdi.c`).
const VDI_SIGNATURE: [u8; 4] = 0xBEDA_107F_u32.to_le_bytes();
const VDI_SIGNATURE_AT: usize = 64;

/// The number of bytes that probing reads (QEMU `include/block/block_int-common.h`, `BLOCK_PROBE_BUF_SIZE`).
const PROBED_BYTES: usize = 512;

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
    let is_vmdk = [SPARSE_MAGIC, COWD_MAGIC].iter().any(|magic| first_bytes.starts_with(magic));
    if is_vmdk || is_vmdk_descriptor(&first_bytes) {
        return Ok(ImageFormat::Vmdk);
    }
    if first_bytes.starts_with(&FILE_SIGNATURE) {
        return Ok(ImageFormat::Vhdx);
    }
    let vdi =
        first_bytes.get(VDI_SIGNATURE_AT..).is_some_and(|rest| rest.starts_with(&VDI_SIGNATURE));
    let other = OTHER_FORMATS.iter().any(|magic| first_bytes.starts_with(magic));
    if vdi || other {
        return Err(MapError::Unsupported(
            "image in a format other than qcow2, raw, vpc, vhdx and vmdk",
        ));
    }
    Ok(ImageFormat::Raw)
}

/// Reports whether a text begins with a version, after comments and lines of spaces (QEMU `block/vmdk.c`,
/// `vmdk_probe`). A line without any byte is none of spaces.
fn is_vmdk_descriptor(first_bytes: &[u8]) -> bool {
    let mut rest = first_bytes;
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return false };
        let (line, behind) = rest.split_at(end);
        let unended = line.strip_suffix(b"\r").unwrap_or(line);
        match line {
            [b'#', ..] => {}
            [b' ', ..] if unended.iter().all(|byte| *byte == b' ') => {}
            _ => return matches!(unended, b"version=1" | b"version=2" | b"version=3"),
        }
        let [_, after @ ..] = behind else { return false };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_begins_with_its_version() {
        let is_vmdk = |text: &str| probe(text.as_bytes()) == Ok(ImageFormat::Vmdk);
        for text in ["version=1\n", "version=3\r\n", "# x\n  \n \r\nversion=2\n", "KDMV", "COWD"] {
            assert!(is_vmdk(text), "{text:?}");
        }
        let late = "#".repeat(502) + "\nversion=1\n";
        let later = "#".repeat(503) + "\nversion=1\n";
        assert!(!is_vmdk(&later) && !is_vmdk(&late) && is_vmdk(&late[1..]));
        for text in [
            "version=4\n",
            "version=1",
            "version=1 \n",
            "\nversion=1\n",
            "\t\nversion=1\n",
            "\r\nversion=1\n",
            " version=1\n",
            " x\nversion=1\n",
            "encoding=\"x\"\nversion=1\n",
        ] {
            assert!(!is_vmdk(text), "{text:?}");
        }
    }
}
