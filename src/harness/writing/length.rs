//! The length of a written file. A writer uses the clusters again that it has freed, or the file of a guest that writes
//! and discards grows without bound, until the host's disk is full.
//!
//! QEMU documents the most: the *fully allocated size* of `qemu-img measure` "is the maximum size that the image file
//! can occupy with the exception of internal snapshots, dirty bitmaps, vmstate data, and other advanced image format
//! features" (QEMU, docs/tools/qemu-img.rst). `needed_clusters` calculates it. A part of the disk that no request
//! changes needs nothing beyond the built file. So the bound is the length of the built file, and that size for a disk
//! of the other parts. L1 tables of other sizes of the disk come to that, and an eighth of the built file, whose
//! refcounts may move. Requests in flight may need twice as much: each may allocate before another one frees.
//!
//! Does not check: images with snapshots, bitmaps or requests about them; images on devices; files after a crash, or
//! after an operation on a file has failed, in which clusters may be leaked; the length of data files.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that the end of its last cluster does not saturate.

use std::ops::Range;

use crate::base::features::{Feature, FeatureSet};
use crate::base::ranges::RangeMap;
use crate::disk::storage::Storage;
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::harness::cases::case::Case;
use crate::harness::files::chain::Chain;
use crate::programs::WriteRequest;

use super::state::whole_clusters;

/// A share of the built file, by which refcounts that move may make it longer.
const MOVED_SHARE: u64 = 8;
/// The length of an entry of an L1 table or a refcount table.
const POINTER_BYTES: u64 = 8;

/// Returns the most bytes that the image of a case may have after its requests; `None` if nothing is known. `built` are
/// its files before them.
pub(super) fn most_bytes(case: &Case, built: &Chain) -> Option<u64> {
    let clusters_of_others = FeatureSet::of(&[Feature::Snapshots, Feature::Bitmaps]);
    if case.features.meets(clusters_of_others) || case.requests.iter().any(is_unbounded) {
        return None;
    }
    let header = Header::read(built.image()).ok()?;
    let geometry = header.geometry;
    let ranges = changed(case.requests, header.virtual_size_bytes());
    let data = touched(&ranges, geometry.cluster_size.bytes());
    let l2_tables = touched(&ranges, geometry.l2_span_bytes());
    let last_byte = ranges.iter().map(|it| it.end).max()?;
    let l1_bytes = last_byte.div_ceil(geometry.l2_span_bytes()).checked_mul(POINTER_BYTES)?;
    // Each other size of the disk may move the table.
    let l1 = geometry.cluster_size.clusters_for(l1_bytes).checked_mul(ranges.len() as u64)?;
    let needed = needed_clusters(&geometry, data.checked_add(l2_tables)?.checked_add(l1)?)?;
    let at_once = if case.features.has(Feature::InFlight) { 2 } else { 1 };
    let added_bytes = geometry.cluster_size.bytes().checked_mul(needed)?.checked_mul(at_once)?;
    let built_bytes = built.image().length_bytes();
    built_bytes.checked_add(built_bytes / MOVED_SHARE)?.checked_add(added_bytes)
}

/// Returns the number of clusters of a new image with `counted` clusters for data, L1 and L2 tables: those, the header,
/// and the refcount structures. A block leaves half of its counts for other clusters than these structures.
fn needed_clusters(geometry: &Geometry, counted: u64) -> Option<u64> {
    let blocks = counted / (geometry.refcounts_per_block() / 2) + 1;
    let table = blocks / (geometry.cluster_size.bytes() / POINTER_BYTES) + 1;
    counted.checked_add(blocks)?.checked_add(table)?.checked_add(1)
}

/// Reports whether nothing is known about the clusters that a request needs.
fn is_unbounded(request: &WriteRequest) -> bool {
    matches!(
        request,
        WriteRequest::TakeSnapshot { .. }
            | WriteRequest::ChangeBitmap { .. }
            | WriteRequest::Device { .. }
    )
}

/// Returns the ranges that requests change on a disk of `size_bytes`. Another size changes all between both ends: a
/// writer may store there that it is zeros.
fn changed(requests: &[WriteRequest], size_bytes: u64) -> Vec<Range<u64>> {
    let mut size_bytes = size_bytes;
    let mut range_of = |request: &WriteRequest| match *request {
        WriteRequest::Resize { size_bytes: new } => {
            let before = std::mem::replace(&mut size_bytes, new);
            Some(before.min(new)..before.max(new))
        }
        _ => request.changed(),
    };
    requests.iter().filter_map(&mut range_of).collect()
}

/// Returns the number of units that ranges touch.
fn touched(ranges: &[Range<u64>], unit_bytes: u64) -> u64 {
    let mut touched = RangeMap::default();
    for range in ranges.iter().filter(|it| !it.is_empty()) {
        touched.insert(whole_clusters(range, unit_bytes), ());
    }
    // The parts do not overlap, so that their sum has 64 bits.
    touched.iter().map(|(range, ())| range.end.saturating_sub(range.start) / unit_bytes).sum()
}
