//! Compares our answers about an image with qemu-img's.

use crate::prelude::*;

use qcowfuzz::internal::harness::oracles::qcow2::recount::{Recount, RefcountFault};
use qcowfuzz::walkers;
use qcowfuzz::walkers::MapError;

use super::{Checked, Findings};

/// Returns all extents that our walker emits for `window`.
pub fn walk<S: Storage + ?Sized>(
    chain: &[Layer<S>],
    window: Window,
) -> Result<Vec<Extent>, MapError> {
    walk_disk(&Disk::open(chain)?, window)
}

fn walk_disk<S: Storage + ?Sized>(disk: &Disk<S>, window: Window) -> Result<Vec<Extent>, MapError> {
    let mut extents = Vec::new();
    let mut keep = |extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    };
    walkers::map_extents(disk, window, &mut WalkScratch::new(), &mut keep)?;
    Ok(extents)
}

/// Returns the bytes that a guest reads in `window`, by our reader.
pub fn read<S: Storage + ?Sized>(chain: &[Layer<S>], window: Window) -> Checked<Vec<u8>> {
    let described = |error| format!("our read of {window:?}: {error}");
    let disk = Disk::open(chain).map_err(described)?;
    let mut bytes = vec![0xA5; window.length_bytes as usize];
    walkers::read(&disk, window.start, &mut bytes, &mut WalkScratch::new()).map_err(described)?;
    Ok(bytes)
}

/// Compares every field of our walk of `chain`, the image at `path` and the layers below it, with qemu-img's. Data in
/// holes of the files are zeros, too, as far as the storages know holes. All of a VHDX layer is data. Returns the
/// extents.
pub fn maps(path: &Path, chain: &[Layer], window: Window) -> Checked<Vec<Extent>> {
    let theirs = super::map(path, window)?;
    let disk = Disk::open(chain).map_err(|error| format!("our open: {error}"))?;
    let ours = walk_disk(&disk.with_host_holes().as_qemu_reports(), window);
    same_extents(window, ours, &theirs)?;
    Ok(theirs)
}

/// Compares our extents of a window with those of qemu-img.
pub fn same_extents(
    window: Window,
    ours: Result<Vec<Extent>, MapError>,
    theirs: &[Extent],
) -> Checked<()> {
    let ours = ours.map_err(|error| format!("our walk: {error}"))?;
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("{window:?}: {}", first_difference(&ours, theirs))),
    }
}

pub fn first_difference(ours: &[Extent], theirs: &[Extent]) -> String {
    let same = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let (one, other) = (ours.get(same), theirs.get(same));
    let counts = (ours.len(), theirs.len());
    format!("extent {same} of {counts:?}:\nours   {one:?}\ntheirs {other:?}")
}

/// Describes the first difference of two contents.
pub fn same_bytes(what: &str, start: u64, ours: &[u8], theirs: &[u8]) -> Checked<()> {
    if ours == theirs {
        return Ok(());
    }
    let at = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let end = |bytes: &[u8]| bytes.len().min(at + 16);
    Err(format!(
        "{what}: guest offset {}: ours {:02x?}, theirs {:02x?} (lengths {} and {})",
        start + at as u64,
        &ours[at..end(ours)],
        &theirs[at..end(theirs)],
        ours.len(),
        theirs.len()
    ))
}

/// The result of our recount.
pub struct Recounted {
    /// The findings in the categories of qemu-img check.
    pub findings: Findings,
    /// The number of clusters that contain two structures, which qemu-img check does not detect.
    pub overlaps: u64,
    /// All reports.
    pub printed: String,
}

/// Recounts the image in `storage`.
pub fn recount(storage: &dyn Storage) -> Checked<Recounted> {
    let mut recount = Recount::new();
    let reports = recount.recount(storage).map_err(|error| format!("our recount: {error}"))?;
    let (mut findings, mut overlaps) = (Findings::default(), 0);
    for report in reports {
        match report.finding {
            RefcountFault::Leak => findings.leaks += report.clusters,
            RefcountFault::Corruption | RefcountFault::Copied => {
                findings.corruptions += report.clusters
            }
            RefcountFault::Overlap => overlaps += report.clusters,
        }
    }
    let printed = format!("{reports:?}");
    let head = Head::read(storage).described()?;
    let cluster_size = head.header.geometry.cluster_size;
    let end = recount.occupied().last().map_or(0, |occupied| occupied.end);
    findings.image_end_offset = cluster_size.saturating_bytes(end);
    Ok(Recounted { findings, overlaps, printed })
}

/// Compares our recounts of the image at `path`, which all `storages` contain, with qemu-img check. Returns the result
/// and the messages of qemu-img.
pub fn counts(path: &Path, storages: &[&dyn Storage]) -> Checked<(Findings, String)> {
    let (theirs, said) = super::check(path)?;
    for storage in storages {
        let Recounted { findings, overlaps, printed } = recount(*storage)?;
        if findings != theirs || overlaps != 0 {
            let both = format!("our recount: {findings:?}, qemu-img check {theirs:?}");
            return Err(format!("{}: {both}\n{printed}\n{said}", path.display()));
        }
    }
    Ok((theirs, said))
}

/// Returns windows that begin and end on edges of `extents`, a few bytes beside them, in their middle, or past the end.
/// None is longer than `most` bytes.
pub fn windows(entropy: &mut Entropy, extents: &[Extent], most: u64, count: usize) -> Vec<Window> {
    let size = extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
    let mut point = || {
        let edge = match extents.get(entropy.below(extents.len() as u64 + 1) as usize) {
            Some(extent) => extent.start.get(),
            None => size,
        };
        match entropy.below(4) {
            0 => edge,
            1 => edge.saturating_sub(entropy.below(700)),
            2 => edge + entropy.below(70_000),
            _ => entropy.below(size + size / 16 + 1),
        }
    };
    let window = |_| {
        let (one, other) = (point(), point());
        let start = GuestOffset::new(one.min(other));
        Window { start, length_bytes: one.abs_diff(other).min(most) }
    };
    (0..count).map(window).collect()
}
