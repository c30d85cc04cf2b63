//! Compares the data of disks that are too large to be compared whole: around the ends of extents.

use std::collections::BTreeSet;
use std::path::Path;

use qcowfuzz::disk::extent::{Extent, Window};
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::disk::storage::FileStorage;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::walkers::{self, Disk, WalkScratch};

use crate::qemu::{self, Checked, compare};
use crate::tally::Tally;

/// The number of parts of a disk, and their length: qemu-io reads all of them in one process.
const PARTS: usize = 24;
const PART_BYTES: u64 = 700;

/// Compares our reads with those of qemu-io. `disk` has these extents. VHDX images have a comparison of their own,
/// which knows the blocks.
pub fn compare(
    format: ImageFormat,
    path: &Path,
    (disk, extents): (&Disk<FileStorage>, &[Extent]),
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    if format == ImageFormat::Vhdx {
        return Ok(());
    }
    // QEMU may be unable to read some of a damaged disk, and prints nothing then. So each read stands alone.
    let windows = windows(disk.virtual_size_bytes(), extents, entropy);
    let (mut ours, mut readable) = (vec![0xA5; PART_BYTES as usize], Vec::new());
    for window in windows {
        let part = &mut ours[..window.length_bytes as usize];
        match walkers::read(disk, window.start, part, &mut WalkScratch::new()) {
            Ok(()) => readable.push((window, part.to_vec())),
            Err(error) => {
                let alone = qemu::read_with(path, format.name(), &[window]);
                if alone.is_ok() {
                    return Err(format!("qemu-io reads {window:?}, and we do not: {error}"));
                }
                tally.add("parts of disks that cannot be read", 1);
            }
        }
    }
    let windows: Vec<Window> = readable.iter().map(|(window, _)| *window).collect();
    if windows.is_empty() {
        return Ok(());
    }
    for ((window, ours), theirs) in
        readable.iter().zip(qemu::read_with(path, format.name(), &windows)?)
    {
        compare::same_bytes("our read", window.start.get(), ours, &theirs)?;
    }
    tally.add("parts of disks", windows.len() as u64);
    Ok(())
}

/// Returns parts of a disk, each with an end of an extent in its middle. Those of data come first.
fn windows(size: u64, extents: &[Extent], entropy: &mut Entropy) -> Vec<Window> {
    let mut edges = BTreeSet::new();
    let (data, zeros): (Vec<&Extent>, Vec<_>) = extents.iter().partition(|it| it.mapping.data);
    let chosen = |from: &[&Extent], entropy: &mut Entropy| {
        let extent = from.get(entropy.below(from.len() as u64) as usize);
        extent.map(|it| [it.start, it.start + (it.length_bytes - 1)])
    };
    for from in [data, zeros] {
        for _ in 0..if from.is_empty() { 0 } else { PARTS / 4 } {
            edges.extend(chosen(&from, entropy).into_iter().flatten());
        }
    }
    let window = |edge: GuestOffset| {
        let start = edge.get().saturating_sub(PART_BYTES / 2);
        Window { start: GuestOffset::new(start), length_bytes: PART_BYTES.min(size - start) }
    };
    edges.into_iter().map(window).collect()
}
