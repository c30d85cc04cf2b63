//! The oracles `power_cut` and `killed`: files that a cut of the power, or the end of the engine's process, could have
//! left. They open, have all that the guest has flushed, and need no repair except for leaks. Our walker, the recount
//! and the engine judge them.
//!
//! Does not check: bytes that a request has changed since the flush; if the image has the dirty bit, its counts, its
//! raw data file and the engine's answers; a write that the end of the process tears.

use crate::formats::qcow2::constants::INCOMPATIBLE_DIRTY;
use crate::formats::qcow2::header::Header;
use crate::harness::Walker;
use crate::harness::cases::case::Verdicts;
use crate::harness::engine::ErrorKind;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::oracles::written::{self, BeyondEdges, Moment};
use crate::harness::oracles::{self, OracleResult, SetAside, Violation};
use crate::programs::CutKind;

use super::guest::Cut;
use super::judge::WriterJudge;
use super::steps::FileSteps;

impl WriterJudge {
    /// Judges the cuts of a session, and forgets them.
    pub(super) fn judge_cuts(
        &mut self,
        engine: &mut TestedEngine,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        for cut in std::mem::take(&mut self.cuts) {
            let mut steps = FileSteps::new(verdicts, attribution(cut.kind));
            let judged = self.judge_cut(engine, &cut, &mut steps);
            match (judged, steps.has_finding()) {
                (Err(found), _) => {
                    self.written = Some(cut.files);
                    return Err(found);
                }
                // A person wants to see the file of a known finding, too.
                (Ok(()), true) => drop(self.of_known_finding.get_or_insert(cut.files)),
                (Ok(()), false) => {}
            }
        }
        Ok(())
    }

    /// Judges the file of a cut, step by step.
    fn judge_cut(
        &mut self,
        engine: &mut TestedEngine,
        cut: &Cut,
        steps: &mut FileSteps,
    ) -> OracleResult {
        let mut reader = std::mem::take(&mut self.reader);
        let walked = self.walk_after_cut(&mut reader, cut, steps);
        let snapshots =
            steps.each(|set_aside| self.snapshots_after_cut(&mut reader, cut, set_aside));
        self.reader = reader;
        let size_bytes = walked?;
        snapshots?;
        steps.each(|set_aside| self.kept_after_cut(cut, set_aside))?;
        steps.each(|set_aside| self.kept_bits(&cut.files, set_aside))?;
        if is_dirty(&cut.files) {
            // With lazy refcounts, the next writer counts all clusters again. Many readers refuse the image until then.
            return Ok(());
        }
        steps.each(|set_aside| {
            refcounts::check_after_cut(&mut self.recount, cut.files.image(), set_aside)
        })?;
        // The bytes are not those of the guest, or our walker has not read the file.
        let Some(size_bytes) = size_bytes else { return Ok(()) };
        steps.each(|set_aside| self.raw_data_file_after_cut(cut, size_bytes, set_aside))?;
        let read = steps.each(|set_aside| {
            match self.read_after_cut(engine, cut, size_bytes, set_aside) {
                // The engine has no answer to reads, or the harness cannot give it the file.
                Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => Ok(()),
                judged => judged,
            }
        });
        let refused_writes = self.meter.take_refused_writes();
        steps.judge(written::check_read_only("image opened again", refused_writes))?;
        read.map(|_| ())
    }

    /// Walks and reads the file with our own walker. Returns the size of the disk; `None` if a known finding
    /// prevents the reading, or says that the disk has other bytes.
    fn walk_after_cut(
        &mut self,
        reader: &mut Walker,
        cut: &Cut,
        steps: &mut FileSteps,
    ) -> Result<Option<u64>, Box<Violation>> {
        let walked = self.walked(reader, &cut.files, |size_bytes| {
            match cut.guest.may_have_size(size_bytes) {
                true => Ok(()),
                false => oracles::extents::model::check_size(cut.guest.size_bytes(), size_bytes),
            }
        });
        let Some(mut disk) = steps.judge(walked)? else { return Ok(None) };
        let size_bytes = disk.virtual_size_bytes();
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let beyond = BeyondEdges::Drawn(&mut self.entropy);
        let has_disk = steps.each(|set_aside| {
            written::check(read, &expected, Moment::Cut, beyond, &mut self.bytes, set_aside)
        })?;
        let has_survived = |range: &_| cut.guest.has_written(range, read);
        steps.each(|set_aside| {
            let (files, unsettled) = (&cut.files, cut.guest.unsettled());
            cut.guest.bitmaps.check_after_cut(files, unsettled, has_survived, set_aside)
        })?;
        Ok(has_disk.then_some(size_bytes))
    }

    /// Opens the image through the engine for reading only, and reads its disk of `size_bytes`.
    fn read_after_cut(
        &mut self,
        engine: &mut TestedEngine,
        cut: &Cut,
        size_bytes: u64,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let size = engine.facts().policy.size;
        let opened = engine.open(&cut.files);
        let mut disk =
            opened.map_err(|error| oracles::unexpected_error("open", "image", &error))?;
        let has_first_size = size_bytes == self.built.active().virtual_size_bytes();
        self.check_size(size, has_first_size, (size_bytes, disk.virtual_size_bytes()))?;
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let bytes = &mut self.bytes;
        let (moment, beyond) = (Moment::CutReopened, BeyondEdges::Nothing);
        written::check(read, &expected, moment, beyond, bytes, set_aside)?;
        disk.close().map_err(|error| oracles::unexpected_error("written", "close", &error))
    }
}

/// Returns how findings in the file of a cut are attributed.
fn attribution(kind: CutKind) -> fn(Box<Violation>) -> Box<Violation> {
    match kind {
        CutKind::Power => |found| written::in_file(found).attributed_to("power_cut"),
        CutKind::Process => |found| written::in_file(found).attributed_to("killed"),
    }
}

/// Reports whether the image at the top of `files` is marked as dirty.
fn is_dirty(files: &Chain) -> bool {
    let header = Header::read(files.image());
    header.is_ok_and(|header| header.incompatible & INCOMPATIBLE_DIRTY != 0)
}
