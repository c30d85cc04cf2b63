//! Explains an input: its operations and their effects, the layout of the files that it builds, and the extents that
//! the reference model expects. This module judges nothing.

mod entries;
mod files;
mod provenance;
pub(crate) mod refcounts;
mod steps;
pub(crate) mod watch;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::base::limits::{EXPLAINED_FUEL, MAX_EXPLAINED_EXTENTS};
use crate::disk::extent::{Extent, Window};
use crate::formats::anatomy::Anatomy;
use crate::harness::engine::{Engine, EngineError};
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::harness::oracles::bounds::Collector;
use crate::images::damage::Damage;
use crate::images::files::image::Image;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

use provenance::Provenance;
use watch::{Watch, Watched};

pub use files::{FileKind, FileRun, FileView};

pub use entries::{DamagedValue, ExplainedEntry};
pub use steps::{Step, effect_name};

/// The explanation of an input.
#[derive(Debug)]
pub struct Explanation {
    /// The records of the program, in order.
    pub steps: Vec<Step>,
    /// The files that the program builds, from the top image down. Each data file follows its image.
    pub files: Vec<FileView>,
    /// The extents that the reference model expects of the undamaged disk.
    pub expected: Vec<Extent>,
    /// The files, and the operations behind their bytes.
    pub built: BuiltFiles,
}

/// The files of an explained program, and the operations behind their bytes.
#[derive(Debug)]
pub struct BuiltFiles {
    /// The provenance of each layer, from the top down.
    provenance: Vec<Provenance>,
    vm: Vm,
    images: Images,
}

/// Explains the program `input`. Runs only its first `operations` operations; the explanation lists the others without
/// an effect. Images name other files by `names`.
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
    Explanation { steps, files, expected, built: BuiltFiles { provenance, vm, images } }
}

/// Runs the walker on the undamaged top image and returns the ranges that it reads.
pub fn reads(input: &[u8], limits: Limits, operations: usize) -> Vec<Watched> {
    let mut program = Program::decode(input);
    program.operations.truncate(operations);
    Watch::default().run(&program, limits).read().to_vec()
}

/// The walk of an engine.
#[derive(Debug)]
pub struct ExplainedWalk {
    /// The extents that the engine reported, at most `MAX_EXPLAINED_EXTENTS`.
    pub extents: Vec<Extent>,
    /// The engine answers `map`.
    pub is_mapped: bool,
    /// The reason if the walk did not finish.
    pub ended: Option<String>,
}

impl Default for ExplainedWalk {
    fn default() -> Self {
        Self { extents: Vec::new(), is_mapped: true, ended: None }
    }
}

/// Has an engine walk a chain of any files.
pub fn walk(engine: &mut dyn Engine, chain: &Chain) -> ExplainedWalk {
    let mut extents = Vec::new();
    let mut collector =
        Collector::new(&mut extents, EXPLAINED_FUEL).stopping_after(MAX_EXPLAINED_EXTENTS);
    let walked = engine.open(chain).and_then(|mut disk| disk.map(Window::ALL, &mut collector));
    let is_mapped = !matches!(walked, Err(EngineError::NoAnswer));
    let ended = match walked {
        Err(EngineError::NoAnswer) => Some("the engine has no answer to 'map'".to_string()),
        Err(error) => Some(error.to_string()),
        Ok(()) if collector.exhausted() => Some("too many steps".to_string()),
        Ok(()) if extents.len() >= MAX_EXPLAINED_EXTENTS => Some("too many extents".to_string()),
        Ok(()) => None,
    };
    ExplainedWalk { extents, is_mapped, ended }
}

/// Explains a file of any content.
pub fn explain_file(image: &Image) -> FileView {
    files::image(image, &mut Anatomy::default(), 0, &Provenance::default())
}

impl BuiltFiles {
    /// Returns the virtual machine, which knows the names in the images, and the images, damaged if the program damages
    /// them.
    pub fn files(&self) -> (&Vm, &Images) {
        (&self.vm, &self.images)
    }

    /// Returns the operations that mapped some of these guest bytes, in order. `depth` selects one layer; `None`
    /// selects all.
    pub fn touching(&self, guest: &Range<u64>, depth: Option<usize>) -> Vec<usize> {
        // The operations of lower layers come first in the program, so lower layers come first here.
        let layers = self.provenance.iter().enumerate().rev();
        let asked = layers.filter(|(layer, _)| depth.is_none_or(|depth| depth == *layer));
        asked.flat_map(|(_, layer)| layer.touching(guest)).collect()
    }
}

impl Explanation {
    /// Marks the entries of the top layer that the walker read.
    pub fn note_reads(&mut self, reads: &[Watched]) {
        for file in self.files.iter_mut().filter(|file| file.depth == 0) {
            let Some(place) = file.kind.layer_file() else { continue };
            let own = reads.iter().filter(|it| it.depth == 0 && it.file == place);
            let reads: BTreeSet<_> = own.map(|it| (it.part, it.at)).collect();
            for entry in &mut file.entries {
                entry.read = reads.contains(&(entry.part, entry.at));
            }
        }
    }
}

#[cfg(test)]
mod tests;
