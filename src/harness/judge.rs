//! Runs the oracles in their order, with their buffers.

use std::sync::Arc;

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::{Event, Observer, State};
use crate::harness::claims::{CostPolicy, SizePolicy};
use crate::harness::engine::{Engine, EngineEnd, OpenDisk};
use crate::harness::idle::QuestionKind;
use crate::harness::model::Model;
use crate::harness::oracles;
use crate::harness::oracles::bounds::TableBytes;
use crate::harness::oracles::collector::Collector;
use crate::harness::oracles::data::inside;
use crate::harness::oracles::known::VerifiedParts;
use crate::harness::oracles::memory::MemoryMeter;
use crate::harness::oracles::observed;
use crate::harness::oracles::observed::WalkWork;
use crate::harness::oracles::{OracleResult, Violation};
use crate::images::entropy::Entropy;
use crate::programs::Question;

use super::accesses::AccessReport;
use super::case::Case;
use super::chain::Chain;
use super::known::KnownFindings;
use super::meter::Meter;
use super::rounded::{DiskSizes, Rounded};
use super::second_opinion::Opinion;
use super::verdicts::Verdicts;

/// The oracles, with their buffers.
#[derive(Debug, Default)]
pub(super) struct Judge {
    model: Model,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    bytes: oracles::data::DataBuffers,
    snapshot: oracles::snapshots::SnapshotBuffers,
    meter: Arc<Meter>,
    accesses: AccessReport,
    verdicts: Verdicts,
    /// The engine has walked the disk of the last image, and the oracles found no fault in the extents.
    is_walked: bool,
    /// The results that the oracles confirmed for the last image of the run.
    known: VerifiedParts,
}

/// The context in which one case is judged.
struct CaseContext<'h, 'c, O> {
    case: &'h Case<'c>,
    meter: &'h Meter,
    /// The number of bytes of tables that the disk has.
    tables: TableBytes,
    /// The highest number of steps of a walk.
    fuel: u64,
    cost: CostPolicy,
    observer: &'h O,
}

impl Judge {
    /// Creates a judge that sets the findings `known` aside.
    pub(super) fn knowing(known: KnownFindings) -> Self {
        Self { verdicts: Verdicts::knowing(known), ..Self::default() }
    }

    /// Begins a run: no result of its images is known.
    pub(super) fn begin_run(&mut self) {
        self.known.clear();
        self.verdicts.begin_run();
    }

    /// Returns the verdicts on this run.
    pub(super) fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// Returns the verdicts on this run, for an oracle of the caller.
    pub(super) fn verdicts_mut(&mut self) -> &mut Verdicts {
        &mut self.verdicts
    }

    /// Returns the verdict on an image whose answers were `judged`: the process that gave them may have ended.
    pub(super) fn ended(&mut self, end: Option<EngineEnd>, judged: OracleResult) -> OracleResult {
        self.verdicts.judge_end(end, judged, ())
    }

    /// Has `second` judge the engine's answers about the last image, too.
    pub(super) fn compare<E: Engine>(
        &mut self,
        second: &mut Opinion,
        engine: &mut E,
        case: &Case,
    ) -> OracleResult {
        second.judge(engine, case, Some(&self.expected), &mut self.verdicts)
    }

    /// Returns the extents that the model expected of the last image.
    pub(super) fn expected(&self) -> &[Extent] {
        &self.expected
    }

    /// Returns the extents that the engine emitted for the last image.
    pub(super) fn whole(&self) -> &[Extent] {
        &self.whole
    }

    /// Judges how an engine reads the images of `case`. The structures of the images are correct, and have
    /// `table_bytes` of tables.
    pub(super) fn engine<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        case: &Case,
        table_bytes: TableBytes,
        observer: &O,
        entropy: &mut Entropy,
    ) -> OracleResult {
        self.model.replay(case.journals.iter().copied());
        self.model.extents(&mut self.expected);
        let policy = engine.policy();
        let memory = MemoryMeter::begin();
        match policy.size {
            SizePolicy::WholeSectors => {
                self.judge(engine, case, table_bytes, policy.cost, observer, entropy)?;
            }
            SizePolicy::Near => {
                let active = self.model.stored_size_bytes();
                let sizes = DiskSizes {
                    active,
                    snapshots: self.model.stored_snapshot_sizes_bytes().collect(),
                };
                let engine = &mut Rounded { engine, sizes };
                self.judge(engine, case, table_bytes, policy.cost, observer, entropy)?;
            }
        }
        self.verdicts.judge(memory.check(policy.memory)).map(|_| ())
    }

    fn judge<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        case: &Case,
        table_bytes: TableBytes,
        cost: CostPolicy,
        observer: &O,
        entropy: &mut Entropy,
    ) -> OracleResult {
        Meter::renew(&mut self.meter);
        let meter = &*Arc::clone(&self.meter);
        meter.restart(u64::MAX);
        let chain = Chain::metered(case.images, &self.meter);
        let fuel = oracles::bounds::fuel(table_bytes.active);
        let context = CaseContext { case, meter, tables: table_bytes, fuel, cost, observer };
        observer.begin(State::Check);
        if case.in_full {
            self.known.clear();
        }
        AccessReport::begin(engine.accesses_are_feedback(), meter, observer);
        let answered = self.judge_answers(engine, &chain, &context, entropy);
        self.accesses.end((case.images, &case.journals), meter, observer);
        let Some(reads) = answered? else {
            // A known finding: the engine does not open the image.
            return Ok(());
        };
        if !case.in_full {
            self.known.note(&self.model, &self.whole);
            return Ok(());
        }
        let fail_at = entropy.below(reads);
        self.judge_failing_read(engine, &chain, &context, fail_at)?;
        let snapshots = self.model.snapshot_count();
        if snapshots == 0 {
            return Ok(());
        }
        let index = entropy.below(snapshots as u64) as usize;
        meter.restart(u64::MAX);
        observer.event(State::Check, Event::Snapshot);
        let Self { model, snapshot, verdicts, .. } = self;
        // A stream of its own, so that the choices of the other oracles stay as they are.
        snapshot.entropy = Entropy::new(entropy.state().rotate_left(32));
        let (bytes, unanswered) = (table_bytes.of_a_snapshot, verdicts.unanswered());
        let judged =
            oracles::snapshots::check(engine, &chain, index, model, bytes, unanswered, snapshot);
        verdicts.judge_answers(QuestionKind::Snapshots, judged).map(|_| ())
    }

    /// Judges the engine while the read number `fail_at` fails.
    fn judge_failing_read<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        chain: &Chain,
        context: &CaseContext<O>,
        fail_at: u64,
    ) -> OracleResult {
        let Self { model, whole, other, verdicts, is_walked, .. } = self;
        let (meter, fuel) = (context.meter, context.fuel);
        let judged = match is_walked {
            true => oracles::io::check(engine, chain, meter, fail_at, whole, fuel, other),
            false => oracles::io::check_data(engine, chain, meter, fail_at, model),
        };
        verdicts.judge(judged).map(|_| ())
    }

    /// Runs all oracles except those of failing reads and of snapshots. Returns the number of reads for opening and
    /// walking the image; `None` if the engine does not open it, which is a known finding.
    fn judge_answers<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        chain: &Chain,
        context: &CaseContext<O>,
        entropy: &mut Entropy,
    ) -> Result<Option<u64>, Box<Violation>> {
        let reads_are_feedback = engine.accesses_are_feedback();
        let opened = engine.open(chain);
        let opened = opened.map_err(|error| oracles::unexpected_error("open", "image", &error));
        let Some(mut disk) = self.verdicts.judge(opened)? else { return Ok(None) };
        let (disk, expected_bytes) = (&mut disk, self.model.virtual_size_bytes());
        let sized = oracles::model::check_size(expected_bytes, disk.virtual_size_bytes());
        self.verdicts.judge(sized)?;
        let walked = self.judge_walk(disk, chain.layers().len(), context);
        let walk_reads = self.verdicts.judge_answers(QuestionKind::Map, walked)?;
        let Self { model, expected, whole, other, known, verdicts, is_walked, .. } = self;
        *is_walked = walk_reads.is_some();
        if !*is_walked {
            whole.clone_from(expected);
        } else if context.case.in_full && !whole.is_empty() {
            let stop_after = 1 + entropy.below(whole.len() as u64) as usize;
            let fuel = context.fuel;
            let resumed = oracles::window::check_resumed(disk, stop_after, whole, fuel, other);
            verdicts.judge(resumed)?;
        }
        let looked_up = oracles::lookup::check(disk, whole, known.new_extents());
        verdicts.judge_answers(QuestionKind::Status, looked_up)?;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let data = oracles::data::check(read, model, known.new_visible());
        let has_read = verdicts.judge_answers(QuestionKind::Read, data)?.is_some();
        if context.case.in_full && has_read {
            self.judge_inside(disk, entropy)?;
        }
        let reads = walk_reads.unwrap_or_else(|| context.meter.reads());
        if walk_reads.is_none() && reads_are_feedback {
            // An engine without a walk has the work of its other answers.
            let (bytes, table_bytes) = (context.meter.bytes(), context.tables.active);
            let work = WalkWork { reads, bytes, extents: 0, table_bytes };
            observed::work(&work, context.observer);
        }
        self.judge_questions(disk, context)?;
        if context.case.in_full {
            oracles::info::check(disk, context.case, &mut self.verdicts)?;
        }
        Ok(Some(reads))
    }

    /// Judges reads of the inside of the data: all, if the engine is judged by its reads alone.
    fn judge_inside(&mut self, disk: &mut impl OpenDisk, entropy: &Entropy) -> OracleResult {
        let Self { model, bytes, verdicts, is_walked, .. } = self;
        let share = if *is_walked { inside::Share::Drawn } else { inside::Share::All };
        // A stream of its own, so that the choices of the other oracles stay as they are.
        let mut own = Entropy::new(!entropy.state());
        let judged = inside::check(disk, model, share, &mut own, bytes);
        verdicts.judge(judged).map(|_| ())
    }

    /// Judges the engine's answers to the program's questions.
    fn judge_questions<O: Observer>(
        &mut self,
        disk: &mut impl OpenDisk,
        context: &CaseContext<O>,
    ) -> OracleResult {
        let Self { model, whole, other, bytes, verdicts, is_walked, .. } = self;
        for question in context.case.questions {
            let (kind, judged) = match *question {
                Question::Walk(window) if *is_walked => {
                    context.observer.event(State::Check, Event::Walk);
                    let judged = oracles::window::check(disk, window, whole, context.fuel, other);
                    (QuestionKind::Map, judged)
                }
                Question::Lookup(guest) if !verdicts.unanswered().has(QuestionKind::Status) => {
                    context.observer.event(State::Check, Event::Lookup);
                    (QuestionKind::Status, oracles::lookup::check_point(disk, guest, whole))
                }
                Question::Read { start, length_bytes }
                    if !verdicts.unanswered().has(QuestionKind::Read) =>
                {
                    let length = usize::from(length_bytes);
                    if oracles::data::costly(model, start, length) {
                        continue;
                    }
                    context.observer.event(State::Check, Event::Read);
                    let judged = oracles::data::check_range(disk, model, start, length, bytes);
                    (QuestionKind::Read, judged)
                }
                Question::Walk(_) | Question::Lookup(_) | Question::Read { .. } => continue,
            };
            verdicts.judge_answers(kind, judged)?;
        }
        Ok(())
    }

    /// Walks and judges the whole disk. Returns the number of reads, including those for opening.
    fn judge_walk<O: Observer>(
        &mut self,
        disk: &mut impl OpenDisk,
        layers: usize,
        context: &CaseContext<O>,
    ) -> Result<u64, Box<Violation>> {
        let CaseContext { case, meter, tables, fuel, cost, observer } = *context;
        let Self { model, expected, whole, verdicts, .. } = self;
        let size = model.virtual_size_bytes();
        let open_bytes = meter.bytes();
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let (exhausted, fuel_left) = (collector.exhausted(), collector.fuel_left());
        let reads = meter.reads();
        // Threads of an engine may lose counts: then it has read nothing.
        let read_bytes = meter.bytes().saturating_sub(open_bytes);
        let judged_bytes = match cost {
            CostPolicy::Judged => read_bytes,
            CostPolicy::NotJudged => 0,
        };
        let cost = oracles::bounds::Cost { layers, tables, read_bytes: judged_bytes, exhausted };
        verdicts.judge(oracles::bounds::check(&cost, whole, size, case.cell_bytes))?;
        if let Err(error) = walked {
            return Err(oracles::unexpected_error("walk", "image", &error));
        }
        oracles::partition::check(whole, &(0..size))?;
        oracles::flags::check(whole)?;
        // This oracle runs before the model, which would report a missed merge only as a wrong length.
        oracles::maximal::check(whole, &case.file_edges())?;
        oracles::model::check(expected, whole)?;
        let (bytes, table_bytes) = (open_bytes + read_bytes, tables.active);
        let work = WalkWork { reads, bytes, extents: whole.len(), table_bytes };
        observed::work(&work, observer);
        observed::fuel(fuel, fuel_left, observer);
        observed::extents(whole, case.table_span_bits, observer);
        Ok(reads)
    }
}
