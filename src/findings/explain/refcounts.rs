//! The entries of the refcount table and of the refcount blocks of an image, and the operations of its program whose
//! clusters they count. It reads only the refcount structures, so it also works for images that are too large for a
//! walk.

use std::ops::{ControlFlow, Range};

use crate::formats::anatomy::Part;
use crate::formats::error::MapError;
use crate::formats::qcow2::entry;
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::{HostTable, TableEntry};
use crate::images::files::image::Image;

/// The number of entries that are noted.
const MAX_REFCOUNT_ENTRIES: usize = 1 << 14;
/// The length of the buffer for data that do not begin and end on grains.
const WHOLE_GRAIN_BYTES: usize = 512;

/// An entry of the refcount table, or the counts in one unit of a refcount block: a byte, or one count if that is
/// longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefcountEntry {
    /// [`Part::RefcountTable`] or [`Part::RefcountBlock`].
    pub part: Part,
    /// The byte range of the file whose clusters the entry counts.
    pub counted: Range<u64>,
}

/// Returns the entries of an image that are not zero, block by block, each block after its entry in the table. The
/// image is as a program builds it.
pub(super) fn entries(image: &Image) -> Result<Vec<RefcountEntry>, MapError> {
    let mut entries = Vec::new();
    let header = Header::read(image)?;
    let geometry = &header.geometry;
    let per_block = geometry.refcounts_per_block();
    let table = HostTable::refcounts(&header);
    let _ = table.each_entry(
        image,
        &mut [0; WHOLE_GRAIN_BYTES],
        |TableEntry { index, word, .. }| {
            let Some(start) = entry::refcount_block_offset(word) else {
                return Ok(ControlFlow::Continue(()));
            };
            let first = index.saturating_mul(per_block);
            let counted = clusters(geometry, first, per_block);
            entries.push(RefcountEntry { part: Part::RefcountTable, counted });
            note_counts(
                image,
                geometry,
                (HostTable::refcount_block(geometry, start), first),
                &mut entries,
            )
        },
    )?;
    Ok(entries)
}

/// Notes the counts of a block, whose first one counts the cluster `first`.
fn note_counts(
    image: &Image,
    geometry: &Geometry,
    (block, first): (HostTable, u64),
    entries: &mut Vec<RefcountEntry>,
) -> Result<ControlFlow<()>, MapError> {
    let unit_bytes = 1usize << geometry.refcount_order.saturating_sub(3);
    // Counts that are shorter than a byte share one.
    let per_unit = 1u64 << 3u32.saturating_sub(geometry.refcount_order);
    block.each_piece(image, &mut [0; WHOLE_GRAIN_BYTES], |skipped, bytes| {
        let before = skipped / unit_bytes as u64;
        for (unit, counts) in (before..).zip(bytes.chunks_exact(unit_bytes)) {
            if counts.iter().all(|byte| *byte == 0) {
                continue;
            }
            if entries.len() >= MAX_REFCOUNT_ENTRIES {
                return Ok(ControlFlow::Break(()));
            }
            let cluster = first.saturating_add(unit.saturating_mul(per_unit));
            let counted = clusters(geometry, cluster, per_unit);
            entries.push(RefcountEntry { part: Part::RefcountBlock, counted });
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Returns the byte range of `count` clusters from the cluster `first` on.
fn clusters(geometry: &Geometry, first: u64, count: u64) -> Range<u64> {
    let at = |cluster| geometry.cluster_size.saturating_bytes(cluster);
    at(first)..at(first.saturating_add(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::explain::watch::Watch;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    #[test]
    fn entries_count_the_clusters_of_operations() {
        for (order, per_unit) in [(0, 8), (4, 1), (6, 1)] {
            let program = assemble(&format!(
                "image version=3 cluster_bits=9 refcount_order={order} features=none size=4<<20+0 rng_seed=0 \
                 blocks=append table=append tolerance=0
                 write at=start+4 clusters=2
                 write at=start+40 clusters=1"
            ));
            let mut watch = Watch::default();
            let entries = watch.refcounts(&program.unwrap(), Limits::ALLOCATED);
            let of = |part| entries.iter().filter(move |entry| entry.part == part);
            let counted: Vec<_> = of(Part::RefcountBlock)
                .filter(|entry| !watch.operations_in(&entry.counted).is_empty())
                .collect();
            assert!(counted.iter().all(|it| it.counted.end - it.counted.start == per_unit << 9));
            let all = counted.iter().flat_map(|it| watch.operations_in(&it.counted));
            assert!(all.collect::<std::collections::BTreeSet<_>>().iter().eq(&[0, 1]), "{order}");
            // Other entries count the header, tables, and refcount blocks.
            assert!(per_unit > 1 || counted.len() == 3 && of(Part::RefcountBlock).count() > 6);
            let table: Vec<_> = of(Part::RefcountTable).collect();
            assert_eq!(watch.operations_in(&table[0].counted), [0, 1], "{order}");
        }
    }
}
