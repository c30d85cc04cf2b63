//! The footer: the copy of the header at the end of a file that was written as a stream.

use super::constants::{HEADER_BYTES, MARKER_FOOTER, SPARSE_MAGIC, STREAM_FOOTER_BYTES};
use super::sparse_header::SparseHeader;
use crate::formats::error::MapError;

/// Returns the header in a footer, with the checks that QEMU makes (`block/vmdk.c`, `vmdk_open_vmdk4`).
///
/// # Errors
/// The header lacks the magic number, or does not lie between a marker of a footer and a marker of the end.
pub fn header(bytes: &[u8; STREAM_FOOTER_BYTES]) -> Result<SparseHeader, MapError> {
    let sectors = bytes.as_chunks::<HEADER_BYTES>().0;
    let [marker, header, end] = sectors else { return Err(no_footer()) };
    let (_, size, kind) = marker_fields(marker);
    let is_footer = header.starts_with(&SPARSE_MAGIC) && size == 0 && kind == MARKER_FOOTER;
    match is_footer && marker_fields(end) == (0, 0, 0) {
        true => Ok(SparseHeader::read(header)),
        false => Err(no_footer()),
    }
}

/// Returns the value, the size and the type of a marker.
pub(super) fn marker_fields(marker: &[u8; HEADER_BYTES]) -> (u64, u32, u32) {
    use bytes::Buf;
    let mut rest = marker.as_slice();
    (rest.get_u64_le(), rest.get_u32_le(), rest.get_u32_le())
}

/// Returns the error of an extent without a footer where its header announces one.
pub fn no_footer() -> MapError {
    MapError::NotImage { format: "vmdk", what: "no footer at the end of the file" }
}
