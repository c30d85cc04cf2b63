//! Passes the requests of a program to an open disk, and reads the disk around what they changed.

use crate::disk::observer::{Event, Observer, State};
use crate::harness::chain::Chain;
use crate::harness::engine::{Answer, EngineError, OpenDisk};
use crate::harness::idle::QuestionKind;
use crate::harness::oracles::written::{self, Moment};
use crate::harness::oracles::{self, OracleResult, observed};
use crate::harness::verdicts::Verdicts;
use crate::programs::WriteRequest;

use super::cut::Cut;
use super::judge::WriterJudge;

impl WriterJudge {
    /// Passes a request to the engine. The guest's disk changes only if the engine has an answer to it.
    pub(super) fn carry_out<O: Observer>(
        &mut self,
        (chain, disk): (&Chain, &mut impl OpenDisk),
        request: &WriteRequest,
        observer: &O,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        if let WriteRequest::Cut { kind, choice } = *request {
            let (files, guest) = (chain.after_cut(kind, choice), self.guest.clone());
            self.cuts.push(Cut { kind, files, guest });
            observer.event(State::Write, Event::Cut);
            return Ok(());
        }
        let (kind, event, done) = self.pass(disk, request);
        match done {
            Ok(()) => {
                observer.event(State::Write, event);
                self.guest.note(request);
                if *request == WriteRequest::Flush {
                    chain.settle();
                }
                let read = self.compare_edges(request, disk);
                verdicts.judge_answers(QuestionKind::Read, read).map(|_| ())
            }
            Err(EngineError::NotAsked) => {
                verdicts.leave_unanswered(kind);
                Ok(())
            }
            // Version 2 has no zero clusters, say.
            Err(error @ EngineError::Unsupported(_)) if may_be_unsupported(request) => {
                observed::error(&error, observer);
                verdicts.leave_unanswered(kind);
                Ok(())
            }
            // The engine has closed the image, and the harness could not give it back.
            Err(error @ EngineError::NotGiven(_)) => {
                Err(oracles::unexpected_error("open", "image", &error))
            }
            Err(error) => Err(oracles::unexpected_error("written", kind.oracles().0, &error)),
        }
    }

    /// Has the engine carry out a request to the open disk. Returns its kind, its event and the answer.
    fn pass(
        &mut self,
        disk: &mut impl OpenDisk,
        request: &WriteRequest,
    ) -> (QuestionKind, Event, Answer) {
        match *request {
            WriteRequest::Write { guest, length_bytes } => {
                let length = length_bytes as usize;
                self.payload.resize(self.payload.len().max(length), 0);
                let payload = &mut self.payload[..length];
                self.guest.payload(guest, payload);
                (QuestionKind::Writing, Event::Normal, disk.write(guest, payload))
            }
            WriteRequest::WriteZeroes { guest, length_bytes } => {
                let done = disk.write_zeroes(guest, length_bytes);
                (QuestionKind::WriteZeroes, Event::ZeroPlain, done)
            }
            WriteRequest::Discard { guest, length_bytes } => {
                (QuestionKind::Discard, Event::Unallocated, disk.discard(guest, length_bytes))
            }
            WriteRequest::Resize { size_bytes } => {
                (QuestionKind::Resize, Event::Resized, disk.resize(size_bytes))
            }
            WriteRequest::TakeSnapshot { .. } => {
                (QuestionKind::TakeSnapshot, Event::Snapshot, disk.take_snapshot())
            }
            WriteRequest::ApplySnapshot { number } => {
                let done = disk.apply_snapshot(self.index_of(number));
                (QuestionKind::ApplySnapshot, Event::SnapshotApplied, done)
            }
            WriteRequest::DeleteSnapshot { number } => {
                let done = disk.delete_snapshot(self.index_of(number));
                (QuestionKind::DeleteSnapshot, Event::SnapshotDeleted, done)
            }
            WriteRequest::ChangeBitmap { number, change } => {
                // A request that fits names a bitmap that is there.
                let index = self.guest.bitmaps.index_of(number, change).unwrap_or(u32::MAX);
                let done = disk.change_bitmap(index, change);
                (QuestionKind::ChangeBitmap, Event::Bitmap, done)
            }
            WriteRequest::Flush => (QuestionKind::Flush, Event::Flushed, disk.flush()),
            // Neither is passed to an open disk.
            WriteRequest::Cut { .. } | WriteRequest::Reopen => {
                (QuestionKind::Writing, Event::Cut, Err(EngineError::NotAsked))
            }
        }
    }

    /// Returns the index of a snapshot in the table of the image. A request that fits names one that is there.
    fn index_of(&self, number: u32) -> u32 {
        self.guest.snapshots.index_of(number).unwrap_or(u32::MAX)
    }

    /// Reads the open disk around the edges of a request that was carried out, or more of it if that applied a
    /// snapshot. Later requests may hide a mistake there, and the end of the session shows it too late.
    fn compare_edges(&mut self, request: &WriteRequest, disk: &mut impl OpenDisk) -> OracleResult {
        if matches!(request, WriteRequest::ApplySnapshot { .. }) {
            return self.compare(Moment::Open, &mut |at, into: &mut [u8]| disk.read(at, into));
        }
        let Some(changed) = request.changed() else { return Ok(()) };
        let Self { built, guest, bytes, .. } = self;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let edges = [changed.start, changed.end];
        written::check_edges(read, &guest.over(built), &edges, Moment::Open, bytes)
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
