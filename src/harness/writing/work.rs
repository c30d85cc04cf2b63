//! The work of a run of a writer, as far as its program says.

use crate::images::files::Images;
use crate::programs::WriteRequest;

/// Bytes that an engine handles for a request besides the request's own: a part of a table and of a refcount block.
const REQUEST_BYTES: u64 = 1024;

/// Returns how many bytes the engine and the harness handle for requests to `images`, as far as the program says: those
/// of the requests, and those of the images for each opening and each cut.
pub(super) fn handled_bytes(images: &Images, requests: &[WriteRequest]) -> u64 {
    let image_bytes = images.written_bytes();
    requests.iter().fold(image_bytes, |sum, request| {
        let bytes = match request {
            WriteRequest::Write { length_bytes, .. } | WriteRequest::Read { length_bytes, .. } => {
                u64::from(*length_bytes) + REQUEST_BYTES
            }
            WriteRequest::Cut { .. } | WriteRequest::Crash { .. } | WriteRequest::Reopen => {
                image_bytes
            }
            _ => REQUEST_BYTES,
        };
        sum.saturating_add(bytes)
    })
}
