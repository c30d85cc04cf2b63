//! The parts of VHDX images that QEMU may read wrongly: an image may store a block at host offset 0, which no writer
//! does, and QEMU reads the first bytes of the file for each part of that block.

use crate::disk::extent::{Extent, Mapping};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::harness::files::chain::Chain;

/// The host offset of the first block that a writer of VHDX may store.
const FIRST_BLOCK_AT: HostOffset = HostOffset::new(1 << 20);
/// The size of the largest block of VHDX, and so the end of a block at host offset 0.
const MAX_BLOCK_BYTES: HostOffset = HostOffset::new(256 << 20);

/// Returns the host offset below which QEMU may read other bytes of the VHDX images of a chain than a reader should.
pub(super) fn misread_end(extents: &[Extent], chain: &Chain) -> HostOffset {
    let is_first = |extent: &Extent| is_below(extent, chain, FIRST_BLOCK_AT);
    if extents.iter().any(is_first) { MAX_BLOCK_BYTES } else { HostOffset::ZERO }
}

/// Reports whether an extent is data of a VHDX image below a host offset.
pub(super) fn is_below(extent: &Extent, chain: &Chain, end: HostOffset) -> bool {
    let Mapping { depth, offset, .. } = extent.mapping;
    let layer = usize::try_from(depth).ok().and_then(|depth| chain.layers().get(depth));
    offset.is_some_and(|offset| offset < end)
        && layer.is_some_and(|layer| layer.format == ImageFormat::Vhdx)
}
