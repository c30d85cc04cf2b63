//! The parts of a damaged image that no attack has touched: the engine's data there are those of the model, and so are
//! its statuses, if it has not walked the disk. An engine may refuse to answer. Does not check compressed
//! data, whose payloads a program of the target may damage when it writes them; data of an image that has lost its end,
//! or whose bytes change during reads; nor more than some dozens of places.

use std::ops::{ControlFlow, Range};

use crate::disk::extent::Extent;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::EngineQuestion;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::model::Model;
use crate::harness::oracles::data::edges::{EdgeRead, each_edge};
use crate::harness::oracles::{Oracle, OracleResult, SetAside, Violation, go_on, lookup};

const ORACLE: Oracle = Oracle::drawn("hostile");

/// The largest number of places of each kind about which the oracle asks.
const MAX_PLACES: usize = 64;

/// The disk without the damage, and the ranges that the damage has touched.
#[derive(Clone, Copy, Debug)]
pub(in crate::harness::oracles) struct Untouched<'a> {
    pub(in crate::harness::oracles) model: &'a Model,
    /// The extents of the disk.
    pub(in crate::harness::oracles) expected: &'a [Extent],
    /// The guest ranges, in order of their beginnings.
    pub(in crate::harness::oracles) touched: &'a [Range<u64>],
    /// The files have all their data.
    pub(in crate::harness::oracles) has_data: bool,
}

impl<'a> Untouched<'a> {
    /// Judges the engine's answers at the edges of extents and of data. If `is_walked`, other oracles judge statuses.
    pub(in crate::harness::oracles) fn check(
        self,
        disk: &mut TestedDisk,
        is_walked: bool,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let set_aside = &mut |found: Box<Violation>| match found.error_kind() {
            // The damage may end all answers.
            Some(_) => Ok(()),
            None => set_aside(found.attributed_to(ORACLE)),
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
        self.each_read(&mut |edge| go_on(edge.check(read, self.model), set_aside)).map(|_| ())
    }

    /// Adds the questions of [`Untouched::check`] to `plan`.
    pub(in crate::harness::oracles) fn plan(self, is_walked: bool, plan: &mut Vec<EngineQuestion>) {
        if !is_walked {
            plan.extend(self.statuses().map(|(guest, _)| EngineQuestion::Status(guest)));
        }
        // To add a question is no violation.
        let _: Result<_, ()> = self.each_read(&mut |edge| {
            let (start, length) = edge.range();
            plan.push(EngineQuestion::Read(start, length));
            Ok(ControlFlow::Continue(()))
        });
    }

    /// Returns the bytes whose status is known, and the extents from there on.
    fn statuses(self) -> impl Iterator<Item = (GuestOffset, &'a [Extent])> {
        let edges = lookup::edges(self.expected, |_| true);
        edges.filter(move |(guest, _)| self.is_untouched(guest.get(), 1)).take(MAX_PLACES)
    }

    /// Calls `visit` with the reads whose data are known.
    fn each_read<E>(
        self,
        visit: &mut impl FnMut(EdgeRead<'a>) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        if !self.has_data {
            return Ok(ControlFlow::Continue(()));
        }
        let mut left = MAX_PLACES;
        each_edge(self.model, |_| true, &mut |edge| {
            let (start, length) = edge.range();
            let is_known = !edge.is_compressed() && self.is_untouched(start.get(), length as u64);
            if left == 0 || !is_known {
                return Ok(ControlFlow::Continue(()));
            }
            left -= 1;
            visit(edge)
        })
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
