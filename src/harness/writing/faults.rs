//! Judges an engine while operations on its files fail.
//!
//! A request during which an operation fails may fail. So may each later one, until the image is closed: an engine may
//! refuse to go on. The sectors of a write, of zeroes and of a discard that have failed have old or new bytes. All
//! other bytes are as if the request had not been made, and the file has no damage but leaks. If an operation fails
//! while the image is closed, the last flush decides which bytes are certain.
//!
//! Does not check: the disk after another request has failed, such as a resize, or if the image has bitmaps. Then the
//! file must still open, and have no damage but leaks.

use crate::harness::cases::case::Verdicts;
use crate::harness::engine::EngineError;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::oracles::written;
use crate::harness::oracles::{self, OracleResult};
use crate::programs::WriteRequest;

use super::WriterJudge;
use super::flown::RequestResult;
use super::left_files::is_dirty;
use super::steps::FileSteps;

/// The oracle to which the violations after a failed operation are attributed.
const FILE_ERROR: &str = "file_error";

/// Returns the number of operations that have failed.
fn met(chain: &Chain) -> u32 {
    chain.faults(|faults| faults.met()).unwrap_or(0)
}

/// Lets operations meet the fault of the program while `call` calls the engine for the guest.
pub(super) fn exposed<T>(chain: &Chain, call: impl FnOnce() -> T) -> T {
    chain.faults(|faults| faults.set_active(true));
    let called = call();
    chain.faults(|faults| faults.set_active(false));
    called
}

impl WriterJudge {
    /// Notes that the engine opens the image, or has opened it.
    pub(super) fn begin_faults(&mut self, chain: &Chain) {
        (self.faults.before, self.faults.in_session) = (met(chain), false);
    }

    /// Reports whether operations have failed since [`WriterJudge::begin_faults`].
    pub(super) fn has_met(&self, chain: &Chain) -> bool {
        met(chain) > self.faults.before
    }

    /// Notes the operations that have failed since the image was opened.
    pub(super) fn note_faults(&mut self, chain: &Chain, verdicts: &mut Verdicts) {
        if self.has_met(chain) && !self.faults.in_session {
            (self.faults.in_session, self.faults.may_leak) = (true, true);
            verdicts.attribute_to(Some(FILE_ERROR));
        }
    }

    /// Returns the result of a request that the engine has refused after an operation has failed.
    pub(super) fn refused(&mut self, request: &WriteRequest) -> RequestResult {
        match request {
            WriteRequest::Flush | WriteRequest::Read { .. } => RequestResult::Nothing,
            WriteRequest::Write { .. }
            | WriteRequest::WriteZeroes { .. }
            | WriteRequest::Discard { .. }
                if !self.guest.bitmaps.were_there() =>
            {
                RequestResult::Torn
            }
            _ => {
                self.faults.is_lost = true;
                RequestResult::Nothing
            }
        }
    }

    /// Returns the result of reads of the open disk. An engine may refuse them after an operation has failed.
    pub(super) fn excused(&self, read: OracleResult) -> OracleResult {
        match read {
            Err(found) if self.faults.in_session && found.error.is_some() => Ok(()),
            read => read,
        }
    }

    /// Closes the image, during which operations may fail.
    pub(super) fn close(
        &mut self,
        chain: &Chain,
        disk: TestedDisk,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        let before = met(chain);
        let closed: Result<(), EngineError> = exposed(chain, || disk.close());
        chain.faults(|faults| faults.disarm());
        self.note_faults(chain, verdicts);
        if met(chain) > before || closed.is_err() && self.faults.in_session {
            let is_certain = self.guest.note_failed_close() && !self.guest.bitmaps.were_there();
            self.faults.is_lost |= !is_certain;
            return Ok(());
        }
        closed.map_err(|error| oracles::unexpected_error("written", "close", &error))
    }

    /// Recounts the file that the engine has left after an operation has failed. Clusters may be leaked.
    pub(super) fn count_with_leaks(
        &mut self,
        chain: &Chain,
        steps: &mut FileSteps,
    ) -> OracleResult {
        // With lazy refcounts, the next writer counts all clusters again.
        if is_dirty(chain) {
            return Ok(());
        }
        let recount = &mut self.recount;
        steps
            .each(|set_aside| refcounts::check_after_cut(recount, chain.image(), set_aside))
            .map(drop)
    }

    /// Judges the file of a disk about which nothing is known: it opens, and has no damage but leaks.
    pub(super) fn judge_lost(&mut self, chain: &Chain, verdicts: &mut Verdicts) -> OracleResult {
        let mut steps = FileSteps::new(verdicts, written::in_file);
        self.count_with_leaks(chain, &mut steps)?;
        let mut reader = std::mem::take(&mut self.reader);
        let walked = self.walked(&mut reader, chain, |_| Ok(())).map(drop);
        let judged = steps.judge(walked).map(drop);
        self.reader = reader;
        judged
    }
}
