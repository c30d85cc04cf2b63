//! Compares the answers of an engine about one image with those of qemu-io. `qemu-img check` judges the files that an
//! engine has written and closed.
//!
//! `qemu-img check` does not check: leaks, which our recount judges; layers below; files so long that QEMU counts their
//! clusters for seconds.

use std::ops::Range;

use crate::disk::extent::Extent;
use crate::disk::observer::SecondAnswer;
use crate::harness::against::differences::{self, SECTOR_BYTES};
use crate::harness::against::second_opinion::{JudgedDisk, JudgedImage, ReadDisk, WalkEnd};
use crate::harness::engine::EngineError;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::{OracleResult, disagreement, violation};
use crate::processes::ProcessEnd;

use super::answers::{
    self, ORACLE, QEMU, RecordAnswer, ended, is_long, mismatch, wrong_allocation,
};
use super::maps::{self, AllocationRun, RunsEnd};
use super::session::{DeviceFiles, EngineData, QemuIo, run_qemu_img};

/// The file with the engine's data is this much longer than its disk, so that QEMU shows the end of a longer one.
const MARGIN_BYTES: u64 = 1 << 20;
/// The highest number of tables of a disk that is mapped whole: QEMU visits each table, also a missing one.
const MAX_MAPPED_TABLES: u64 = 512;
/// The number of extents of a larger disk whose allocation is compared.
const MAX_ASKED_EXTENTS: usize = 8;
/// The number of bytes of such an extent.
const MAX_ASKED_BYTES: u64 = 64 << 10;
/// The number of bytes that QEMU reads at once: it is the fastest number.
const VERIFIED_BYTES: u64 = 1 << 20;
/// The number of parts that the engine cannot read, and that QEMU is asked to read.
const MAX_UNREADABLE: usize = 16;

/// A qemu-io, the files of one image at a time, and buffers.
#[derive(Debug, Default)]
pub(super) struct QemuComparison {
    qemu: QemuIo,
    files: DeviceFiles,
    data: Option<EngineData>,
    windows: Vec<Range<u64>>,
    /// The runs of QEMU and of the engine.
    runs: [Vec<AllocationRun>; 2],
}

impl QemuComparison {
    /// Ends qemu-io. The next comparison starts another one.
    pub(super) fn restart(&mut self) {
        self.qemu.restart();
    }

    /// Takes the files of an image, which attacks may have damaged. Returns false if they are too large.
    pub(super) fn hold(&mut self, chain: &Chain, is_damaged: bool) -> bool {
        let is_held = self.files.hold(chain, is_damaged);
        self.qemu.work_in(self.files.folder());
        is_held
    }

    /// Has `qemu-img check` judge the files that are held, which are those of `chain`.
    pub(super) fn check(&self, chain: &Chain) -> OracleResult {
        let arguments = format!("check 'json:{}' 2>&1", self.files.device(chain));
        let ran = run_qemu_img(&arguments, self.files.folder());
        match ran.end.process {
            // 3 is the code of leaks.
            ProcessEnd::Exit(0 | 3) => Ok(()),
            ProcessEnd::Exit(1 | 2) => violation(ORACLE, "check", ("no errors", "errors"), || {
                answers::without_paths(ran.output.trim())
            }),
            _ => Err(ended(Box::new(ran)).attributed_to("qemu-img")),
        }
    }

    /// Compares the engine's answers about the image that is held.
    pub(super) fn judge(
        &mut self,
        image: &JudgedImage,
        read: &mut ReadDisk<'_>,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        match &image.disk {
            Err(error) => self.judge_refused(image, error, answered),
            Ok(disk) => self.judge_opened(image, disk, read, answered),
        }
    }

    /// Compares whole maps of the image that is held.
    pub(super) fn whole_map(
        &mut self,
        image: &JudgedImage,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        match &image.disk {
            Err(_) => Ok(()),
            Ok(disk) => maps::compare_whole(&self.files, image, disk, answered),
        }
    }

    /// Checks that QEMU refuses an image that the engine refuses.
    fn judge_refused(
        &mut self,
        image: &JudgedImage,
        error: &EngineError,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        let JudgedImage { chain, is_any_content, .. } = *image;
        if is_any_content {
            // QEMU may open it, and would follow the names in it.
            return Ok(());
        }
        if let Some(refusal) = answers::refusal(self.open_alone(chain)?) {
            answered(answers::class(refusal));
            return Ok(());
        }
        ask(&mut self.qemu, "close")?;
        Err(QEMU.opens_alone(&error.to_string()))
    }

    fn judge_opened(
        &mut self,
        image: &JudgedImage,
        disk: &JudgedDisk,
        read: &mut ReadDisk<'_>,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        let size_bytes = disk.size_bytes / SECTOR_BYTES * SECTOR_BYTES;
        let has_early_block = answers::has_early_block(disk.extents, image.chain);
        let is_misread =
            |extent: &Extent| has_early_block && answers::is_misread(extent, image.chain);
        differences::plan_windows(size_bytes, disk.extents, is_misread, &mut self.windows);
        let Some(folder) = self.files.folder() else { return Ok(()) };
        let data = self.data.get_or_insert_with(|| EngineData::new(folder));
        let length_bytes = size_bytes.saturating_add(MARGIN_BYTES);
        if data.read(length_bytes, &self.windows, read).is_err() {
            // A file of this length cannot exist.
            return Ok(());
        }
        if let Some(refusal) = self.open(image.chain)? {
            answered(answers::class(&refusal));
            if image.is_any_content || answers::is_named(&refusal, image) {
                return Ok(());
            }
            return Err(QEMU.refuses_alone(&refusal));
        }
        answered(SecondAnswer::Opened);
        if self.compare_allocation(image, disk, size_bytes, answered)? == RunsEnd::Failed {
            // QEMU answers nothing more about an image in which it has found an error.
            ask(&mut self.qemu, "close")?;
            self.open(image.chain)?;
        }
        match self.compare_data(disk.extents, answered) {
            // QEMU reads none of the file's bytes there.
            Err(found) if image.is_any_content && found.expected == "an error" => {
                self.restart();
                return Ok(());
            }
            compared => compared?,
        }
        ask(&mut self.qemu, "close")?;
        if image.is_any_content {
            return Ok(());
        }
        self.compare_unreadable(image.chain, answered)
    }

    /// Opens the image. Returns the output.
    fn open_alone(&mut self, chain: &Chain) -> OracleResult<&str> {
        self.qemu.ask(format_args!("open -r json:{}", self.files.device(chain))).map_err(ended)
    }

    /// Opens the image beside the engine's data. Returns the refusal, if QEMU does not open it.
    fn open(&mut self, chain: &Chain) -> OracleResult<Option<String>> {
        let Self { qemu, files, data, .. } = self;
        let Some(path) = data.as_ref().map(|data| data.path().display()) else { return Ok(None) };
        let opened = qemu.ask(format_args!(
            "open -r json:{{\"driver\":\"blkverify\",\"test\":{{\"driver\":\"raw\",\"file\":{{\"driver\":\"file\",\
             \"locking\":\"off\",\"filename\":\"{path}\"}}}},\"raw\":{}}}",
            files.device(chain)
        ));
        Ok(answers::refusal(opened.map_err(ended)?).map(str::to_string))
    }

    /// Compares the size of the disk, and what the image at the top allocates.
    fn compare_allocation(
        &mut self,
        image: &JudgedImage,
        disk: &JudgedDisk,
        size_bytes: u64,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult<RunsEnd> {
        // Some of QEMU's drivers report no blocks: they say that all of the disk is allocated.
        let is_all_allocated = image.chain.format().facts().is_all_data_for_qemu;
        if is_long(image) {
            answered(SecondAnswer::NotMapped);
            return Ok(RunsEnd::Complete);
        }
        if size_bytes >> image.table_span_bits.min(63) > MAX_MAPPED_TABLES {
            answered(SecondAnswer::MappedInParts);
            return self.compare_parts(disk.extents, size_bytes, is_all_allocated);
        }
        let Self { qemu, runs: [theirs, ours], .. } = self;
        let printed = ask(qemu, "map")?;
        let end = maps::parse_runs(printed, theirs)
            .map_err(|line| disagreement(ORACLE, "map", ("a map", "another text"), line))?;
        let mapped = theirs.last().map_or(0, |last| last.end);
        answered(answer_of(theirs, end));
        match (end, disk.walk) {
            (RunsEnd::Complete, _) => QEMU.check_size(mapped, size_bytes)?,
            (RunsEnd::Failed, WalkEnd::Complete) if !image.is_any_content => {
                let detail = || format!("QEMU meets an error at guest offset {mapped:#x}");
                violation(ORACLE, "walk", ("an error", "an answer"), detail)?;
            }
            (RunsEnd::Failed, _) => {}
        }
        if let (RunsEnd::Complete, WalkEnd::Failed(error), [_], false) =
            (end, disk.walk, image.chain.layers(), is_all_allocated || image.is_any_content)
        {
            return Err(QEMU.walks_alone(&error.to_string()));
        }
        maps::of_extents(disk.extents, is_all_allocated, ours);
        match maps::first_difference(theirs, ours, size_bytes) {
            None => Ok(end),
            Some(at) => {
                let there = theirs.iter().find(|run| run.end > at);
                Err(wrong_allocation(at, there.is_some_and(|run| run.is_allocated)))
            }
        }
    }

    /// Compares the same for parts of a large disk.
    fn compare_parts(
        &mut self,
        extents: &[Extent],
        size_bytes: u64,
        is_all_allocated: bool,
    ) -> OracleResult<RunsEnd> {
        let qemu = &mut self.qemu;
        let last = size_bytes.saturating_sub(SECTOR_BYTES);
        let (_, there) = sum(qemu, last, 2 * SECTOR_BYTES)?.unwrap_or((0, SECTOR_BYTES));
        QEMU.check_size(last.saturating_add(there), size_bytes)?;
        let half = MAX_ASKED_EXTENTS / 2;
        let behind = extents.len().saturating_sub(half).max(half.min(extents.len()));
        let asked = extents.iter().take(half).chain(&extents[behind..]);
        for extent in asked {
            let start = extent.start.get().next_multiple_of(SECTOR_BYTES);
            let end = extent.end().map_or(size_bytes, |end| end.get()).min(size_bytes);
            let length =
                end.saturating_sub(start).min(MAX_ASKED_BYTES) / SECTOR_BYTES * SECTOR_BYTES;
            if length == 0 {
                continue;
            }
            let Some((allocated, _)) = sum(qemu, start, length)? else {
                return Ok(RunsEnd::Failed);
            };
            let expected = is_all_allocated || maps::is_allocated(extent);
            if allocated != if expected { length } else { 0 } {
                return Err(wrong_allocation(start, allocated > 0));
            }
        }
        Ok(RunsEnd::Complete)
    }

    /// Compares the data that the engine reads.
    fn compare_data(
        &mut self,
        extents: &[Extent],
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        let Self { qemu, data, .. } = self;
        let parts = data.iter().flat_map(EngineData::parts);
        for part in parts.filter(|part| part.is_readable) {
            for start in part.range.clone().step_by(VERIFIED_BYTES as usize) {
                let length = VERIFIED_BYTES.min(part.range.end - start);
                let asked = qemu.ask(format_args!("read -q {start} {length}"));
                let printed = match asked {
                    Ok(printed) => printed,
                    Err(end) => return Err(mismatch(&end, extents).unwrap_or_else(|| ended(end))),
                };
                if !printed.is_empty() {
                    return Err(QEMU.unread(start, extents, printed));
                }
            }
            answered(SecondAnswer::SameData);
        }
        Ok(())
    }

    /// Checks that QEMU does not read the parts that the engine does not read.
    fn compare_unreadable(
        &mut self,
        chain: &Chain,
        answered: &mut RecordAnswer<'_>,
    ) -> OracleResult {
        let parts = self.data.iter().flat_map(EngineData::parts);
        let unreadable = parts.filter(|part| !part.is_readable).take(MAX_UNREADABLE);
        let unreadable: Vec<_> = unreadable.map(|part| part.range.clone()).collect();
        for Range { start, end } in unreadable {
            self.open_alone(chain)?;
            let qemu = &mut self.qemu;
            let length = end - start;
            let asked = qemu.ask(format_args!("read -q {start} {length}"));
            if asked.map_err(ended)?.is_empty() {
                return Err(QEMU.reads_alone(start, length));
            }
            answered(SecondAnswer::Unreadable);
            ask(qemu, "close")?;
        }
        Ok(())
    }
}

/// Asks a command without operands.
fn ask<'q>(qemu: &'q mut QemuIo, command: &str) -> OracleResult<&'q str> {
    qemu.ask(format_args!("{command}")).map_err(ended)
}

/// Asks for the number of allocated bytes in a range, and for the number of bytes that lie on the disk. Returns `None`
/// if the image does not answer.
fn sum(qemu: &mut QemuIo, start: u64, length: u64) -> OracleResult<Option<(u64, u64)>> {
    let asked = qemu.ask(format_args!("alloc {start} {length}"));
    Ok(maps::parse_sum(asked.map_err(ended)?))
}

/// Returns the class of the answer to `map`.
fn answer_of(theirs: &[AllocationRun], end: RunsEnd) -> SecondAnswer {
    match (end, theirs) {
        (RunsEnd::Failed, []) => SecondAnswer::FailedAtOnce,
        (RunsEnd::Failed, _) => SecondAnswer::FailedBehindRun,
        (_, []) => SecondAnswer::NoBytes,
        (_, [one]) if one.is_allocated => SecondAnswer::AllAllocated,
        (_, [_]) => SecondAnswer::NothingAllocated,
        (_, many) => match many.len() {
            2..4 => SecondAnswer::FewRuns,
            4..16 => SecondAnswer::SomeRuns,
            _ => SecondAnswer::ManyRuns,
        },
    }
}
