//! Judges the files that a cut of the power, or the end of the engine's process, could have left: they open, have all
//! that was flushed, and need no repair except for leaks.

use crate::disk::extent::Window;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::read_array;
use crate::formats::qcow2::constants::INCOMPATIBLE_DIRTY;
use crate::formats::qcow2::header::{Header, PARSED_BYTES};
use crate::harness::Walker;
use crate::harness::case::Case;
use crate::harness::chain::Chain;
use crate::harness::engine::{Engine, OpenDisk};
use crate::harness::idle::QuestionKind;
use crate::harness::oracles::collector::Collector;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::oracles::written::{self, Moment};
use crate::harness::oracles::{self, OracleResult, Violation};
use crate::harness::verdicts::Verdicts;
use crate::programs::CutKind;

use super::cut::Cut;
use super::judge::{MAX_WALK_STEPS, WriterJudge};

impl WriterJudge {
    /// Judges the cuts of a session, and forgets them.
    pub(super) fn judge_cuts<E: Engine>(
        &mut self,
        engine: &mut E,
        case: &Case,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        for cut in std::mem::take(&mut self.cuts) {
            let judged = self.judge_cut(engine, case, &cut, verdicts);
            let judged = judged.map_err(|found| match cut.kind {
                CutKind::Power => oracles::power_cut::attributed(found),
                CutKind::Process => oracles::killed::attributed(found),
            });
            if judged.is_err() {
                // Also for a known finding: a person wants to see the file.
                self.written.get_or_insert(cut.files);
            }
            verdicts.judge(judged)?;
        }
        Ok(())
    }

    fn judge_cut<E: Engine>(
        &mut self,
        engine: &mut E,
        case: &Case,
        cut: &Cut,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        let mut reader = std::mem::take(&mut self.reader);
        reader.begin_run();
        let walked = self.walk_after_cut(&mut reader, cut);
        let judged = walked.and_then(|size_bytes| {
            self.snapshots(&mut reader, case, &cut.files)?;
            Ok(size_bytes)
        });
        self.reader = reader;
        let size_bytes = judged?;
        if is_dirty(&cut.files) {
            // The next writer counts all clusters again. Many readers refuse the image until then.
            return Ok(());
        }
        refcounts::check_after_cut(&mut self.recount, cut.files.image())?;
        self.read_after_cut(engine, (cut, size_bytes), verdicts)
    }

    /// Walks and reads the file with our own walker. Returns the size of the disk.
    fn walk_after_cut(&mut self, reader: &mut Walker, cut: &Cut) -> Result<u64, Box<Violation>> {
        let refused = |error| oracles::unexpected_error("written", "image", &error);
        let mut disk = reader.open(&cut.files).map_err(refused)?;
        let size_bytes = disk.virtual_size_bytes();
        if !cut.guest.may_have_size(size_bytes) {
            oracles::model::check_size(cut.guest.size_bytes, size_bytes)?;
        }
        let mut collector = Collector::new(&mut self.extents, MAX_WALK_STEPS);
        let walked = disk.map(Window::ALL, &mut collector);
        oracles::bounds::check_steps(collector.exhausted(), MAX_WALK_STEPS)?;
        walked.map_err(refused)?;
        oracles::partition::check(&self.extents, &(0..size_bytes))?;
        let expected = cut.guest.flushed_over(&self.before, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        written::check(read, &expected, Moment::Cut, &mut self.bytes)?;
        Ok(size_bytes)
    }

    /// Opens the image through the engine for reading only, and reads its disk of `size_bytes`.
    fn read_after_cut<E: Engine>(
        &mut self,
        engine: &mut E,
        (cut, size_bytes): (&Cut, u64),
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        let size = engine.policy().size;
        let opened = engine.open(&cut.files);
        let mut disk = opened.map_err(|error| oracles::unexpected_error("open", "", &error))?;
        let has_first_size = size_bytes == self.before.virtual_size_bytes();
        self.check_size(size, has_first_size, (size_bytes, disk.virtual_size_bytes()))?;
        let expected = cut.guest.flushed_over(&self.before, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let read = written::check(read, &expected, Moment::CutReopened, &mut self.bytes);
        verdicts.judge_answers(QuestionKind::Read, read)?;
        disk.close().map_err(|error| oracles::unexpected_error("written", "close", &error))
    }
}

/// Reports whether the image at the top of `files` is marked as dirty.
fn is_dirty(files: &Chain) -> bool {
    let first_bytes = read_array::<PARSED_BYTES>(files.image(), HostOffset::ZERO).ok();
    let header = first_bytes.and_then(|bytes| Header::parse(&bytes).ok());
    header.is_some_and(|header| header.incompatible & INCOMPATIBLE_DIRTY != 0)
}
