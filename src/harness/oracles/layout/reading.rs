//! How the oracle reads an image.

use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::MapError;
use crate::harness::oracles::{OracleResult, Violation, disagreement};
use crate::images::image::Image;

pub(super) const ORACLE: &str = "layout";

/// The bytes of a table that are read at a time. Nearly all are borrowed instead.
const TABLE_PIECE_BYTES: usize = 256;

/// Reads `N` bytes of a built image. Bytes past the end are zeros.
pub(super) fn read<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // Reads from memory do not fail.
    let _ = image.read_at(HostOffset::new(at), &mut bytes);
    bytes
}

/// Calls `take` with each run of equal entries in a table of `count` entries, as far as it succeeds.
pub(super) fn each_run<const N: usize>(
    image: &Image,
    table: u64,
    count: u64,
    mut take: impl FnMut(EntryRun<N>) -> OracleResult,
) -> OracleResult {
    let mut verdict = Ok(());
    let (table, mut scratch) = (HostOffset::new(table), [0; TABLE_PIECE_BYTES]);
    // Reads from memory do not fail.
    let _ = each_entries(image, table, 0..count, &mut scratch, |entries| {
        verdict = entries.runs().try_for_each(&mut take);
        Ok::<_, StorageError>(match verdict.is_ok() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    });
    verdict
}

/// Returns the violation for a structure that a reader refuses.
pub(super) fn refused(field: &'static str, error: &MapError) -> Box<Violation> {
    disagreement(ORACLE, field, ("valid", "refused"), error.to_string())
}
