//! Compares the answers of two engines about one disk: its size, its extents, its statuses if an engine does not report
//! extents, its bytes, and the reports about the image.
//!
//! Does not compare: statuses, if neither engine reports extents; data beyond the first 4 MiB, and the inside of large
//! holes; the numbers of faults that a check finds; the text of an error.

use std::ops::Range;

use crate::disk::extent::Extent;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::engine::{Answer, EngineError, ErrorKind, ImageInfo};
use crate::harness::oracles::extents::{self, lookup, model};
use crate::harness::oracles::{
    OracleResult, POISON, SetAside, Violation, disagreement, disagreement_with, violation,
};

use super::differences::{self, Other, SECTOR_BYTES, map_field, merged};
use super::second_opinion::{JudgedDisk, WalkEnd, walked};

/// The number of bytes that are read at once.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// The number of extents whose statuses are compared.
const MAX_COMPARED_STATUSES: usize = 64;

/// The buffers for the answers, reused from disk to disk.
#[derive(Debug, Default)]
pub(super) struct DiskBuffers {
    theirs: Vec<Extent>,
    merged: [Vec<Extent>; 2],
    clipped: [Vec<Extent>; 2],
    windows: Vec<Range<u64>>,
    bytes: [Vec<u8>; 2],
}

/// The same disk, as two engines have opened it.
pub(super) struct DiskSides<'p, 'o, 't> {
    pub(super) ours: &'p mut TestedDisk<'o>,
    pub(super) theirs: &'p mut TestedDisk<'t>,
    pub(super) other: Other<'p>,
    /// Nothing is known about the content of the file: an answer and an error are no difference.
    pub(super) is_any_content: bool,
    /// The policy of an engine allows sizes near the one that the image stores.
    pub(super) allows_near_size: bool,
}

impl DiskSides<'_, '_, '_> {
    /// Compares all answers. `judged` has the engine's walk.
    pub(super) fn compare(
        &mut self,
        judged: &JudgedDisk,
        buffers: &mut DiskBuffers,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        self.compare_sizes(set_aside)?;
        self.compare_maps(judged, buffers, set_aside)?;
        self.compare_data(judged.extents, &[], buffers, set_aside)?;
        self.compare_reports(set_aside)
    }

    pub(super) fn compare_sizes(&self, set_aside: &mut SetAside) -> OracleResult {
        let (theirs, ours) = (self.theirs.virtual_size_bytes(), self.ours.virtual_size_bytes());
        if self.allows_near_size && theirs.abs_diff(ours) < SECTOR_BYTES {
            return Ok(());
        }
        self.other.check_size(theirs, ours).or_else(set_aside)
    }

    /// Compares the maps; or the statuses of an engine without a map with the map of the other.
    fn compare_maps(
        &mut self,
        judged: &JudgedDisk,
        buffers: &mut DiskBuffers,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let DiskBuffers { theirs, merged: [meant, found], clipped, .. } = buffers;
        let tiles = |extents: &[Extent], size| extents::check_prefix(extents, &(0..size));
        // An oracle has found extents that do not tile.
        let is_tiled = tiles(judged.extents, judged.size_bytes).is_ok();
        let (other, is_any_content) = (self.other, self.is_any_content);
        // An error about a file of any content is no difference.
        let mut judge_status = |found: Box<Violation>| match found.error_kind() {
            Some(_) if is_any_content => Ok(()),
            _ => set_aside(attributed(found, &other)),
        };
        let maps = self.ours.answers(QuestionKind::Map);
        let (walked, is_cut) = walked(self.theirs, theirs);
        if let Err(EngineError::NoAnswer) = walked {
            return match maps && is_tiled {
                true => {
                    lookup::check(self.theirs, first(judged.extents), |_| true, &mut |mut it| {
                        // The oracle takes the extents for the expected answer.
                        std::mem::swap(&mut it.expected, &mut it.actual);
                        judge_status(it)
                    })
                }
                false => Ok(()),
            };
        }
        if let Err(faulty) = tiles(theirs, self.theirs.virtual_size_bytes()) {
            let kinds = ("extents that do not tile", "a map");
            let detail = format!("{}: {faulty}", self.other.name);
            return set_aside(disagreement(self.other.oracle, "map", kinds, detail));
        }
        if !maps {
            return lookup::check(self.ours, first(theirs), |_| true, &mut judge_status);
        }
        self.compare_ends(WalkEnd::of(&walked, is_cut), judged.walk).or_else(&mut *set_aside)?;
        if !is_tiled {
            return Ok(());
        }
        merged(theirs, |mapping| mapping, meant);
        merged(judged.extents, |mapping| mapping, found);
        model::check_outside(std::iter::empty(), meant, found, clipped, &mut |mut found| {
            found.field = map_field(found.field);
            set_aside(attributed(found, &other))
        })
    }

    /// Compares the ends of both walks.
    fn compare_ends(&self, theirs: WalkEnd, ours: WalkEnd) -> OracleResult {
        match (theirs, ours) {
            _ if self.is_any_content => Ok(()),
            (WalkEnd::Complete, WalkEnd::Failed(error)) => {
                Err(self.other.walks_alone(&error.to_string()))
            }
            (WalkEnd::Failed(error), WalkEnd::Complete) => {
                let (error, kinds) = (error.to_string(), ("an error", "an answer"));
                let detail = format!("the walk of {} ends: {error}", self.other.name);
                Err(disagreement_with(&error, self.other.oracle, "walk", kinds, detail))
            }
            _ => Ok(()),
        }
    }

    /// Compares the bytes of the parts that the plan for `extents` names, and of `more` parts.
    pub(super) fn compare_data(
        &mut self,
        extents: &[Extent],
        more: &[Range<u64>],
        buffers: &mut DiskBuffers,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let DiskBuffers { windows, bytes, .. } = buffers;
        let size_bytes = self.ours.virtual_size_bytes().min(self.theirs.virtual_size_bytes());
        differences::plan_windows(size_bytes, extents, |_| false, windows);
        let on_disk = |part: &Range<u64>| part.start.min(size_bytes)..part.end.min(size_bytes);
        windows.extend(more.iter().map(on_disk));
        for window in windows.iter() {
            for start in window.clone().step_by(READ_CHUNK_BYTES) {
                let length = usize::try_from(window.end.saturating_sub(start));
                let length = length.unwrap_or(READ_CHUNK_BYTES).min(READ_CHUNK_BYTES);
                let [theirs, ours] = &mut *bytes;
                theirs.resize(length, POISON);
                theirs.fill(POISON);
                ours.clone_from(theirs);
                let at = GuestOffset::new(start);
                let read = (self.theirs.read(at, theirs), self.ours.read(at, ours));
                let compared = match read {
                    (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::NoAnswer => {
                        return Ok(());
                    }
                    (Ok(()), Ok(())) => self.compare_bytes(start, [theirs, ours], extents),
                    (Err(_), Err(_)) => Ok(()),
                    _ if self.is_any_content => Ok(()),
                    (Ok(()), Err(_)) => Err(self.other.reads_alone(start, length as u64)),
                    (Err(error), Ok(())) => {
                        Err(self.other.unread(start, extents, &error.to_string()))
                    }
                };
                compared.or_else(&mut *set_aside)?;
            }
        }
        Ok(())
    }

    fn compare_bytes(
        &self,
        start: u64,
        [theirs, ours]: [&[u8]; 2],
        extents: &[Extent],
    ) -> OracleResult {
        if theirs == ours {
            return Ok(());
        }
        match theirs.iter().zip(ours).position(|(theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some(at) => Err(self.other.other_byte(start.saturating_add(at as u64), extents)),
        }
    }

    /// Compares the reports about the image that both engines give.
    fn compare_reports(&mut self, set_aside: &mut SetAside) -> OracleResult {
        if let Some((theirs, ours)) = both(self.theirs.info(), || self.ours.info()) {
            self.compare_info(&theirs, &ours).or_else(&mut *set_aside)?;
        }
        let Some((theirs, ours)) = both(self.theirs.check(), || self.ours.check()) else {
            return Ok(());
        };
        let (expected, actual) = (theirs.result(), ours.result());
        if expected == actual {
            return Ok(());
        }
        let detail = format!("{}: {theirs:?}; the implementation: {ours:?}", self.other.name);
        set_aside(disagreement(self.other.oracle, "check", (expected, actual), detail))
    }

    /// Compares the fields that both engines state.
    fn compare_info(&self, theirs: &ImageInfo, ours: &ImageInfo) -> OracleResult {
        fn differ<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_some_and(|(one, other)| one != other)
        }
        let fields = [
            ("info: files below", differ(theirs.chain.as_ref(), ours.chain.as_ref())),
            ("info: data file", differ(theirs.data_file.as_ref(), ours.data_file.as_ref())),
            ("info: snapshots", differ(theirs.snapshots.as_ref(), ours.snapshots.as_ref())),
            ("info: bitmaps", differ(theirs.bitmaps.as_ref(), ours.bitmaps.as_ref())),
        ];
        let Some((field, _)) = fields.into_iter().find(|(_, differs)| *differs) else {
            return Ok(());
        };
        violation(self.other.oracle, field, (self.other.whose, "different"), || {
            format!("{}: {theirs:?}; the implementation: {ours:?}", self.other.name)
        })
    }
}

fn first(extents: &[Extent]) -> &[Extent] {
    extents.get(..MAX_COMPARED_STATUSES).unwrap_or(extents)
}

/// Returns the answers of both engines, if both answer. The engine is asked only if the other one has answered.
fn both<T>(theirs: Answer<T>, ours: impl FnOnce() -> Answer<T>) -> Option<(T, T)> {
    Some((theirs.ok()?, ours().ok()?))
}

/// Returns the violation of an oracle as a difference from the other engine.
fn attributed(found: Box<Violation>, other: &Other) -> Box<Violation> {
    let mut found = found.attributed_to(other.oracle);
    found.detail = format!("expected: the answer of {}\n{}", other.name, found.detail);
    found
}
