//! Passes the requests of a program to an open disk, and reads the disk around what they changed. Another engine may
//! carry them out, too, without a verdict.

#[cfg(feature = "fuzzer")]
use crate::base::features::{Feature, FeatureSet};
use crate::disk::observer::{Event, Observer, State};
#[cfg(feature = "fuzzer")]
use crate::harness::cases::case::Case;
use crate::harness::cases::case::Verdicts;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::tested::TestedDisk;
#[cfg(feature = "fuzzer")]
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Answer, EngineError, Request};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::written::{self, Moment};
use crate::harness::oracles::{self, OracleResult, SetAside, observed};
use crate::programs::WriteRequest;

use super::guest::Cut;
use super::judge::WriterJudge;

impl WriterJudge {
    /// Passes a request to the engine. The guest's disk changes only if the engine has an answer to it.
    pub(super) fn carry_out(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        request: &WriteRequest,
        observer: &dyn Observer,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        if let WriteRequest::Cut { kind, choice } = *request {
            let (files, guest) = (chain.after_cut(kind, choice), self.guest.clone());
            self.cuts.push(Cut { kind, files, guest });
            observer.event(State::Write, Event::Cut);
            return Ok(());
        }
        let (kind, event, done) = match self.pass(disk, request) {
            Some(passed) => passed,
            None => return Ok(()),
        };
        match done {
            Ok(()) => {
                observer.event(State::Write, event);
                self.guest.note(request);
                if *request == WriteRequest::Flush {
                    chain.settle();
                }
                let set_aside = &mut |found| verdicts.set_aside(found);
                let compared = self.compare_edges(request, disk, set_aside);
                verdicts.judge_answer(compared).map(|_| ())
            }
            Err(EngineError::NoAnswer) => Ok(()),
            // Version 2 has no zero clusters, say.
            Err(error @ EngineError::Unsupported(_)) if may_be_unsupported(request) => {
                observed::error(&error, observer);
                Ok(())
            }
            // The engine has closed the image, and the harness could not give it back.
            Err(error @ EngineError::NotGiven(_)) => {
                Err(oracles::unexpected_error("open", "image", &error))
            }
            Err(error) => {
                let found = oracles::unexpected_error("written", kind.oracles().0, &error);
                match request.changed() {
                    // Only bytes may become unknown: after a failed resize, the size is, and with bitmaps their bits.
                    Some(range) if !range.is_empty() && !self.guest.bitmaps.were_there() => {
                        verdicts.set_aside(found)?;
                        self.guest.note_failed(range);
                        Ok(())
                    }
                    _ => Err(found),
                }
            }
        }
    }

    /// Has the engine carry out a request to the open disk. Returns its kind, its event and the answer; `None` if the
    /// request is not passed to an open disk.
    pub(super) fn pass(
        &mut self,
        disk: &mut TestedDisk,
        request: &WriteRequest,
    ) -> Option<(QuestionKind, Event, Answer)> {
        let (event, request) = match *request {
            WriteRequest::Write { guest, length_bytes, content } => {
                let length = length_bytes as usize;
                self.payload.resize(self.payload.len().max(length), 0);
                let bytes = &mut self.payload[..length];
                self.guest.payload(&self.built, (guest, content), bytes);
                (Event::Normal, Request::Write { guest, bytes })
            }
            WriteRequest::WriteZeroes { guest, length_bytes } => {
                (Event::ZeroPlain, Request::WriteZeroes { guest, length_bytes })
            }
            WriteRequest::Discard { guest, length_bytes } => {
                (Event::Unallocated, Request::Discard { guest, length_bytes })
            }
            WriteRequest::Resize { size_bytes } => (Event::Resized, Request::Resize { size_bytes }),
            WriteRequest::TakeSnapshot { .. } => (Event::Snapshot, Request::TakeSnapshot),
            WriteRequest::ApplySnapshot { number } => {
                (Event::SnapshotApplied, Request::ApplySnapshot { index: self.index_of(number) })
            }
            WriteRequest::DeleteSnapshot { number } => {
                (Event::SnapshotDeleted, Request::DeleteSnapshot { index: self.index_of(number) })
            }
            WriteRequest::ChangeBitmap { number, change } => {
                // A request that fits names a bitmap that is there.
                let index = self.guest.bitmaps.index_of(number, change).unwrap_or(u32::MAX);
                (Event::Bitmap, Request::ChangeBitmap { index, change })
            }
            WriteRequest::Flush => (Event::Flushed, Request::Flush),
            WriteRequest::Cut { .. } | WriteRequest::Reopen => return None,
        };
        Some((request.kind(), event, disk.request(&request)))
    }

    /// Returns the index of a snapshot in the table of the image. A request that fits names one that is there.
    fn index_of(&self, number: u32) -> u32 {
        self.guest.snapshots.index_of(number).unwrap_or(u32::MAX)
    }

    /// Reads the open disk around the edges of a request that was carried out, or more of it if that applied a
    /// snapshot. Later requests may hide a mistake there, and the end of the session shows it too late.
    fn compare_edges(
        &mut self,
        request: &WriteRequest,
        disk: &mut TestedDisk,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if matches!(request, WriteRequest::ApplySnapshot { .. }) {
            let read = &mut |at, into: &mut [u8]| disk.read(at, into);
            return self.compare(Moment::Open, read, set_aside);
        }
        let Some(changed) = request.changed() else { return Ok(()) };
        let Self { built, guest, bytes, .. } = self;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let edges = [changed.start, changed.end];
        written::check_edges(read, &guest.over(built), &edges, Moment::Open, bytes, set_aside)
    }
}

/// Reports whether an engine that writes may not support a request for some images.
fn may_be_unsupported(request: &WriteRequest) -> bool {
    use WriteRequest::{
        ApplySnapshot, ChangeBitmap, DeleteSnapshot, Discard, Resize, TakeSnapshot, WriteZeroes,
    };
    matches!(
        request,
        WriteZeroes { .. }
            | Discard { .. }
            | Resize { .. }
            | TakeSnapshot { .. }
            | ApplySnapshot { .. }
            | DeleteSnapshot { .. }
            | ChangeBitmap { .. }
    )
}

#[cfg(feature = "fuzzer")]
impl WriterJudge {
    /// Returns the files of `case` after all requests, on a copy that `engine` writes. There are no power cuts: the
    /// files that an engine closes do not depend on them.
    ///
    /// # Errors
    /// The engine has not carried out a request; or it has no answer to one.
    pub(in crate::harness) fn carry_out_all(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
    ) -> Answer<Chain> {
        self.built.replay(case.journals.iter().copied());
        let has_bitmaps = case.features.meets(FeatureSet::of(&[Feature::Bitmaps]));
        self.guest.begin(&self.built, has_bitmaps.then(|| Chain::new(case.images)));
        let chain = match &case.new_image {
            Some(wanted) => {
                let chain = Chain::empty(case.images, false, &self.meter);
                engine.create(&chain, wanted)?;
                chain.note_closed();
                chain
            }
            None => Chain::writable(case.images, false, &self.meter),
        };
        for session in case.requests.split(|request| *request == WriteRequest::Reopen) {
            let mut disk = engine.open_to_write(&chain)?;
            for request in session {
                if self.guest.fits(request)
                    && let Some((_, _, done)) = self.pass(&mut disk, request)
                {
                    done?;
                    self.guest.note(request);
                }
            }
            disk.close()?;
            chain.note_closed();
            self.guest.settle();
        }
        self.guest.bitmaps.forget();
        Ok(chain.into_written())
    }
}
