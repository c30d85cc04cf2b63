//! The holes of the files of a chain in a map of qemu-img: its zero flag of data depends on them.

use crate::disk::extent::{Extent, Mapping};
use crate::disk::storage::Storage;
use crate::harness::against::second_opinion::findings::merged;
use crate::harness::files::chain::Chain;

/// Returns the extents as if the files had no holes: the zero flag of data depends on them.
pub(in crate::harness) fn without_holes(extents: &[Extent], chain: &Chain) -> Vec<Extent> {
    let mut without = Vec::with_capacity(extents.len());
    merged(extents, |mapping| without_file_holes(mapping, chain), &mut without);
    without
}

/// Returns a mapping as if its file had no hole there. The holes of raw images and of fixed disks are zeros with an
/// offset. Their formats have no others but the rest of the last sector, behind the end of the file.
fn without_file_holes(mapping: Mapping, chain: &Chain) -> Mapping {
    let layer = usize::try_from(mapping.depth).ok().and_then(|depth| chain.layers().get(depth));
    let is_hole = layer.zip(mapping.offset).is_some_and(|(layer, offset)| {
        layer.format.facts().shows_file_holes && offset.get() < layer.image.length_bytes()
    });
    let data = mapping.data || is_hole;
    Mapping { data, zero: mapping.zero && !data, ..mapping }
}
