//! Files that no program built: for any content, opening, walking, looking up and reading end within bounds. Answers
//! tile the disk, are possible, and agree with each other. If QEMU does not open a file, the oracle `refusal` judges
//! the answers instead. Does not check that answers are right: no model exists for such a file.
//!
//! # Arithmetic
//! Numbers of steps saturate, because a bound of 2^64 steps is none. The extents that are read end on the disk
//! (`partition`).

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::{Event, Observer, State, Vital};
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun};
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{EngineError, EngineQuestion, ErrorKind};
use crate::harness::files;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::bounds::{self, Collector, Fuel};
use crate::harness::oracles::extents::window::WholeWalk;
use crate::harness::oracles::extents::{self, lookup};
use crate::harness::oracles::observed;
use crate::harness::oracles::{OracleResult, unexpected_error};
use crate::images::content::entropy::Entropy;
use crate::images::damage::BrokenRule;
use crate::images::format::list::broken_at_open;
use crate::programs::Question;

use super::parts::{self, RefusedWalks, Untouched};

/// The end of a whole walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkReach {
    /// To the end of the disk.
    Complete,
    /// To an error, or to [`MAX_EXTENTS`].
    Beginning,
    /// To the end of its fuel.
    OutOfFuel,
}

/// The largest number of extents in one walk. A file of some kilobytes can have millions, because its entries can
/// name one table many times.
const MAX_EXTENTS: usize = 4096;
/// The number of steps that a walk may take for each byte of the file. One L1 entry names an L2 table of up to 64
/// pieces (`map`).
const STEPS_PER_BYTE: u64 = 16;
/// The number of steps that a walk may take in a lower layer for each entry that the layers above leave to it: a piece
/// of each table, and the emission of an extent.
const STEPS_PER_LAYER: u64 = 4;
/// The largest number of steps that a run waits for: some tens of milliseconds.
const MAX_STEPS: u64 = 1 << 22;
/// The number of extents that are looked up and read.
pub(super) const MAX_ASKED: usize = 64;
/// The question for all extents.
const WHOLE: EngineQuestion = EngineQuestion::Map(Window::ALL);

/// Buffers, reused from file to file.
#[derive(Debug, Default)]
pub struct RawJudge {
    whole: Vec<Extent>,
    other: Vec<Extent>,
}

impl RawJudge {
    /// Judges the engine's answers about a file, and reports their events and the accesses to the observer.
    pub(crate) fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let feedback = engine.facts().reads;
        run.begin_accesses(feedback);
        let judged = self.judge_answers(engine, run, case);
        run.end_accesses(feedback, case);
        judged
    }

    fn judge_answers(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let Self { whole, other } = self;
        let files = case.images.top();
        let chain = Chain::metered(case.images, run.meter);
        let layers = chain.layers().len();
        let (span_bits, table_bytes) = (case.table_span_bits, case.images.written_bytes());
        let measured = MeasuredChain { chain: &chain, span_bits };
        let answers = Answers {
            whole,
            other,
            expected: &[],
            questions: &[],
            fuel: if layers > 1 {
                Fuel::of_chain(table_bytes, layers)
            } else {
                Fuel::of_file(table_bytes)
            },
            may_fail_to_read: may_change_identities(&chain),
            untouched: None,
            may_split_grains: files::may_split_grains(files),
        };
        let with_limits = engine.facts().claims.judges_limits();
        match broken_at_open(files.format, &files.image, with_limits) {
            Some(rule) => answers.judge_refused(engine, run, &chain, rule),
            None => answers.judge(engine, run, &measured),
        }
    }
}

/// Reports whether the parent of an image may differ from the one that the image names. Then the engine may map the
/// image, but fail to read it. Only images in some formats name the identity of their parent.
fn may_change_identities(chain: &Chain) -> bool {
    let above = chain.layers().split_last().map_or(&[][..], |(_, above)| above);
    above.iter().any(|layer| layer.format.facts().has_own_parents)
}

/// Returns the number of steps that a walk of a file with `bytes` written bytes may take.
fn steps(bytes: u64) -> u64 {
    let tables = bytes.saturating_mul(STEPS_PER_BYTE);
    bounds::fuel(0).saturating_add(tables).saturating_add(MAX_EXTENTS as u64)
}

impl Fuel {
    /// Returns fuel that is enough for any file with `bytes` written bytes.
    fn of_file(bytes: u64) -> Self {
        Self { steps: steps(bytes), enough: true }
    }

    /// Returns fuel for a chain of `layers` with `bytes` written bytes. Every entry of one table may name the same
    /// other table, and each entry of that table may leave its cluster to all layers below. A run can afford that
    /// many steps for small files only.
    pub(super) fn of_chain(bytes: u64, layers: usize) -> Self {
        let entries = bytes / 8;
        let asked = entries.saturating_mul(entries).saturating_mul(layers as u64 * STEPS_PER_LAYER);
        let below = if layers > 1 { asked } else { 0 };
        let most = steps(bytes).saturating_add(below);
        Self { steps: most.min(MAX_STEPS.max(steps(bytes))), enough: most <= MAX_STEPS }
    }
}

/// A chain whose reads are counted.
pub(super) struct MeasuredChain<'a> {
    pub(super) chain: &'a Chain,
    /// Each table of the disk maps `1 << span_bits` bytes.
    pub(super) span_bits: u32,
}

/// The buffers and the fuel for judging answers without a model.
pub(super) struct Answers<'a> {
    /// The extents of the whole walk, up to a bound.
    pub(super) whole: &'a mut Vec<Extent>,
    pub(super) other: &'a mut Vec<Extent>,
    /// The extents of the disk without the damage, if they are known.
    pub(super) expected: &'a [Extent],
    /// The questions of the program.
    pub(super) questions: &'a [Question],
    pub(super) fuel: Fuel,
    /// Reads may fail where the walk succeeds, because an image may no longer fit its parent. Such reads must only end
    /// without a panic.
    pub(super) may_fail_to_read: bool,
    /// The parts of the disk about which the answers are known.
    pub(super) untouched: Option<Untouched<'a>>,
    /// The answer may depend on the byte at which a question begins: for images whose extents end inside a grain.
    pub(super) may_split_grains: bool,
}

impl Answers<'_> {
    /// Judges the answers about an image that QEMU does not open, because it breaks `rule`.
    fn judge_refused(
        self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        chain: &Chain,
        rule: BrokenRule,
    ) -> OracleResult<CaseEnd> {
        engine.prepare(chain, |plan| plan.extend([EngineQuestion::Open, WHOLE]));
        let Some(mut disk) = observed::opened(engine.open(chain), run.observer) else {
            return Ok(CaseEnd::Refused);
        };
        let whole_disk = 0..disk.virtual_size_bytes();
        let mut walks = RefusedWalks { fuel: self.fuel, extents: self.other, tiled: Ok(()) };
        let answered = parts::check_piece(&mut disk, rule, whole_disk, &mut walks);
        run.verdicts.judge(answered)?;
        run.verdicts.judge(walks.tiled)?;
        Ok(CaseEnd::Failed)
    }

    /// Opens a chain, walks it, and asks about some of the extents.
    pub(super) fn judge(
        self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        measured: &MeasuredChain<'_>,
    ) -> OracleResult<CaseEnd> {
        let Self { whole, other, expected, questions, fuel, .. } = self;
        let Self { may_fail_to_read, may_split_grains, untouched, .. } = self;
        let maps = engine.may_answer(QuestionKind::Map);
        let MeasuredChain { chain, span_bits } = *measured;
        let observer = run.observer;
        whole.clear();
        run.meter.restart(u64::MAX);
        engine.prepare(chain, |plan| {
            plan.extend([EngineQuestion::Open, WHOLE]);
            if !maps {
                untouched.iter().for_each(|untouched| untouched.plan(false, plan));
                plan_unwalked((expected, questions), run.entropy, plan);
            }
        });
        let Some(mut disk) = observed::opened(engine.open(chain), observer) else {
            return Ok(CaseEnd::Refused);
        };
        let size = disk.virtual_size_bytes();
        let (outcome, reach) = judged_walk(&mut disk, whole, fuel, run)?;
        let complete = reach == WalkReach::Complete;
        observed::work(run.meter.reads(), run.meter.bytes(), observer);
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        extents::check_flags(whole, set_aside)?;
        // Damage may change the place where the next file begins.
        if chain.layers().iter().all(|layer| layer.extents.is_empty()) {
            extents::check_maximal(whole, &[], set_aside)?;
        }
        observed::extents(whole, span_bits, observer);
        let is_walked = !whole.is_empty() || complete;
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        untouched.map_or(Ok(()), |it| it.check(&mut disk, is_walked, set_aside))?;
        if !is_walked {
            observed::read_places(&mut disk, (expected, questions), run.entropy, observer);
            return Ok(outcome);
        }
        let asked = &whole[..whole.len().min(MAX_ASKED)];
        observer.vital(Vital::Questions, (asked.len() + questions.len()) as u64);
        if !may_split_grains {
            observer.event(State::Check, Event::Lookup);
            let set_aside = &mut |found| run.verdicts.set_aside(found);
            lookup::check(&mut disk, asked, |_| true, set_aside)?;
        }
        observer.event(State::Check, Event::Read);
        let read = read_edges(&mut disk, asked, may_split_grains, observer);
        if !may_fail_to_read {
            run.verdicts.judge_answer(read)?;
        }
        if may_split_grains {
            return Ok(outcome);
        }
        if complete {
            let some = any_window(size, run.entropy);
            let walk = WholeWalk::complete(whole);
            run.verdicts.judge(walk.check(&mut disk, some, fuel.steps, other))?;
            ask(&mut disk, questions, (whole, fuel.steps), other, run)?;
        }
        // A stream of its own, so that the choices of the other oracles stay as they are.
        let mut own = Entropy::new(run.entropy.state().rotate_left(16));
        run.verdicts.judge(rewalk(&mut disk, (whole, reach), fuel, &mut own, other))?;
        Ok(outcome)
    }
}

/// Adds the questions of [`observed::read_places`] to `plan`, for a disk with the extents `expected`.
fn plan_unwalked(
    (expected, questions): (&[Extent], &[Question]),
    entropy: &Entropy,
    plan: &mut Vec<EngineQuestion>,
) {
    let size = expected.last().and_then(Extent::end).map_or(0, |end| end.get());
    let places = observed::places(size, (expected, questions), &mut entropy.clone()).into_iter();
    plan.extend(places.map(|(start, length)| EngineQuestion::Read(start, length.into())));
}

/// Returns a window that begins on a disk.
fn any_window(size_bytes: u64, entropy: &mut Entropy) -> Window {
    let start = GuestOffset::new(entropy.below(size_bytes.max(1)));
    Window { start, length_bytes: entropy.next_u64() >> entropy.below(64) }
}

/// Compares another walk with a whole walk, as far as that reached: of a window, or one that stops and resumes. A walk
/// that has used up its fuel is too expensive to be repeated.
pub(super) fn rewalk(
    disk: &mut TestedDisk,
    (extents, reach): (&[Extent], WalkReach),
    fuel: Fuel,
    entropy: &mut Entropy,
    other: &mut Vec<Extent>,
) -> OracleResult {
    let is_complete = match reach {
        WalkReach::Complete => true,
        WalkReach::Beginning => false,
        WalkReach::OutOfFuel => return Ok(()),
    };
    let Some(end) = extents.last().and_then(Extent::end) else { return Ok(()) };
    let whole = WholeWalk { extents, is_complete };
    if entropy.one_in(2) {
        return whole.check(disk, any_window(end.get(), entropy), fuel.steps, other);
    }
    let stop_after = 1 + entropy.below(extents.len() as u64) as usize;
    whole.check_resumed(disk, stop_after, fuel.steps, other)
}

/// Asks the questions of a program about a disk whose extents and whose fuel for a walk are known.
fn ask(
    disk: &mut TestedDisk,
    questions: &[Question],
    (whole, steps): (&[Extent], u64),
    other: &mut Vec<Extent>,
    run: &mut CaseRun,
) -> OracleResult {
    let observer = run.observer;
    for question in questions {
        let answered = match *question {
            Question::Walk(window) => {
                observer.event(State::Check, Event::Walk);
                WholeWalk::complete(whole).check(disk, window, steps, other)
            }
            Question::Lookup(guest) => {
                observer.event(State::Check, Event::Lookup);
                lookup::check_point(disk, guest, whole)
            }
            Question::Read { start, length_bytes } => {
                observer.event(State::Check, Event::Read);
                observed::read_any(disk, start, length_bytes, observer);
                continue;
            }
        };
        run.verdicts.judge_answer(answered)?;
    }
    Ok(())
}

/// Walks as [`walk`] does. If the engine has no answer, or the oracle meets a known finding, there are no extents:
/// those that came before mean nothing.
pub(super) fn judged_walk(
    disk: &mut TestedDisk,
    whole: &mut Vec<Extent>,
    fuel: Fuel,
    run: &mut CaseRun,
) -> OracleResult<(CaseEnd, WalkReach)> {
    let walked = run.verdicts.judge_answer(walk(disk, whole, fuel, run.observer))?;
    Ok(walked.unwrap_or_else(|| {
        whole.clear();
        (CaseEnd::Judged, WalkReach::Beginning)
    }))
}

/// Walks a disk up to a bound, and returns how far the walk came. Checks that the extents tile the disk or its
/// beginning.
pub(super) fn walk(
    disk: &mut TestedDisk,
    whole: &mut Vec<Extent>,
    fuel: Fuel,
    observer: &dyn Observer,
) -> OracleResult<(CaseEnd, WalkReach)> {
    observer.event(State::Check, Event::Walk);
    let size = disk.virtual_size_bytes();
    let mut collector = Collector::new(whole, fuel.steps).stopping_after(MAX_EXTENTS);
    let walked = disk.map(Window::ALL, &mut collector);
    let exhausted = collector.exhausted();
    if let Err(error) = &walked
        && error.kind() == ErrorKind::NoAnswer
    {
        return Err(unexpected_error("walk", "image", error));
    }
    bounds::check_steps(exhausted && fuel.enough, fuel.steps)?;
    if let Err(error) = &walked {
        observed::error(error, observer);
    }
    let reach = match walked.is_ok() && whole.len() < MAX_EXTENTS {
        _ if exhausted => WalkReach::OutOfFuel,
        true => WalkReach::Complete,
        false => WalkReach::Beginning,
    };
    if reach == WalkReach::Complete {
        extents::check_partition(whole, &(0..size))?;
    } else {
        observer.event(State::Check, Event::Stopped);
        extents::check_prefix(whole, &(0..size))?;
    }
    Ok((if walked.is_ok() { CaseEnd::Judged } else { CaseEnd::Failed }, reach))
}

/// Reads at both edges of each extent. If an extent of the image may end inside a grain, reads only at the beginnings:
/// a read behind that end is about the next extent. Compressed data may be broken; all other data must be readable.
pub(super) fn read_edges(
    disk: &mut TestedDisk,
    extents: &[Extent],
    may_split_grains: bool,
    observer: &dyn Observer,
) -> OracleResult {
    let mut bytes = [0; 64];
    for extent in extents {
        let length = usize::try_from(extent.length_bytes).unwrap_or(usize::MAX).min(bytes.len());
        let last = extent.start + (extent.length_bytes - length as u64);
        let last = (!may_split_grains).then_some(last);
        for start in [extent.start].into_iter().chain(last) {
            let answer: Result<(), EngineError> = disk.read(start, &mut bytes[..length]);
            match answer {
                Err(error) if !extent.mapping.compressed => {
                    return Err(unexpected_error("data", "range", &error));
                }
                Err(error) => observed::error(&error, observer),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}
