//! The oracles in their order, with their buffers.

use crate::formats::qcow2::layout::Layout;
use smallvec::SmallVec;

use crate::disk::extent::{Extent, Window};
use crate::disk::limits::MAX_LAYERS;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::disk::storage::Layer;
use crate::harness::engine::{Capabilities, Engine, OpenDisk};
use crate::harness::model::Model;
use crate::harness::oracles;
use crate::harness::oracles::collector::Collector;
use crate::harness::oracles::known::Known;
use crate::harness::oracles::metered::{Meter, MeteredImages};
use crate::harness::oracles::recount::Recount;
use crate::harness::oracles::{Verdict, Violation};
use crate::images::entropy::Entropy;
use crate::images::files::Images;
use crate::programs::{Question, Vm};

use super::Built;

/// The oracles, with their buffers.
#[derive(Debug, Default)]
pub(super) struct Judge {
    model: Model,
    recount: Recount,
    /// Bytes of the active L1 and L2 tables of each layer that are there, from the lowest layer up.
    layer_table_bytes: SmallVec<[u64; MAX_LAYERS]>,
    /// The sum of these.
    table_bytes: u64,
    /// The same where the image at the top is any of its snapshots.
    snapshot_bytes: u64,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    bytes: oracles::data::Buffers,
    snapshot: oracles::snapshots::Buffers,
    /// What was found right in the last image of the run.
    known: Known,
}

/// What one image is judged by.
struct Case<'c, O> {
    vm: &'c Vm,
    in_full: bool,
    meter: &'c Meter,
    /// The steps that a walk may make.
    fuel: u64,
    observer: &'c O,
}

impl Judge {
    /// Begins a run: nothing is known of its images.
    pub(super) fn begin_run(&mut self) {
        self.known.clear();
    }

    /// The extents that were expected of the last image.
    pub(super) fn expected(&self) -> &[Extent] {
        &self.expected
    }

    /// The extents that the engine gave for it.
    pub(super) fn whole(&self) -> &[Extent] {
        &self.whole
    }

    /// Judges the bytes of each image by themselves. Layers that did not change since the last image of the same run
    /// have been judged.
    pub(super) fn images(&mut self, images: &Images) -> Verdict {
        self.layer_table_bytes.truncate(images.unchanged());
        self.snapshot_bytes = 0;
        for files in images.layers().rev().skip(images.unchanged()) {
            let mut active_bytes = 0;
            if !files.raw {
                oracles::refcounts::check(&mut self.recount, &files.image, &files.out_of_date)?;
                active_bytes = self.recount.active_table_bytes();
                self.snapshot_bytes = self.recount.snapshot_table_bytes();
            }
            self.layer_table_bytes.push(active_bytes);
        }
        self.table_bytes = self.layer_table_bytes.iter().sum();
        let below = self.layer_table_bytes.split_last().map_or(0, |(_, below)| below.iter().sum());
        self.snapshot_bytes += below;
        Ok(())
    }

    /// Judges what an engine makes of images that [`Judge::images`] has passed.
    pub(super) fn engine<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        built: &Built,
        observer: &O,
        entropy: &mut Entropy,
    ) -> Verdict {
        let Built { images, vm, in_full, .. } = *built;
        self.model.replay(vm.journals());
        self.model.extents(&mut self.expected);
        let meter = &Meter::new();
        let metered = MeteredImages::new(images, meter);
        let chain = metered.chain();
        let fuel = oracles::bounds::fuel(self.table_bytes);
        let case = Case { vm, in_full, meter, fuel, observer };
        observer.begin(State::Check);
        if in_full {
            self.known.clear();
        }
        let reads = self.answers(engine, &chain, &case, entropy)?;
        if !in_full {
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
        let Self { model, snapshot_bytes, snapshot, .. } = self;
        meter.restart(u64::MAX);
        observer.event(State::Check, Event::Snapshot);
        oracles::snapshots::check(engine, &chain, index, model, *snapshot_bytes, snapshot)
    }

    /// Asks everything but what happens when a read fails; returns how many reads opening the image
    /// and walking it takes.
    fn answers<E: Engine, O: Observer>(
        &mut self,
        engine: &mut E,
        chain: &[Layer],
        case: &Case<O>,
        entropy: &mut Entropy,
    ) -> Result<u64, Box<Violation>> {
        let capabilities = engine.capabilities();
        let disk = &mut match engine.open(chain) {
            Ok(disk) => disk,
            Err(error) => return Err(oracles::unexpected_error("open", "image", &error)),
        };
        oracles::model::check_size(self.model.virtual_size_bytes(), disk.virtual_size_bytes())?;
        let reads = self.walk(disk, chain.len(), case)?;
        let Self { model, whole, other, known, .. } = self;
        if case.in_full && !whole.is_empty() {
            let stop_after = 1 + entropy.below(whole.len() as u64) as usize;
            oracles::window::check_resumed(disk, stop_after, whole, case.fuel, other)?;
        }
        if capabilities.lookup {
            oracles::lookup::check(disk, whole, known.new_extents())?;
        }
        if capabilities.read {
            oracles::data::check(disk, model, known.new_visible())?;
        }
        self.questions(disk, &capabilities, case)?;
        Ok(reads)
    }

    /// Asks what the program asks.
    fn questions<O: Observer>(
        &mut self,
        disk: &mut impl OpenDisk,
        capabilities: &Capabilities,
        case: &Case<O>,
    ) -> Verdict {
        let Self { model, whole, other, bytes, .. } = self;
        for question in case.vm.questions() {
            match *question {
                Question::Walk(window) => {
                    case.observer.event(State::Check, Event::Walk);
                    oracles::window::check(disk, window, whole, case.fuel, other)?;
                }
                Question::Lookup(guest) if capabilities.lookup => {
                    case.observer.event(State::Check, Event::Lookup);
                    oracles::lookup::check_point(disk, guest, whole)?;
                }
                Question::Read { start, length_bytes } if capabilities.read => {
                    let length = usize::from(length_bytes);
                    if !oracles::data::costly(model, start, length) {
                        case.observer.event(State::Check, Event::Read);
                        oracles::data::check_range(disk, model, start, length, bytes)?;
                    }
                }
                Question::Lookup(_) | Question::Read { .. } => {}
            }
        }
        Ok(())
    }

    /// The whole walk; returns how many reads it took, with those of opening.
    fn walk<O: Observer>(
        &mut self,
        disk: &mut impl OpenDisk,
        layers: usize,
        case: &Case<O>,
    ) -> Result<u64, Box<Violation>> {
        let Case { vm, meter, fuel, observer, .. } = *case;
        let Self { model, table_bytes, expected, whole, .. } = self;
        let size = model.virtual_size_bytes();
        let (open_reads, open_bytes) = (meter.reads(), meter.bytes());
        meter.restart(u64::MAX);
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let exhausted = collector.exhausted();
        let reads = open_reads + meter.reads();
        let (table_bytes, read_bytes) = (*table_bytes, meter.bytes());
        let cost = oracles::bounds::Cost { layers, table_bytes, read_bytes, exhausted };
        let cell_bytes = vm.builders().map(|builder| builder.plan().geometry.cell_bytes()).min();
        oracles::bounds::check(&cost, whole, size, cell_bytes.unwrap_or(1))?;
        if let Err(error) = walked {
            return Err(oracles::unexpected_error("walk", "image", &error));
        }
        oracles::partition::check(whole, &(0..size))?;
        oracles::flags::check(whole)?;
        // Before the model, to which a missed merge is one wrong length among others.
        oracles::maximal::check(whole)?;
        oracles::model::check(expected, whole)?;
        observer.vital(Vital::Reads, reads);
        observer.vital(Vital::ReadBytes, open_bytes + read_bytes);
        if O::OBSERVES {
            tell(whole, vm.builder().plan().geometry.l2_span_bits(), observer);
        }
        Ok(reads)
    }
}

/// Tells what there is to see of a whole walk's extents, whose disk has L2 tables for `1 << span_bits`
/// bytes each.
fn tell(whole: &[Extent], span_bits: u32, observer: &impl Observer) {
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
