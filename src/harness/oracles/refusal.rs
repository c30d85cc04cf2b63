//! Damage that no reader may read through: if QEMU does not open an image, or does not use a table entry, the engine
//! must not answer with data there, neither with bytes nor with a status or an extent that says data. The engine may
//! refuse when it opens the image, or later, and for any reason. Does not check the reason, extents and statuses that
//! say zeros, the files that an image names, bitmap directories, nor bytes that change during reads.

use std::fmt::Display;
use std::ops::Range;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::status::GuestStatus;
use crate::harness::engine::tested::TestedDisk;
use crate::images::damage::{BrokenRule, Damage, Refusal};

use super::collector::{Collector, Fuel};
use super::{OracleResult, POISON, bounds, partition, violation};

const ORACLE: &str = "refusal";

/// The number of pieces of the disk about which the oracle asks for each refusal.
const MAX_PIECES: usize = 8;
/// The number of extents after which the oracle stops a walk.
const MAX_WALKED: usize = 64;

/// The walks of an image that no reader may read.
pub(super) struct RefusedWalks<'w> {
    pub(super) fuel: Fuel,
    pub(super) extents: &'w mut Vec<Extent>,
    /// The first walk whose extents do not tile its window. The other oracles come before this one.
    pub(super) tiled: OracleResult,
}

/// Checks that the engine does not answer with data where `refusal` says that every reader must refuse. `expected` are
/// the extents of the disk without the damage.
pub(super) fn check(
    disk: &mut TestedDisk,
    refusal: &Refusal,
    damage: &Damage,
    expected: &[Extent],
    walks: &mut RefusedWalks,
) -> OracleResult {
    let size = disk.virtual_size_bytes();
    if refusal.is_of_image() {
        // The damage may have changed the size.
        check_piece(disk, refusal.rule, 0..size, walks)?;
    }
    let pieces = expected.iter().filter(|extent| extent.mapping.depth as usize >= refusal.depth);
    let pieces = pieces.filter_map(|extent| {
        let start = extent.start.get().max(refusal.guest.start);
        let end = extent.end()?.get().min(refusal.guest.end).min(size);
        (start < end).then_some(start..end)
    });
    let meant = |piece: &Range<u64>| !damage.is_touched_above(refusal.depth, piece);
    for piece in pieces.filter(meant).take(MAX_PIECES) {
        if !refusal.is_mapped {
            check_mapping(disk, refusal.rule, &piece, walks)?;
        }
        check_reads(disk, refusal.rule, &piece)?;
    }
    Ok(())
}

/// Checks the answers about a piece of the disk.
pub(super) fn check_piece(
    disk: &mut TestedDisk,
    rule: BrokenRule,
    piece: Range<u64>,
    walks: &mut RefusedWalks,
) -> OracleResult {
    check_mapping(disk, rule, &piece, walks)?;
    check_reads(disk, rule, &piece)
}

/// Returns the violation of an answer about a guest offset.
fn answered(rule: BrokenRule, place: u64, answer: &dyn Display) -> OracleResult {
    violation(ORACLE, rule, ("refused", "an answer"), || {
        format!("guest offset {place}: {answer}, and QEMU refuses: {rule}")
    })
}

/// Checks that no extent and no status of a piece says data.
fn check_mapping(
    disk: &mut TestedDisk,
    rule: BrokenRule,
    piece: &Range<u64>,
    walks: &mut RefusedWalks,
) -> OracleResult {
    if piece.is_empty() {
        return Ok(());
    }
    let length_bytes = piece.end - piece.start;
    let RefusedWalks { fuel, extents, tiled } = walks;
    let mut collector = Collector::new(extents, fuel.steps).stopping_after(MAX_WALKED);
    // An error is an answer that is allowed. The extents that came before it count.
    let window = Window { start: GuestOffset::new(piece.start), length_bytes };
    let is_complete = disk.map(window, &mut collector).is_ok() && !collector.is_stopped();
    bounds::check_steps(collector.exhausted() && fuel.enough, fuel.steps)?;
    if tiled.is_ok() {
        *tiled = match is_complete {
            true => partition::check(extents, piece),
            false => partition::prefix(extents, piece).map(|_| ()),
        };
    }
    if let Some(extent) = extents.iter().find(|extent| extent.mapping.data) {
        return answered(rule, extent.start.get(), extent);
    }
    for place in [piece.start, piece.end - 1] {
        if let Ok(run) = disk.status(GuestOffset::new(place))
            && is_data(&run.status)
        {
            return answered(rule, place, &run);
        }
    }
    Ok(())
}

/// Checks that reads at both edges of a piece fail.
fn check_reads(disk: &mut TestedDisk, rule: BrokenRule, piece: &Range<u64>) -> OracleResult {
    if piece.is_empty() {
        return Ok(());
    }
    let mut bytes = [POISON; 64];
    let count = (piece.end - piece.start).min(bytes.len() as u64);
    for place in [piece.start, piece.end - count] {
        if disk.read(GuestOffset::new(place), &mut bytes[..count as usize]).is_ok() {
            return answered(rule, place, &format_args!("{count} bytes"));
        }
    }
    Ok(())
}

/// Reports whether a status says data.
fn is_data(status: &GuestStatus) -> bool {
    match status {
        GuestStatus::Exact(mapping) => mapping.data,
        GuestStatus::Data(_) | GuestStatus::Compressed | GuestStatus::Stored => true,
        GuestStatus::Zeros(_) | GuestStatus::Hole | GuestStatus::Below => false,
    }
}
