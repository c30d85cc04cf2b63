//! Two oracles for parts of a damaged image. About the other parts, the harness knows only that each call must end.
//!
//! `refusal`: damage for which every reader must refuse. If QEMU does not open an image, or does not use a table entry,
//! the engine must not answer with data there, neither with bytes nor with a status or an extent that says data. The
//! engine may refuse when it opens the image, or later, and for any reason. Does not check the reason, extents and
//! statuses that say zeros, the files that an image names, bitmap directories, nor bytes that change during reads.
//!
//! `hostile`: in the parts that no attack has touched, the engine reads the data of the model. If it has not walked the
//! disk, its statuses are those of the model, too. An engine may refuse to answer. Does not check compressed data,
//! whose payloads a program of the target may damage when it writes them; data of an image that has lost its end, or
//! whose bytes change during reads; nor more than some dozens of places.

use std::fmt::Display;
use std::ops::Range;

use smallvec::SmallVec;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::EngineQuestion;
use crate::harness::engine::status::GuestStatus;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::model::Model;
use crate::harness::oracles::bounds::{self, Collector, Fuel};
use crate::harness::oracles::data::edges::{EdgeRead, each_edge};
use crate::harness::oracles::extents::{self, lookup};
use crate::harness::oracles::{
    Oracle, OracleResult, POISON, SetAside, Violation, go_on, violation_at,
};
use crate::images::damage::{BrokenRule, Damage, Refusal};

const REFUSAL: &str = "refusal";

/// The number of pieces of the disk about which the oracle asks for each refusal.
const MAX_PIECES: usize = 8;
/// The number of extents after which the oracle stops a walk.
const MAX_WALKED: usize = 64;

/// The walks of an image that no reader may read.
pub(super) struct RefusedWalks<'w> {
    pub(super) fuel: Fuel,
    pub(super) extents: &'w mut Vec<Extent>,
    /// The violation of the first walk whose extents do not tile its window. The oracle reports it after any violation
    /// of the answers themselves.
    pub(super) tiled: OracleResult,
}

/// Checks that the engine does not answer with data where `refusal` says that every reader must refuse. `expected` are
/// the extents of the disk without the damage.
pub(super) fn check_refused(
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
    violation_at(GuestOffset::new(place), REFUSAL, rule, ("refused", "an answer"), || {
        format!("{answer}, and QEMU refuses: {rule}")
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
            true => extents::check_partition(extents, piece),
            false => extents::check_prefix(extents, piece).map(|_| ()),
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

const UNTOUCHED: Oracle = Oracle::drawn("hostile");

/// The largest number of places of each kind about which the oracle asks.
const MAX_UNTOUCHED_PLACES: usize = 64;

/// The disk without the damage, and the ranges that the damage has touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched<'a> {
    pub(crate) model: &'a Model,
    /// The extents of the disk.
    pub(crate) expected: &'a [Extent],
    /// The guest ranges, in order of their beginnings.
    pub(crate) touched: &'a [Range<u64>],
    /// The files have all their data.
    pub(crate) has_data: bool,
}

impl<'a> Untouched<'a> {
    /// Judges the engine's answers at the edges of extents and of data. If `is_walked`, other oracles judge statuses.
    pub(crate) fn check(
        self,
        disk: &mut TestedDisk,
        is_walked: bool,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let set_aside = &mut |found: Box<Violation>| match found.error_kind() {
            // The damage may end all answers.
            Some(_) => Ok(()),
            None => set_aside(found.attributed_to(UNTOUCHED)),
        };
        if !is_walked {
            for (guest, rest) in self.statuses() {
                let until = self.untouched_until(guest.get());
                if go_on(lookup::check_byte(disk, guest, rest, until), set_aside)?.is_break() {
                    break;
                }
            }
        }
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        for edge in self.reads() {
            if go_on(edge.check(read, self.model), set_aside)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Adds the questions of [`Untouched::check`] to `plan`.
    pub(crate) fn plan(self, is_walked: bool, plan: &mut Vec<EngineQuestion>) {
        if !is_walked {
            plan.extend(self.statuses().map(|(guest, _)| EngineQuestion::Status(guest)));
        }
        plan.extend(self.reads().into_iter().map(EdgeRead::question));
    }

    /// Returns the guest offsets whose status is known, each with the extents from there on.
    fn statuses(self) -> impl Iterator<Item = (GuestOffset, &'a [Extent])> {
        let edges = lookup::edges(self.expected, |_| true);
        edges.filter(move |(guest, _)| self.is_untouched(guest.get(), 1)).take(MAX_UNTOUCHED_PLACES)
    }

    /// Returns the first reads whose data are known.
    fn reads(self) -> SmallVec<[EdgeRead<'a>; MAX_UNTOUCHED_PLACES]> {
        let is_known = |edge: &EdgeRead| {
            let (start, length) = edge.range();
            !edge.is_compressed() && self.is_untouched(start.get(), length as u64)
        };
        let mut reads = SmallVec::new();
        if self.has_data {
            each_edge(
                self.model,
                |_| true,
                |edge| {
                    if reads.len() < MAX_UNTOUCHED_PLACES && is_known(&edge) {
                        reads.push(edge);
                    }
                },
            );
        }
        reads
    }

    /// Reports whether no touched range has one of these bytes.
    fn is_untouched(self, start: u64, length_bytes: u64) -> bool {
        let end = start.saturating_add(length_bytes);
        let reaches = |range: &&Range<u64>| range.start < end && start < range.end;
        self.touched.iter().find(reaches).is_none()
    }

    /// Returns the end of the untouched range that begins at an untouched byte.
    fn untouched_until(self, guest: u64) -> u64 {
        let behind = self.touched.iter().map(|range| range.start).filter(|start| *start > guest);
        behind.min().unwrap_or(u64::MAX)
    }
}
