//! Explains an input: its operations and their effects, the layout of the files that it builds, and the extents that
//! the reference model expects. This module judges nothing.

mod entries;
mod files;
mod spelled;
mod steps;

use std::collections::BTreeSet;
use std::ops::Range;

use smallvec::SmallVec;

use crate::disk::extent::{Extent, Window};
use crate::disk::limits::{EXPLAINED_FUEL, MAX_EXPLAINED_EXTENTS, MAX_LAYERS};
use crate::disk::storage::Layer;
use crate::findings::provenance::Provenance;
use crate::findings::watch::{Watch, Watched};
use crate::formats::qcow2::anatomy::Anatomy;
use crate::harness::engine::{Engine, OpenDisk};
use crate::harness::model::Model;
use crate::harness::oracles::collector::Collector;
use crate::images::damage::Damage;
use crate::images::files::{FileNames, Images};
use crate::images::image::Image;
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

pub use entries::ExplainedEntry;
pub use files::{FileKind, FileRun, FileView};
pub use spelled::spelled;
pub use steps::{Mapped, Step, StepChange};

/// An input, explained.
#[derive(Debug)]
pub struct Explanation {
    /// The decoded program.
    pub program: Program,
    /// Its records, in order.
    pub steps: Vec<Step>,
    /// The files that it builds, from the image itself down, each data file behind its image.
    pub files: Vec<FileView>,
    /// The extents that the reference model expects of the disk, where no damage is done.
    pub expected: Vec<Extent>,
    /// The provenance of each layer, from the top down.
    provenance: Vec<Provenance>,
    vm: Vm,
    images: Images,
}

/// Explains the program that `input` is, as far as its first `operations` go: what comes behind is listed, and not
/// run. Images call other files by `names`.
pub fn explain(input: &[u8], limits: Limits, operations: usize, names: &FileNames) -> Explanation {
    let program = Program::decode(input);
    let (mut vm, mut steps, provenance) = steps::run(input, &program, limits, operations);
    let mut images = Images::default();
    vm.build(names, &mut images, &());
    let mut files = files::view(&images, &vm, &provenance);
    let mut expected = Vec::new();
    let mut model = Model::default();
    model.replay(vm.journals());
    model.extents(&mut expected);
    if !vm.attacks().is_empty() {
        steps::aim(&mut steps, &images, vm.attacks());
        Damage::default().apply(&mut images, vm.attacks());
        files::note_damage(&mut files, &images);
    }
    Explanation { program, steps, files, expected, provenance, vm, images }
}

/// Runs the walker on the undamaged top image and returns the ranges that it reads.
pub fn reads(program: &Program, limits: Limits, operations: usize) -> Vec<Watched> {
    let operations = program.operations.iter().copied().take(operations).collect();
    let begun = Program { prologue: program.prologue, operations };
    Watch::default().run(&begun, limits).to_vec()
}

/// Returns the extents that an engine reports for the images, and the reason if the walk did not finish. At
/// most [`MAX_EXPLAINED_EXTENTS`] are kept.
pub fn walk<E: Engine>(engine: &mut E, images: &Images) -> (Vec<Extent>, Option<String>) {
    let chain: SmallVec<[Layer; MAX_LAYERS]> =
        images.layers().map(|files| files.layer().erased()).collect();
    walk_chain(engine, &chain)
}

/// The same of a chain of any files.
pub fn walk_chain<E: Engine>(engine: &mut E, chain: &[Layer]) -> (Vec<Extent>, Option<String>) {
    let mut extents = Vec::new();
    let mut collector =
        Collector::new(&mut extents, EXPLAINED_FUEL).stopping_after(MAX_EXPLAINED_EXTENTS);
    let walked = engine.open(chain).and_then(|mut disk| disk.map(Window::ALL, &mut collector));
    let ended = match walked {
        Err(error) => Some(error.to_string()),
        Ok(()) if collector.exhausted() => Some("too many steps".to_string()),
        Ok(()) if extents.len() >= MAX_EXPLAINED_EXTENTS => Some("too many extents".to_string()),
        Ok(()) => None,
    };
    (extents, ended)
}

/// Explains a file of any content.
pub fn explain_file(image: &Image) -> FileView {
    files::image(image, &mut Anatomy::default(), 0, &Provenance::default())
}

impl Explanation {
    /// The files themselves, damaged where the program does that, and the machine that knows what they call each
    /// other.
    pub fn built(&self) -> (&Vm, &Images) {
        (&self.vm, &self.images)
    }

    /// The operations that touched some of these guest bytes, in order: those of one layer, or of all.
    pub fn touching(&self, guest: &Range<u64>, depth: Option<usize>) -> Vec<usize> {
        // Lower layers come first: so do their operations.
        let layers = self.provenance.iter().enumerate().rev();
        let asked = layers.filter(|(layer, _)| depth.is_none_or(|depth| depth == *layer));
        asked.flat_map(|(_, layer)| layer.touching(guest)).collect()
    }

    /// Notes which entries of the image at the top were read.
    pub fn note_reads(&mut self, reads: &[Watched]) {
        let reads: BTreeSet<_> = reads.iter().map(|it| (it.part, it.at)).collect();
        let top = self.files.first_mut().into_iter();
        for entry in top.flat_map(|file| &mut file.entries) {
            entry.read = reads.contains(&(entry.part, entry.at));
        }
    }
}

#[cfg(test)]
mod tests;
