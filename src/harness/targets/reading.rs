//! Judges how an engine reads a valid image: runs the oracles in their order, with their buffers. Between two
//! checkpoints, most of a disk does not change: the parts that the oracles have found correct in the last image are not
//! judged again.

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::{Event, State};
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, JudgeCase};
use crate::harness::engine::claims::CostPolicy;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{AccessFeedback, EngineQuestion, Facts, ReportKind};
use crate::harness::files::chain::Chain;
use crate::harness::model::{Model, Visible};
use crate::harness::oracles::bounds::Collector;
use crate::harness::oracles::data::inside;
use crate::harness::oracles::extents::window::{WholeWalk, rest_behind};
use crate::harness::oracles::observed;
use crate::harness::oracles::{self, OracleResult};
use crate::images::content::entropy::Entropy;
use crate::programs::Question;

/// The oracles, with their buffers.
#[derive(Debug, Default)]
pub(super) struct ReadingJudge {
    model: Model,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    clipped: [Vec<Extent>; 2],
    bytes: oracles::data::DataBuffers,
    snapshot: oracles::snapshots::SnapshotBuffers,
    /// The engine has walked the disk of the last image, and its extents tile the disk.
    is_walked: bool,
    /// The results that the oracles confirmed for the last image of the run.
    known: VerifiedParts,
    /// The engine checks the image in this run.
    checks: bool,
}

/// One run in this many asks for a check, which takes two fifths of a run.
const CHECKED_SHARE: u32 = 32;

/// The case that is judged.
#[derive(Clone, Copy)]
struct CaseContext<'h, 'c> {
    case: &'h Case<'c>,
    chain: &'h Chain,
    /// The highest number of steps of a walk.
    fuel: u64,
    /// The part of the engine's accesses that is feedback.
    feedback: AccessFeedback,
    cost: CostPolicy,
}

impl JudgeCase for ReadingJudge {
    fn begin_run(&mut self, checksum: u32) {
        self.checks = checksum.is_multiple_of(CHECKED_SHARE);
        // No result of the images of a new run is known.
        self.known.clear();
    }

    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        self.model.replay(case.journals.iter().copied());
        self.model.extents(&mut self.expected);
        engine.note_sizes(&self.model);
        let chain = &Chain::metered(case.images, run.meter);
        let fuel = oracles::bounds::fuel(run.tables.active);
        let Facts { reads: feedback, policy, .. } = *engine.facts();
        let context = CaseContext { case, chain, fuel, feedback, cost: policy.cost };
        run.observer.begin(State::Check);
        if case.in_full {
            self.known.clear();
        }
        let maps = engine.may_answer(QuestionKind::Map);
        engine.prepare(chain, |plan| self.plan(case, run.entropy, maps, plan));
        // An engine may have read the files to give them to another process.
        run.meter.restart(u64::MAX);
        run.begin_accesses(feedback);
        let answered = self.judge_answers(engine, run, &context);
        run.end_accesses(feedback, case);
        let Some(reads) = answered? else {
            // A known finding: the engine does not open the image.
            return Ok(CaseEnd::Judged);
        };
        if !case.in_full {
            self.known.note(&self.model, &self.whole);
            return Ok(CaseEnd::Judged);
        }
        let fail_at = run.entropy.below(reads);
        self.judge_failing_read(engine, run, &context, fail_at)?;
        self.judge_snapshot(engine, run, &context)?;
        Ok(CaseEnd::Judged)
    }

    fn compare(
        &mut self,
        opinion: &mut Opinion,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        opinion.judge(engine, case, Some(&self.expected), run.verdicts)
    }

    fn extents(&self) -> [&[Extent]; 2] {
        [&self.expected, &self.whole]
    }
}

impl ReadingJudge {
    /// Adds all questions to `plan`, as an engine that gives the right answers gets them.
    fn plan(&mut self, case: &Case, entropy: &Entropy, maps: bool, plan: &mut Vec<EngineQuestion>) {
        let Self { model, expected, known, checks, .. } = self;
        let entropy = &mut entropy.clone();
        plan.extend([EngineQuestion::Open, EngineQuestion::Map(Window::ALL)]);
        if maps && case.in_full && !expected.is_empty() {
            let stop_after = drawn_stop(expected, entropy);
            let rest = rest_behind(expected, stop_after);
            plan.extend([Window::ALL].into_iter().chain(rest).map(EngineQuestion::Map));
        }
        let statuses = oracles::extents::lookup::edges(expected, known.new_extents());
        plan.extend(statuses.map(|(guest, _)| EngineQuestion::Status(guest)));
        oracles::data::edges::plan(model, known.new_visible(), plan);
        let share = if maps { inside::Share::Drawn } else { inside::Share::All };
        if case.in_full {
            oracles::data::inside::plan(model, share, &mut own_stream(entropy), plan);
        }
        plan.extend(case.questions.iter().map(|question| match *question {
            Question::Walk(window) => EngineQuestion::Map(window),
            Question::Lookup(guest) => EngineQuestion::Status(guest),
            Question::Read { start, length_bytes } => {
                EngineQuestion::Read(start, length_bytes.into())
            }
        }));
        if !case.in_full {
            return;
        }
        plan.push(EngineQuestion::Report(ReportKind::Info));
        plan.extend(checks.then_some(EngineQuestion::Report(ReportKind::Check)));
        // The oracle of failing reads asks these questions. An engine in another process reads the files itself, so its
        // reads do not fail.
        plan.extend([EngineQuestion::Open, EngineQuestion::Map(Window::ALL)]);
        if !maps {
            oracles::data::edges::plan(model, |_| true, plan);
        }
        let _ = entropy.next_u64();
        if let Some((index, entropy)) = drawn_snapshot(model, entropy) {
            oracles::snapshots::plan(index, model, &entropy, plan);
            // The model becomes the active disk again.
            model.replay(case.journals.iter().copied());
        }
    }

    /// Judges the engine while the read number `fail_at` fails.
    fn judge_failing_read(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        context: &CaseContext,
        fail_at: u64,
    ) -> OracleResult {
        let Self { model, whole, other, is_walked, .. } = self;
        let CaseContext { chain, fuel, .. } = *context;
        let judged = match is_walked {
            true => oracles::io::check(engine, chain, run.meter, fail_at, whole, fuel, other),
            false => oracles::io::check_data(engine, chain, run.meter, fail_at, model),
        };
        run.verdicts.judge(judged).map(|_| ())
    }

    fn judge_snapshot(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        context: &CaseContext,
    ) -> OracleResult {
        let Self { model, snapshot, .. } = self;
        let Some((index, entropy)) = drawn_snapshot(model, run.entropy) else { return Ok(()) };
        run.meter.restart(u64::MAX);
        run.observer.event(State::Check, Event::Snapshot);
        snapshot.entropy = entropy;
        let (chain, bytes) = (context.chain, run.tables.of_a_snapshot);
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        oracles::snapshots::check(engine, chain, index, model, bytes, snapshot, set_aside)
    }

    /// Runs all oracles except those of failing reads and of snapshots. Returns the number of reads for opening and
    /// walking the image; `None` if the engine does not open it, which is a known finding.
    fn judge_answers(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        context: &CaseContext,
    ) -> OracleResult<Option<u64>> {
        let CaseContext { case, chain, fuel, feedback, .. } = *context;
        let opened = engine.open(chain);
        let opened = opened.map_err(|error| oracles::unexpected_error("open", "image", &error));
        let Some(mut disk) = run.verdicts.judge(opened)? else { return Ok(None) };
        let disk = &mut disk;
        let sized = oracles::extents::model::check_size(
            self.model.virtual_size_bytes(),
            disk.virtual_size_bytes(),
        );
        run.verdicts.judge(sized)?;
        let walk = self.judge_walk(disk, run, context)?;
        let Self { model, expected, whole, other, known, is_walked, .. } = self;
        *is_walked = walk.is_some();
        if !*is_walked {
            whole.clone_from(expected);
        } else if case.in_full && !whole.is_empty() {
            let stop_after = drawn_stop(whole, run.entropy);
            let whole = WholeWalk::complete(whole);
            run.verdicts.judge(whole.check_resumed(disk, stop_after, fuel, other))?;
        }
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        oracles::extents::lookup::check(disk, whole, known.new_extents(), set_aside)?;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        oracles::data::edges::check(read, model, known.new_visible(), set_aside)?;
        if case.in_full {
            self.judge_inside(disk, run)?;
        }
        let reads = walk.unwrap_or_else(|| run.meter.reads());
        if walk.is_none() && feedback != AccessFeedback::None {
            // An engine without a walk has the work of its other answers.
            observed::work(reads, run.meter.bytes(), run.observer);
        }
        self.judge_questions(disk, run, context)?;
        if case.in_full {
            let set_aside = &mut |found| run.verdicts.set_aside(found);
            oracles::info::check_info(disk, case, set_aside)?;
            if self.checks {
                oracles::info::check_counts(disk, case, set_aside)?;
            }
        }
        Ok(Some(reads))
    }

    /// Judges reads of the inside of the data: all, if the engine is judged by its reads alone.
    fn judge_inside(&mut self, disk: &mut TestedDisk, run: &mut CaseRun) -> OracleResult {
        let Self { model, bytes, is_walked, .. } = self;
        let share = if *is_walked { inside::Share::Drawn } else { inside::Share::All };
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        inside::check(disk, model, share, &mut own_stream(run.entropy), bytes, set_aside)
    }

    /// Judges the engine's answers to the program's questions.
    fn judge_questions(
        &mut self,
        disk: &mut TestedDisk,
        run: &mut CaseRun,
        context: &CaseContext,
    ) -> OracleResult {
        let Self { model, whole, other, bytes, is_walked, .. } = self;
        for question in context.case.questions {
            let judged = match *question {
                Question::Walk(window) if *is_walked => {
                    run.observer.event(State::Check, Event::Walk);
                    WholeWalk::complete(whole).check(disk, window, context.fuel, other)
                }
                Question::Lookup(guest) if disk.answers(QuestionKind::Status) => {
                    run.observer.event(State::Check, Event::Lookup);
                    oracles::extents::lookup::check_point(disk, guest, whole)
                }
                Question::Read { start, length_bytes } if disk.answers(QuestionKind::Read) => {
                    let length = usize::from(length_bytes);
                    if oracles::data::costly(model, start, length) {
                        continue;
                    }
                    run.observer.event(State::Check, Event::Read);
                    let read = &mut |at, into: &mut [u8]| disk.read(at, into);
                    oracles::data::check_range(read, model, start, length, bytes)
                }
                Question::Walk(_) | Question::Lookup(_) | Question::Read { .. } => continue,
            };
            run.verdicts.judge_answer(judged)?;
        }
        Ok(())
    }

    /// Walks and judges the whole disk. Returns the number of reads, including those for opening; `None` if the engine
    /// has no answer, or if its extents are no basis for other oracles, which is a known finding.
    fn judge_walk(
        &mut self,
        disk: &mut TestedDisk,
        run: &mut CaseRun,
        context: &CaseContext,
    ) -> OracleResult<Option<u64>> {
        let CaseContext { case, chain, fuel, cost, .. } = *context;
        let (Self { model, expected, whole, clipped, .. }, tables) = (self, run.tables);
        let (size, open_bytes) = (model.virtual_size_bytes(), run.meter.bytes());
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let exhausted = collector.exhausted();
        let reads = run.meter.reads();
        // Threads of an engine may lose counts: then it has read nothing.
        let read_bytes = run.meter.bytes().saturating_sub(open_bytes);
        let judged_bytes = match cost {
            CostPolicy::Judged => read_bytes,
            CostPolicy::NotJudged => 0,
        };
        let layers = chain.layers().len();
        let cost = oracles::bounds::Cost { layers, tables, read_bytes: judged_bytes, exhausted };
        run.verdicts.judge(oracles::bounds::check(&cost, whole, size, case.cell_bytes))?;
        let walked = walked.map_err(|error| oracles::unexpected_error("walk", "image", &error));
        if run.verdicts.judge_answer(walked)?.is_none()
            || run.verdicts.judge(oracles::extents::check_partition(whole, &(0..size)))?.is_none()
        {
            return Ok(None);
        }
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        oracles::extents::check_flags(whole, set_aside)?;
        // This oracle runs before the model, which would report a missed merge only as a wrong length.
        oracles::extents::check_maximal(whole, &case.file_edges(), set_aside)?;
        oracles::extents::model::check_all(expected, whole, clipped, set_aside)?;
        observed::work(reads, open_bytes + read_bytes, run.observer);
        observed::extents(whole, case.table_span_bits, run.observer);
        Ok(Some(reads))
    }
}

/// Returns the number of extents after which a walk of `whole` is stopped.
fn drawn_stop(whole: &[Extent], entropy: &mut Entropy) -> usize {
    1 + entropy.below(whole.len() as u64) as usize
}

/// Returns a separate stream for one oracle, which does not change the choices of the other oracles.
fn own_stream(entropy: &Entropy) -> Entropy {
    Entropy::new(!entropy.state())
}

/// Returns the index of the snapshot that is judged, and a separate stream for its oracle; `None` if there are no
/// snapshots.
fn drawn_snapshot(model: &Model, entropy: &mut Entropy) -> Option<(usize, Entropy)> {
    let snapshots = model.snapshot_count();
    if snapshots == 0 {
        return None;
    }
    let index = entropy.below(snapshots as u64) as usize;
    Some((index, Entropy::new(entropy.state().rotate_left(32))))
}

/// The parts and the extents of a disk that the oracles have found correct. Empty before the first image of a run.
#[derive(Debug, Default)]
pub struct VerifiedParts {
    visible: Vec<Visible>,
    extents: Vec<Extent>,
}

impl VerifiedParts {
    /// Removes everything, and keeps the buffers.
    pub fn clear(&mut self) {
        self.visible.clear();
        self.extents.clear();
    }

    /// Records that all of a disk is correct.
    pub fn note(&mut self, model: &Model, extents: &[Extent]) {
        self.clear();
        self.visible.extend_from_slice(model.visible());
        self.extents.extend_from_slice(extents);
    }

    /// Returns a filter that passes the parts of the disk that differ from the known ones. The caller must pass parts
    /// in the order of the disk.
    pub fn new_visible(&self) -> impl FnMut(&Visible) -> bool {
        new_in(&self.visible, |visible| visible.start)
    }

    /// Returns the same filter for extents.
    pub fn new_extents(&self) -> impl FnMut(&Extent) -> bool {
        new_in(&self.extents, |extent| extent.start.get())
    }
}

/// Returns a filter that passes values that are not in `known`. Both are in the order of `start`.
fn new_in<T: PartialEq>(known: &[T], start: impl Fn(&T) -> u64) -> impl FnMut(&T) -> bool {
    let mut rest = known;
    move |item| {
        while let Some((first, behind)) = rest.split_first() {
            if start(first) >= start(item) {
                return first != item;
            }
            rest = behind;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_new() {
        let start = |item: &(u64, char)| item.0;
        let known = [(0, 'a'), (4, 'b'), (8, 'c'), (9, 'd')];
        let now = [(0, 'a'), (3, 'b'), (4, 'b'), (8, 'x'), (9, 'd'), (12, 'a')];
        let mut is_new = new_in(&known, start);
        let new: Vec<_> = now.iter().filter(|item| is_new(item)).collect();
        assert_eq!(new, [&(3, 'b'), &(8, 'x'), &(12, 'a')]);
        let is_new = new_in(&[], start);
        assert!(now.iter().all(is_new));
    }
}
