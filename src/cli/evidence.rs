//! All that there is to tell of one input: what was found, and what explains it. `replay` prints it, `report`
//! draws it, `bundle` packs it.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;

use qcowfuzz::disk::extent::Extent;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Layer;
use qcowfuzz::findings::explain;
use qcowfuzz::findings::explain::{Entry, Explanation, FileKind, FileView, Run, Step};
use qcowfuzz::fuzzing::feedback::Log;
use qcowfuzz::harness::Walker;
use qcowfuzz::images::files::FileNames;
use qcowfuzz::images::image::Image;
use qcowfuzz::programs::Effect;

use super::output::Record;
use qcowfuzz::findings::panics;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::target::Expectation;
use qcowfuzz::harness::targets::TargetKind;

/// What explains an input.
#[derive(Debug, Default, Serialize)]
pub struct Evidence {
    /// The program, record by record; of a file, nothing.
    pub steps: Vec<StepTold>,
    /// Measures of the last image, by name.
    pub vitals: BTreeMap<&'static str, u64>,
    /// The files that were built, from the image itself down.
    pub files: Vec<FileTold>,
    /// What the reference model expects of the disk; of a file, nothing.
    pub expected: Vec<Record>,
    /// What our walker makes of it.
    pub actual: Vec<Record>,
    /// Why our walker came to an early end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_ended: Option<String>,
    /// The place in both lists, from 0, where they are first not the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<usize>,
    #[serde(skip)]
    explanation: Option<Explanation>,
}

/// A record of the program.
#[derive(Debug, Serialize)]
pub struct StepTold {
    /// The byte of the input at which it begins.
    pub counter: usize,
    /// Its bytes, in hexadecimal digits.
    pub bytes: String,
    /// Its number among the operations, from 0; none where it has no meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// The operation as text, with its operands as they are decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Whether it did something; none where it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
    /// What it came to, operands clamped to the disk and to the limits.
    pub deeds: Vec<String>,
    /// The violation was found after it.
    pub failing: bool,
}

/// A file that the program builds.
#[derive(Debug, Serialize)]
pub struct FileTold {
    /// What it is.
    pub kind: &'static str,
    /// How many layers down.
    pub depth: usize,
    /// How long it is, as the build wrote it.
    pub length_bytes: u64,
    /// What a hostile program has cut it to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_to_bytes: Option<u64>,
    /// Its cluster size.
    pub cluster_bytes: u64,
    /// All of it, in order.
    pub runs: Vec<RunTold>,
    /// The fields and entries of an image, part by part.
    pub entries: Vec<EntryTold>,
    /// Why it could not be taken apart in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Neighbouring bytes of a file.
#[derive(Debug, Serialize)]
pub struct RunTold {
    /// The first.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// What they are: a structure, data, `hole` or `leak`.
    pub role: &'static str,
    /// How many references there are to each cluster.
    pub references: u64,
    /// The count on disk of each cluster.
    pub refcount: u64,
    /// The numbers of the operations that wrote them, or that wrote what they map.
    pub operations: Vec<usize>,
}

/// A field or an entry.
#[derive(Debug, Serialize)]
pub struct EntryTold {
    /// What it belongs to.
    pub part: &'static str,
    /// A field's name in the specification.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    /// Where it lies.
    pub offset: u64,
    /// How many bytes it has.
    pub width: u8,
    /// Its value, in hexadecimal digits.
    pub value: String,
    /// What a hostile program made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
    /// Those bits in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged_spelled: Option<String>,
    /// The value's bits in words.
    pub spelled: String,
    /// The number of the operation that touched last what it maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<usize>,
    /// Whether our walker reads it.
    pub read: bool,
}

impl Evidence {
    /// Gathers what explains `input`, which `runner` has run last; `log` was told what happened. Images call other
    /// files by `names`. Whatever panics is left out.
    pub fn gather(
        target: TargetKind,
        input: &[u8],
        runner: &Runner<Rc<Log>>,
        log: &Log,
        names: &FileNames,
    ) -> Self {
        let mut evidence = match runner.pipeline() {
            None => Self::of_file(input),
            Some(pipeline) => Self::of_program(target, input, pipeline.operations_run(), names),
        };
        let vitals = log.vitals().into_iter();
        evidence.vitals = vitals.map(|(vital, value)| (vital.name(), value)).collect();
        evidence
    }

    fn of_program(target: TargetKind, input: &[u8], operations: usize, names: &FileNames) -> Self {
        let limits = target.limits();
        // Where the build panics, as far as it comes without.
        let explained = (0..=operations).rev().find_map(|operations| {
            let explained = || explain::explain(input, limits, operations, names);
            panics::caught(explained).ok().map(|explanation| (operations, explanation))
        });
        let Some((operations, mut explanation)) = explained else { return Self::default() };
        let is_walked = target.definition().expectation != Expectation::NotWalked;
        let walked = is_walked.then(|| {
            let program = &explanation.program;
            let reads = panics::caught(|| explain::reads(program, limits, operations));
            explanation.note_reads(&reads.unwrap_or_default());
            walked(|| explain::walk(&mut Walker::default(), explanation.built().1))
        });
        let expected = &explanation.expected;
        let first_difference =
            walked.as_ref().map(|(actual, _)| first_difference(expected, actual));
        let (actual, walk_ended) = walked.unwrap_or_default();
        Self {
            steps: steps(&explanation.steps),
            files: explanation.files.iter().map(FileTold::from).collect(),
            expected: expected.iter().map(Record::from).collect(),
            actual: actual.iter().map(Record::from).collect(),
            walk_ended,
            first_difference: first_difference.flatten(),
            explanation: Some(explanation),
            ..Self::default()
        }
    }

    fn of_file(input: &[u8]) -> Self {
        let mut image = Image::default();
        image.write(HostOffset::ZERO, input);
        image.seal(input.len() as u64);
        let explained = panics::caught(|| explain::explain_file(&image));
        let chain = [Layer { image: &image, data_file: None }.erased()];
        let (actual, walk_ended) = walked(|| explain::walk_chain(&mut Walker::default(), &chain));
        Self {
            files: explained.iter().map(FileTold::from).collect(),
            actual: actual.iter().map(Record::from).collect(),
            walk_ended,
            ..Self::default()
        }
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Marks the operation after which a violation was found: so many had run.
    pub fn mark(&mut self, operations_run: usize) {
        for step in &mut self.steps {
            step.failing = step.number.is_some_and(|number| number + 1 == operations_run);
        }
    }

    /// What explains a program, and has what it builds.
    pub fn explanation(&self) -> Option<&Explanation> {
        self.explanation.as_ref()
    }
}

fn steps(steps: &[Step]) -> Vec<StepTold> {
    let mut next = 0;
    let told = |step: &Step| {
        let number = step.operation.is_some().then_some(next);
        next += usize::from(number.is_some());
        StepTold {
            counter: step.counter,
            bytes: hex::encode(step.bytes),
            number,
            operation: step.operation.map(|operation| operation.to_string()),
            effect: step.effect.map(|effect| match effect {
                Effect::None => "none",
                Effect::Changed => "changed",
                Effect::Asked => "asked",
                Effect::Checkpoint => "checkpoint",
            }),
            deeds: step.deeds.iter().map(ToString::to_string).collect(),
            failing: false,
        }
    };
    steps.iter().map(told).collect()
}

/// What a walk gives; a panic is an early end.
fn walked(walk: impl FnOnce() -> (Vec<Extent>, Option<String>)) -> (Vec<Extent>, Option<String>) {
    panics::caught(walk).unwrap_or_else(|note| (Vec::new(), Some(note.detail)))
}

fn first_difference(expected: &[Extent], actual: &[Extent]) -> Option<usize> {
    let longest = expected.len().max(actual.len());
    (0..longest).find(|at| expected.get(*at) != actual.get(*at))
}

impl From<&FileView> for FileTold {
    fn from(view: &FileView) -> Self {
        Self {
            kind: match view.kind {
                FileKind::Image => "image",
                FileKind::Raw => "raw",
                FileKind::DataFile => "data_file",
            },
            depth: view.depth,
            length_bytes: view.length_bytes,
            cut_to_bytes: view.cut_to_bytes,
            cluster_bytes: view.cluster_bytes,
            runs: view.runs.iter().map(RunTold::from).collect(),
            entries: view.entries.iter().map(EntryTold::from).collect(),
            fault: view.fault.clone(),
        }
    }
}

impl From<&Run> for RunTold {
    fn from(run: &Run) -> Self {
        let Run { bytes, role, references, on_disk, operations } = run;
        let nobodys = if *on_disk > 0 { "leak" } else { "hole" };
        Self {
            offset: bytes.start,
            length: bytes.end.saturating_sub(bytes.start),
            role: role.map_or(nobodys, |role| role.name()),
            references: *references,
            refcount: *on_disk,
            operations: operations.clone(),
        }
    }
}

impl From<&Entry> for EntryTold {
    fn from(entry: &Entry) -> Self {
        let digits = |value: u64| {
            let width = usize::from(entry.width_bytes) * 2;
            format!("{value:0width$x}")
        };
        Self {
            part: entry.part.name(),
            name: entry.name,
            offset: entry.at.get(),
            width: entry.width_bytes,
            value: digits(entry.value),
            damaged: entry.damaged.as_ref().map(|(value, _)| digits(*value)),
            damaged_spelled: entry.damaged.as_ref().map(|(_, spelled)| spelled.clone()),
            spelled: entry.spelled.clone(),
            operation: entry.operation,
            read: entry.read,
        }
    }
}
