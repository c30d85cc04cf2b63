//! How the oracle reads an image.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::harness::oracles::{Violation, disagreement};
use crate::images::image::Image;

pub(super) const ORACLE: &str = "layout";

/// Reads `N` bytes of a built image. Bytes past the end are zeros.
pub(super) fn read<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // Reads from memory do not fail.
    let _ = image.read_at(HostOffset::new(at), &mut bytes);
    bytes
}

/// Returns the violation for a structure that a reader refuses.
pub(super) fn refused(field: &'static str, error: &MapError) -> Box<Violation> {
    disagreement(ORACLE, field, ("valid", "refused"), error.to_string())
}
