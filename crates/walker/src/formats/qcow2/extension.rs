//! The header extensions of an image, one by one.

use super::constants::EXTENSION_END;
use super::header::Header;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

/// A header extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderExtension {
    /// The type.
    pub kind: u32,
    /// The host offset of the type.
    pub at: u64,
    /// The length of the content, without the padding after it.
    pub length_bytes: u32,
}

impl HeaderExtension {
    /// The length of the type and the length, which precede the content.
    pub const FRONT_BYTES: u64 = 8;

    /// Returns the host offset of the content.
    pub fn content(&self) -> HostOffset {
        // It lies in the first cluster.
        HostOffset::new(self.at + Self::FRONT_BYTES)
    }
}

/// Calls `take` with each extension, the one that ends the list included. Checks that each ends within the extension
/// area, as QEMU does at open (`block/qcow2.c`, `qcow2_read_extensions`).
///
/// # Errors
/// An extension is too long, a read fails, or `take` returns an error.
pub fn each_extension<S: Storage + ?Sized>(
    storage: &S,
    header: &Header,
    mut take: impl FnMut(HeaderExtension) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let area_end = header.extension_area_end();
    let mut at = u64::from(header.header_length_bytes);
    // The first cluster bounds the loop: each extension takes at least eight bytes.
    while at < area_end {
        let mut front = [0; HeaderExtension::FRONT_BYTES as usize];
        storage.read_at(HostOffset::new(at), &mut front)?;
        let [a, b, c, d, length @ ..] = front;
        let (kind, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(length));
        let content = at + HeaderExtension::FRONT_BYTES;
        if content > area_end || u64::from(length) > area_end - content {
            return Err(MapError::ExtensionLength { kind, at, length, area_end });
        }
        take(HeaderExtension { kind, at, length_bytes: length })?;
        if kind == EXTENSION_END {
            break;
        }
        at = content + u64::from(length).next_multiple_of(8);
    }
    Ok(())
}
