//! Runs the oracles in their order, with their buffers.

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::disk::storage::Layer;
use crate::harness::engine::{Capabilities, Engine, OpenDisk};
use crate::harness::model::Model;
use crate::harness::oracles;
use crate::harness::oracles::bounds::TableBytes;
use crate::harness::oracles::collector::Collector;
use crate::harness::oracles::known::VerifiedParts;
use crate::harness::oracles::metered::{Meter, MeteredImages};
use crate::harness::oracles::{OracleResult, Violation};
use crate::images::entropy::Entropy;
use crate::programs::Question;

use super::case::Case;

/// The oracles, with their buffers.
#[derive(Debug, Default)]
pub(super) struct Judge {
    model: Model,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    bytes: oracles::data::DataBuffers,
    snapshot: oracles::snapshots::SnapshotBuffers,
    /// The results that the oracles confirmed for the last image of the run.
    known: VerifiedParts,
}

/// The context in which one case is judged.
struct CaseContext<'h, 'c, O> {
    case: &'h Case<'c>,
    meter: &'h Meter,
    /// The number of bytes of tables that the disk has.
    table_bytes: u64,
    /// The highest number of steps of a walk.
    fuel: u64,
    observer: &'h O,
}

impl Judge {
    /// Begins a run: no result of its images is known.
    pub(super) fn begin_run(&mut self) {
        self.known.clear();
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
        let meter = &Meter::new();
        let metered = MeteredImages::new(case.images, meter);
        let chain = metered.chain();
        let fuel = oracles::bounds::fuel(table_bytes.active);
        let context = CaseContext { case, meter, table_bytes: table_bytes.active, fuel, observer };
        observer.begin(State::Check);
        if case.in_full {
            self.known.clear();
        }
        let reads = self.judge_answers(engine, &chain, &context, entropy)?;
        if !case.in_full {
            self.known.note(&self.model, &self.whole);
            return Ok(());
        }
        let fail_at = entropy.below(reads);
        let Self { whole, other, .. } = self;
        oracles::io::check(engine, &chain, meter, fail_at, whole, fuel, other)?;
        let snapshots = self.model.snapshot_count();
        if snapshots == 0 || !engine.capabilities().snapshots {
            return Ok(());
        }
        let index = entropy.below(snapshots as u64) as usize;
        let Self { model, snapshot, .. } = self;
        meter.restart(u64::MAX);
        observer.event(State::Check, Event::Snapshot);
        oracles::snapshots::check(engine, &chain, index, model, table_bytes.of_a_snapshot, snapshot)
    }

    /// Runs all oracles except those of failing reads and of snapshots. Returns the number of reads for opening and
    /// walking the image.
    fn judge_answers<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        chain: &[Layer],
        context: &CaseContext<O>,
        entropy: &mut Entropy,
    ) -> Result<u64, Box<Violation>> {
        let capabilities = engine.capabilities();
        let disk = &mut match engine.open(chain) {
            Ok(disk) => disk,
            Err(error) => return Err(oracles::unexpected_error("open", "image", &error)),
        };
        oracles::model::check_size(self.model.virtual_size_bytes(), disk.virtual_size_bytes())?;
        let reads = self.judge_walk(disk, chain.len(), context)?;
        let Self { model, whole, other, known, .. } = self;
        if context.case.in_full && !whole.is_empty() {
            let stop_after = 1 + entropy.below(whole.len() as u64) as usize;
            oracles::window::check_resumed(disk, stop_after, whole, context.fuel, other)?;
        }
        if capabilities.lookup {
            oracles::lookup::check(disk, whole, known.new_extents())?;
        }
        if capabilities.read {
            oracles::data::check(&mut |at, into| disk.read(at, into), model, known.new_visible())?;
        }
        self.judge_questions(disk, &capabilities, context)?;
        Ok(reads)
    }

    /// Judges the engine's answers to the program's questions.
    fn judge_questions<O: Observer>(
        &mut self,
        disk: &mut impl OpenDisk,
        capabilities: &Capabilities,
        context: &CaseContext<O>,
    ) -> OracleResult {
        let Self { model, whole, other, bytes, .. } = self;
        for question in context.case.questions {
            match *question {
                Question::Walk(window) => {
                    context.observer.event(State::Check, Event::Walk);
                    oracles::window::check(disk, window, whole, context.fuel, other)?;
                }
                Question::Lookup(guest) if capabilities.lookup => {
                    context.observer.event(State::Check, Event::Lookup);
                    oracles::lookup::check_point(disk, guest, whole)?;
                }
                Question::Read { start, length_bytes } if capabilities.read => {
                    let length = usize::from(length_bytes);
                    if !oracles::data::costly(model, start, length) {
                        context.observer.event(State::Check, Event::Read);
                        oracles::data::check_range(disk, model, start, length, bytes)?;
                    }
                }
                Question::Lookup(_) | Question::Read { .. } => {}
            }
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
        let CaseContext { case, meter, table_bytes, fuel, observer } = *context;
        let Self { model, expected, whole, .. } = self;
        let size = model.virtual_size_bytes();
        let (open_reads, open_bytes) = (meter.reads(), meter.bytes());
        meter.restart(u64::MAX);
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let exhausted = collector.exhausted();
        let reads = open_reads + meter.reads();
        let read_bytes = meter.bytes();
        let cost = oracles::bounds::Cost { layers, table_bytes, read_bytes, exhausted };
        oracles::bounds::check(&cost, whole, size, case.cell_bytes)?;
        if let Err(error) = walked {
            return Err(oracles::unexpected_error("walk", "image", &error));
        }
        oracles::partition::check(whole, &(0..size))?;
        oracles::flags::check(whole)?;
        // This oracle runs before the model, which would report a missed merge only as a wrong length.
        oracles::maximal::check(whole)?;
        oracles::model::check(expected, whole)?;
        observer.vital(Vital::Reads, reads);
        observer.vital(Vital::ReadBytes, open_bytes + read_bytes);
        if O::OBSERVES {
            report_extents(whole, case.table_span_bits, observer);
        }
        Ok(reads)
    }
}

/// Reports the extents of a whole walk to the observer. Each table of the disk maps `1 << span_bits` bytes.
fn report_extents(whole: &[Extent], span_bits: u32, observer: &impl Observer) {
    observer.begin(State::Emit);
    observer.vital(Vital::Extents, whole.len() as u64);
    for extent in whole {
        let Extent { start, length_bytes, mapping } = extent;
        observer.event(State::Emit, mapping.event());
        observer.vital(Vital::Depth, u64::from(mapping.depth));
        let last = start.get() + (length_bytes - 1);
        if mapping.present && start.get() >> span_bits != last >> span_bits {
            observer.rare(Rare::ExtentAcrossTables);
        }
    }
}
