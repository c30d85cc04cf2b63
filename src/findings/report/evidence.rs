//! The evidence of a finding: everything that explains an input. `replay` prints it, `report` draws it, `bundle` packs
//! it.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::disk::extent::Extent;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::findings::explain::{self, BuiltFiles, ExplainedWalk, Explanation, FileView, Step};
use crate::findings::panics;
use crate::findings::report::log::Log;
use crate::findings::report::records::MapRecord;
use crate::findings::runner::Runner;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::cases::lanes::Lane;
use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::files::chain::Chain;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::images::files::image::Image;

/// The explanation of an input.
#[derive(Debug, Default, Serialize)]
pub struct Evidence {
    /// The records of the program; empty if the input is a file.
    pub steps: Vec<Step>,
    /// The requests in flight over time, for each group of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<Vec<Lane>>,
    /// The measures of the last image, by name.
    pub vitals: BTreeMap<&'static str, u64>,
    /// The files that the program built, from the top image down.
    pub files: Vec<FileView>,
    /// The extents that the reference model expects; empty if the input is a file.
    #[serde(serialize_with = "serialise_extents")]
    pub expected: Vec<Extent>,
    /// The extents that the implementation emits.
    #[serde(serialize_with = "serialise_extents")]
    pub actual: Vec<Extent>,
    /// The engine answers `map`.
    #[serde(skip)]
    pub is_mapped: bool,
    /// The reason why the walk ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_ended: Option<String>,
    /// The index of the first extent in which the two lists differ; if the engine does not answer `map`, of the
    /// expected extent with the first wrong byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<usize>,
    /// The files of the program.
    #[serde(skip)]
    pub built: Option<BuiltFiles>,
}

fn serialise_extents<S: Serializer>(extents: &[Extent], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(extents.iter().map(MapRecord::from))
}

impl Evidence {
    /// Reports whether there is no evidence.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Marks the last of the first `operations_run` operations: the violation was found after it.
    pub fn mark(&mut self, operations_run: usize) {
        for step in &mut self.steps {
            step.failing = step.number.is_some_and(|number| number + 1 == operations_run);
        }
    }

    /// Marks the expected extent that contains the first wrong byte, if the engine does not map.
    pub fn point_at(&mut self, guest: GuestOffset) {
        let after = self.expected.partition_point(|extent| extent.start <= guest);
        if !self.is_mapped {
            self.first_difference = after.checked_sub(1);
        }
    }

    /// Gathers the evidence about `input`, which `runner` has run last. `log` has the events of that run. Images name
    /// other files by `names`. If the code under test panics, the evidence lacks its part.
    pub fn gather(
        target: TargetKind,
        input: &[u8],
        runner: &Runner,
        log: &Log,
        names: &FileNames,
    ) -> Self {
        let mut evidence = match runner.pipeline() {
            // The report has the commands, and QEMU has the files no longer.
            None if target.definition().inputs == Inputs::Recipes => Self::default(),
            None => Self::of_file(runner.implementation(), input),
            Some(pipeline) => {
                let operations = pipeline.operations_run();
                Self::of_program(runner.implementation(), target, input, operations, names)
            }
        };
        let vitals = log.vitals().into_iter();
        evidence.vitals = vitals.map(|(vital, value)| (vital.name(), value)).collect();
        evidence
    }

    fn of_program(
        implementation: &Implementation,
        target: TargetKind,
        input: &[u8],
        operations: usize,
        names: &FileNames,
    ) -> Self {
        let limits = target.limits();
        // If the build panics, explains the most operations for which it does not.
        let explained = (0..=operations).rev().find_map(|operations| {
            let explained = || explain::explain(input, limits, operations, names);
            panics::caught(explained).ok().map(|explanation| (operations, explanation))
        });
        let Some((operations, mut explanation)) = explained else { return Self::default() };
        let mut walk = ExplainedWalk::default();
        let mut first_difference = None;
        if target.definition().expectation != Expectation::NotWalked {
            let reads = panics::caught(|| explain::reads(input, limits, operations));
            explanation.note_reads(&reads.unwrap_or_default());
            let (_, images) = explanation.built.files();
            walk = walked(implementation, &Chain::new(images));
            let (expected, actual) = (&explanation.expected, &walk.extents);
            let mut all = 0..expected.len().max(actual.len());
            first_difference =
                all.find(|at| walk.is_mapped && expected.get(*at) != actual.get(*at));
        }
        let Explanation { steps, files, expected, built } = explanation;
        let ExplainedWalk { extents: actual, is_mapped, ended: walk_ended } = walk;
        let (vitals, lanes, built) = (BTreeMap::new(), Vec::new(), Some(built));
        Self {
            steps,
            lanes,
            vitals,
            files,
            expected,
            actual,
            is_mapped,
            walk_ended,
            first_difference,
            built,
        }
    }

    fn of_file(implementation: &Implementation, input: &[u8]) -> Self {
        let mut image = Image::default();
        image.write(HostOffset::ZERO, input);
        image.seal(input.len() as u64);
        let files = panics::caught(|| explain::explain_file(&image)).into_iter().collect();
        let ExplainedWalk { extents: actual, is_mapped, ended: walk_ended } =
            walked(implementation, &Chain::alone(image));
        Self { files, actual, is_mapped, walk_ended, ..Self::default() }
    }
}

/// Walks a chain. A panic ends the walk early.
fn walked(implementation: &Implementation, chain: &Chain) -> ExplainedWalk {
    panics::caught(|| explain::walk(&mut *implementation.engine(&no_observer()), chain))
        .unwrap_or_else(|note| ExplainedWalk { ended: Some(note.detail), ..Default::default() })
}
