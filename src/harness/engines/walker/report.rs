//! The reports of our walker about an image: its declarations, and the result of a check.

use super::bounded_reads::BoundedReads;
use crate::disk::image_format::ImageFormat;
use crate::harness::engine::info::{CheckCounts, ImageInfo};
use crate::harness::engine::{Answer, EngineError};
use crate::harness::files::chain::{Chain, ChainLayer};
use crate::walkers::{self, MapError};

/// The largest number of references, of runs of counts and of findings in the check of a qcow2 image: more than an
/// image that a fuzzer's input builds has.
const MAX_CHECKED: usize = 1 << 18;
/// The largest number of bytes that such a check reads. A damaged image may name a table again and again.
const MAX_CHECKED_BYTES: u64 = 16 << 20;

/// Returns the declarations of the image at the top of `chain`, and the names of the files below it.
pub(super) fn info(chain: &Chain) -> Answer<ImageInfo> {
    let mut layers = chain.layers().iter();
    let mut declared = |layer: &ChainLayer| walkers::declared(layer.format, &layer.borrowed());
    let Some(top) = layers.next().map(&mut declared).transpose()? else {
        return Err(EngineError::NoAnswer);
    };
    let (mut below, mut name) = (Vec::new(), top.backing_name);
    while !name.is_empty() {
        below.push(name);
        name = match layers.next() {
            Some(layer) => declared(layer)?.backing_name,
            None => Vec::new(),
        };
    }
    Ok(ImageInfo {
        chain: Some(below),
        data_file: Some(top.data_file_name),
        snapshots: Some(top.snapshots),
        bitmaps: Some(top.bitmaps),
    })
}

/// Checks the image at the top of `chain`. There is no answer for a format without a check, and for a qcow2 image whose
/// check would take more than the bounds allow.
pub(super) fn check(chain: &Chain) -> Answer<CheckCounts> {
    let Some(top) = chain.layers().first() else { return Err(EngineError::NoAnswer) };
    if top.format == ImageFormat::Qcow2 {
        return check_qcow2(top);
    }
    let mut errors = 0;
    match walkers::check(top.format, &top.borrowed(), &mut |_| errors += 1) {
        None => return Err(EngineError::NoAnswer),
        Some(Ok(())) => {}
        // The check of grains ends at its first fault.
        Some(Err(MapError::Grain { .. })) => errors = 1,
        Some(Err(error)) => return Err(error.into()),
    }
    Ok(CheckCounts { errors, leaks: 0 })
}

fn check_qcow2(layer: &ChainLayer) -> Answer<CheckCounts> {
    let image = BoundedReads::new(&layer.image, MAX_CHECKED_BYTES);
    match walkers::check_qcow2(&image, MAX_CHECKED, &mut |_| {}) {
        Ok(checked) => {
            let found = checked.findings;
            // An image with as many errors is corrupt, too.
            let errors = found.corruptions.saturating_add(found.check_errors);
            Ok(CheckCounts { errors, leaks: found.leaks })
        }
        Err(MapError::TooLarge(_)) => Err(EngineError::NoAnswer),
        Err(_) if image.is_exhausted() => Err(EngineError::NoAnswer),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::offsets::HostOffset;
    use crate::harness::{Harness, Walker};
    use crate::images::image::Image;
    use crate::programs::text::assemble;

    /// The host offset of the L1 table's host offset in a qcow2 header.
    const L1_OFFSET_AT: HostOffset = HostOffset::new(40);
    /// The number of entries in the L1 table of [`image`].
    const L1_ENTRIES: usize = 1 << 15;

    /// Returns an image of 1 GiB with clusters of 512 bytes, the first of which is written.
    fn image() -> Image {
        let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=1<<30+0 rng_seed=0 \
                    blocks=append table=append tolerance=0\nwrite at=start+0 clusters=1";
        let mut harness = Harness::new(Walker::default());
        harness.build(&assemble(text).unwrap().encode()).clone()
    }

    fn checked(image: Image) -> Answer<CheckCounts> {
        check(&Chain::alone(image))
    }

    #[test]
    fn a_check_counts_errors_and_leaks() {
        let (mut errors, mut leaks) = (image(), image());
        assert_eq!(checked(image()).unwrap(), CheckCounts::default());
        // A second entry names the first L2 table, which has one reference on disk.
        let l1 = HostOffset::new(errors.number(L1_OFFSET_AT, 8));
        let l2 = errors.number(l1, 8);
        errors.overwrite(l1 + 8, &l2.to_be_bytes());
        assert!(checked(errors).unwrap().errors > 0);
        // The table loses its reference.
        leaks.overwrite(l1, &0u64.to_be_bytes());
        assert_eq!(checked(leaks).unwrap(), CheckCounts { errors: 0, leaks: 2 });
    }

    #[test]
    fn a_table_that_is_named_again_and_again_has_no_answer() {
        let mut image = image();
        let l1 = HostOffset::new(image.number(L1_OFFSET_AT, 8));
        let l2 = image.number(l1, 8).to_be_bytes();
        image.overwrite(l1, &l2.repeat(L1_ENTRIES));
        assert!(matches!(checked(image), Err(EngineError::NoAnswer)));
    }
}
