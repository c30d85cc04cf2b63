//! Has an engine carry out requests that are in flight together, and judges what its reads have seen and what the
//! requests have left. An engine that has no answer to that carries them out one after the other.
//!
//! Each request must end: an engine that leaves one in flight, or lets requests wait for each other, has a finding.
//! The bytes that a read may see, and those that are there at the end, are those of [`super::flown`].
//!
//! Does not check: two reads of one byte against each other.

use crate::disk::offsets::GuestOffset;
use crate::harness::cases::target::CaseRun;
use crate::harness::engine::Answer;
use crate::harness::engine::EngineError;
use crate::harness::engine::flights::{FlightEvent, FlightRequest, Flights};
use crate::harness::engine::tested::TestedDisk;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::written::{DiskReader, Moment};
use crate::harness::oracles::{self, OracleResult};
use crate::programs::WriteRequest;
use crate::programs::request::Schedule;

use super::WriterJudge;
use super::changed_disk::ChangedDisk;
use super::faults::exposed;
use super::flown::{self, Flown};
use super::requests::{asked, kind_of};
use super::state::whole_clusters;

/// The course of a request in flight. Moments are counts of events.
#[derive(Debug, Default)]
struct FlightCourse {
    begin: usize,
    end: usize,
    answer: Option<Answer>,
}

impl WriterJudge {
    /// Carries out all requests of a session, alone or together.
    pub(super) fn carry_out_session(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        requests: &[WriteRequest],
        run: &mut CaseRun,
    ) -> OracleResult {
        let mut rest = requests;
        while let Some((request, behind)) = rest.split_first() {
            rest = behind;
            if let WriteRequest::InFlight(schedule) = request {
                let (together, behind) = schedule.split(behind);
                self.carry_out_together((chain, disk), (schedule, together), run)?;
                rest = behind;
            } else if self.guest.fits(request) && !self.faults.is_lost {
                // The program expects all requests before to be carried out. The engine may lack one.
                self.carry_out((chain, disk), request, run)?;
            }
        }
        self.explored.note(chain);
        Ok(())
    }

    /// Carries out requests that are in flight together.
    fn carry_out_together(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        (schedule, requests): (&Schedule, &[WriteRequest]),
        run: &mut CaseRun,
    ) -> OracleResult {
        if self.faults.is_lost {
            return Ok(());
        }
        let size_bytes = self.guest.size_bytes();
        let fitting = requests.iter().filter(|request| self.guest.fits(request));
        let numbered = (self.guest.requests()..).zip(fitting);
        let requests: Vec<_> = numbered
            .map(|(number, it)| it.in_flight(number, disk.sector_bytes(), size_bytes))
            .collect();
        let mut bytes = std::mem::take(&mut self.flight_bytes);
        let flown = self.fly((chain, disk), (schedule, &requests), &mut bytes, run);
        let judged = match flown {
            // A failed request may have changed more than bytes.
            Ok(Some(_)) if self.faults.is_lost => Ok(()),
            Ok(Some(flown)) => self.judge_flown(disk, &flown, &bytes, run),
            Ok(None) => requests.iter().try_for_each(|it| match self.faults.is_lost {
                true => Ok(()),
                false => self.carry_out((chain, disk), it, run),
            }),
            Err(found) => Err(found),
        };
        self.flight_bytes = bytes;
        judged
    }

    /// Has the engine carry out the requests. `bytes` are those that it writes and has read. Returns `None` if the
    /// engine carries out one request after the other.
    fn fly(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        (schedule, requests): (&Schedule, &[WriteRequest]),
        bytes: &mut Vec<Vec<u8>>,
        run: &mut CaseRun,
    ) -> OracleResult<Option<Vec<Flown>>> {
        bytes.resize_with(bytes.len().max(requests.len()), Vec::new);
        let Self { built, guest: disk_now, .. } = &*self;
        for (request, bytes) in (1..).zip(requests).zip(&mut *bytes) {
            disk_now.fill(built, request, bytes);
        }
        let in_flight = requests.iter().zip(&mut *bytes).filter_map(|(request, bytes)| {
            Some(match *request {
                WriteRequest::Read { guest, .. } => FlightRequest::Read { guest, into: bytes },
                _ => FlightRequest::Change(asked(disk_now, request, bytes)?),
            })
        });
        let mut courses: Vec<_> = requests.iter().map(|_| FlightCourse::default()).collect();
        let mut events = 0;
        let mut note = |event| {
            events += 1;
            match event {
                FlightEvent::Begun(index) => courses[index].begin = events,
                FlightEvent::Ended(index, answer) => {
                    if requests[index] == WriteRequest::Flush && answer.is_ok() {
                        chain.settle();
                    }
                    courses[index].end = events;
                    courses[index].answer = Some(answer);
                }
            }
        };
        let flights = Flights::new(in_flight.collect(), schedule, chain.turns(), &mut note);
        let flies = exposed(chain, || disk.in_flight(flights));
        self.note_faults(chain, run.verdicts);
        self.explored.note_flight(chain, requests);
        match flies {
            Ok(()) => {}
            Err(EngineError::NoAnswer) => return Ok(None),
            Err(error) => {
                // One of them may be the end of the process.
                for (request, course) in requests.iter().zip(courses) {
                    let _ =
                        course.answer.map(|it| disk.note_flown(kind_of(&self.guest, request), it));
                }
                return Err(oracles::unexpected_error("written", "in flight", &error));
            }
        }
        let mut flown = Vec::with_capacity(requests.len());
        for (nth, FlightCourse { begin, end, answer }) in (1..).zip(courses) {
            let request = &requests[flown.len()];
            let unanswered = || Err(EngineError::untyped("a request in flight that has not ended"));
            let answer =
                disk.note_flown(kind_of(&self.guest, request), answer.unwrap_or_else(unanswered));
            let result = self.result_of(request, answer, run)?;
            let change = self.guest.change_of((nth, request));
            flown.push(Flown { request: *request, change, begin, end, result });
        }
        Ok(Some(flown))
    }

    /// Compares the bytes of each read, notes the changes, and reads the disk around their edges. After a known
    /// finding, all bytes that the requests may have changed become unknown: later findings there would have the same
    /// cause.
    fn judge_flown(
        &mut self,
        disk: &mut TestedDisk,
        flown: &[Flown],
        bytes: &[Vec<u8>],
        run: &mut CaseRun,
    ) -> OracleResult {
        let mut has_known = false;
        for (one, bytes) in flown.iter().zip(bytes) {
            if one.is_done() {
                self.observe(&one.request, run);
                has_known |= self.judge_read(one, flown, bytes, run)?;
            }
        }
        self.guest.note_in_flight(flown);
        for one in flown.iter().filter(|it| it.is_done()) {
            let set_aside = &mut |found| {
                has_known = true;
                run.verdicts.set_aside(found)
            };
            let compared = self.compare_edges(&one.request, disk, Moment::InFlight, set_aside);
            run.verdicts.judge_answer(self.excused(compared))?;
        }
        if has_known {
            // A fault in one part of a cluster may damage all of it.
            let cluster_bytes = self.built.cluster_bytes();
            for range in flown.iter().filter_map(Flown::changed) {
                self.guest.note_unknown(whole_clusters(&range, cluster_bytes));
            }
        }
        Ok(())
    }

    /// Compares the bytes that a read in flight has seen. Returns true if they have a known finding.
    fn judge_read(
        &mut self,
        one: &Flown,
        flown: &[Flown],
        bytes: &[u8],
        run: &mut CaseRun,
    ) -> OracleResult<bool> {
        let WriteRequest::Read { guest: start, .. } = one.request else { return Ok(false) };
        let Some(range) = one.request.read() else { return Ok(false) };
        let mut seen = self.guest.state().clone();
        flown::apply(&mut seen, flown, (one.begin, one.end), |_| false);
        let Self { built, bytes: buffers, .. } = self;
        let read = &mut |at: GuestOffset, into: &mut [u8]| {
            let first = at.get().saturating_sub(start.get()) as usize;
            let there = first..first.saturating_add(into.len());
            if let Some(there) = bytes.get(there) {
                into.copy_from_slice(there);
            }
            Ok(())
        };
        let disk = &ChangedDisk::new(&seen, built);
        let mut reader = DiskReader { read, disk, moment: Moment::InFlight, buffers };
        let mut has_known = false;
        reader.check_range(range, &mut |found| {
            has_known = true;
            run.verdicts.set_aside(found)
        })?;
        Ok(has_known)
    }
}
