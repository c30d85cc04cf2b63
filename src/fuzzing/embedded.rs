//! The embedded loop: a fuzzer that needs neither a nightly compiler nor instrumentation. Its only feedback is the
//! record of events in the VM, the allocator and the walker ([`crate::fuzzing::feedback`]).
//!
//! Each step chooses a parent (`scheduler`), mutates it (`generator`), runs the child, and scores its coverage
//! (`scheduler`). If a child is interesting, the loop runs it once more after other inputs. It keeps the child only if
//! the second run has the same result. An input with the content of a kept one is a duplicate. All state counts steps,
//! never time: the same seed and the same corpus give the same campaign, even if it is interrupted and resumed
//! (`state`).

pub mod findings;
pub(crate) mod generator;
pub(crate) mod scheduler;
pub(crate) mod state;
pub mod subject;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::base::files;
use crate::base::limits::MAX_INPUT_BYTES;
use crate::findings::runner::Finding;
use crate::fuzzing::corpus::{self, Folder};
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::coverage::CoverageFeatures;
use crate::fuzzing::feedback::layout::tally;
use crate::harness::cases::target::Inputs;
use crate::harness::oracles::Violation;
use crate::images::content::entropy::Entropy;

use generator::InputGenerator;
use scheduler::{Scheduler, Testcase};
use subject::Measures;

pub use findings::{SavedFinding, SavedFindings};
pub use subject::{FuzzSettings, RunReply, Subject};

/// The origin of an input.
enum Origin {
    /// A file of the corpus.
    File,
    /// A mutation of the entry at this place in the scheduler.
    Parent(usize),
    /// A generated input, or one with which a campaign begins if its corpus is empty.
    Nothing,
}

impl Origin {
    fn parent(&self) -> Option<usize> {
        match self {
            Self::Parent(place) => Some(*place),
            Self::File | Self::Nothing => None,
        }
    }
}

/// The progress of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuzzProgress {
    /// The number of children that were run.
    pub runs: u64,
    /// The number of inputs that are kept.
    pub inputs: usize,
    /// The number of edges that they cover, at most [`EDGES`](crate::fuzzing::feedback::layout::EDGES).
    pub edges: usize,
    /// The number of rare events that they cover, at most [`COUNT`](crate::formats::rare_events::COUNT).
    pub rare_events: usize,
}

/// A campaign.
#[derive(Debug)]
pub struct Fuzzer<S> {
    subject: S,
    settings: FuzzSettings,
    corpus: Folder,
    artifacts: Folder,
    entropy: Entropy,
    runs: u64,
    scheduler: Scheduler,
    found: SavedFindings,
    /// The names of the corpus files that the loop has read.
    seen: BTreeSet<OsString>,
    /// The coverage of the last run.
    features: CoverageFeatures,
    /// The measures of the last run.
    measures: Measures,
    generator: InputGenerator,
}

impl<S: Subject> Fuzzer<S> {
    /// Begins a campaign from the inputs in `corpus`. If there are none, begins from the empty program, or from files
    /// of several formats.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn begin(
        subject: S,
        settings: FuzzSettings,
        corpus: Folder,
        artifacts: Folder,
    ) -> Result<Self, Error> {
        let mut fuzzer = Self::without_inputs(subject, settings, corpus, artifacts);
        fuzzer.fill(&|| false)?;
        Ok(fuzzer)
    }

    /// Runs the corpus files that the loop has not read yet. If it then has no input, begins from those of
    /// [`Self::begin`]. Ends early when the campaign `is_over`: an engine may need seconds for each input. The next
    /// campaign reads the rest.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn fill(&mut self, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        self.import_until(is_over)?;
        if !self.scheduler.entries().is_empty() || is_over() {
            return Ok(());
        }
        let first = self.generator.first(self.settings.inputs, self.settings.limits);
        for input in &first {
            self.consider(input, &Origin::Nothing)?;
        }
        if self.scheduler.entries().is_empty() {
            // Perhaps every input triggers a bug. The loop still needs a parent, so it keeps the last one.
            let input = first.last().map_or(&[][..], Vec::as_slice);
            self.keep(input, &Origin::Nothing, false)?;
        }
        Ok(())
    }

    /// Returns a campaign without inputs. [`Self::fill`] reads them.
    pub fn without_inputs(
        subject: S,
        settings: FuzzSettings,
        corpus: Folder,
        artifacts: Folder,
    ) -> Self {
        let entropy = Entropy::new(settings.rng_seed);
        let (scheduler, found, seen) = Default::default();
        let (features, measures, generator) = Default::default();
        Self {
            subject,
            settings,
            corpus,
            artifacts,
            entropy,
            runs: 0,
            scheduler,
            found,
            seen,
            features,
            measures,
            generator,
        }
    }

    /// Runs the corpus files that the loop has not read yet, and returns the number of inputs that it keeps.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn import(&mut self) -> Result<usize, Error> {
        self.import_until(&|| false)
    }

    fn import_until(&mut self, is_over: &dyn Fn() -> bool) -> Result<usize, Error> {
        let before = self.scheduler.entries().len();
        for path in files::list(self.corpus.dir())? {
            if is_over() {
                break;
            }
            let name = path.file_name().unwrap_or_default().to_os_string();
            if self.seen.contains(&name) {
                continue;
            }
            match files::read(&path, MAX_INPUT_BYTES) {
                // Another process may be writing the file. The loop runs the present content, and reads the file
                // again at the next import.
                Ok(input) if corpus::is_torn(&path, &input) => {
                    if self.seen.insert(corpus::name(&input).into()) {
                        self.consider(&input, &Origin::File)?;
                    }
                    continue;
                }
                Ok(input) => {
                    self.consider(&input, &Origin::File)?;
                }
                // Another process that shares the corpus may remove a file at any time.
                Err(Error::File(error)) if error.source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            self.seen.insert(name);
        }
        Ok(self.scheduler.entries().len() - before)
    }

    /// Mutates a testcase and runs the child.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn step(&mut self) -> Result<(), Error> {
        let Self { subject, settings, entropy, scheduler, generator, .. } = self;
        let place = scheduler.choose(entropy);
        let entries = scheduler.entries();
        let other = &entries[entropy.below(entries.len() as u64) as usize];
        let rng_seed = entropy.next_u64();
        let trace = &mut || subject.trace(&entries[place].input);
        let child = generator.child(settings, (&entries[place], other), trace, rng_seed);
        self.runs += 1;
        let kept = self.consider(&child, &Origin::Parent(place))?;
        self.scheduler.record_child(place, kept);
        Ok(())
    }

    /// Generates a program of any operations, the file of such a program, or random bytes, and runs it. Unlike a child,
    /// it depends on no input.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn step_generated(&mut self) -> Result<(), Error> {
        let input = self.generator.generated(&self.settings, &mut self.entropy);
        self.runs += 1;
        self.consider(&input, &Origin::Nothing)?;
        Ok(())
    }

    /// Runs an input and keeps it if it is interesting and no duplicate. Reports whether the loop kept it.
    fn consider(&mut self, input: &[u8], origin: &Origin) -> Result<bool, Error> {
        let input = &*match self.settings.inputs {
            Inputs::Programs => self.settings.claims.fold(input),
            Inputs::Files | Inputs::Recipes => Cow::Borrowed(input),
        };
        let answer = self.run(input);
        self.found.add_answer(&self.subject, &answer);
        match &answer {
            RunReply::Skipped | RunReply::KnownPanic => return Ok(false),
            // An input that was not judged is not kept.
            RunReply::Sound(outcome) if outcome.unsupported => return Ok(false),
            RunReply::Found(finding) => {
                let shown_by = self.subject.shown_by().unwrap_or(input).to_vec();
                self.record(finding, &shown_by)?;
                return Ok(false);
            }
            RunReply::Sound(_) => {}
        }
        // A duplicate, because the same content must have the same coverage.
        if let Some(place) = self.scheduler.place_of(input) {
            if !answer.varies() && self.scheduler.entries()[place].features != self.features {
                self.record(&not_the_same("counters"), input)?;
            }
            return Ok(false);
        }
        if !self.scheduler.entries().is_empty() && !self.scheduler.is_interesting(&self.features) {
            if let Some(place) = origin.parent() {
                self.simplify(place, input)?;
            }
            return Ok(false);
        }
        let (features, measures) = (self.features.clone(), self.measures);
        if let Some((finding, whose)) = self.contradiction(input, &answer, &features) {
            self.record(&finding, &whose)?;
            return Ok(false);
        }
        (self.features, self.measures) = (features, measures);
        self.keep(input, origin, true)?;
        Ok(true)
    }

    fn run(&mut self, input: &[u8]) -> RunReply {
        self.subject.recorder().begin_run();
        let answer = self.subject.run(input);
        self.features.refill(self.subject.recorder());
        let operations = match &answer {
            RunReply::Sound(outcome) => outcome.operations,
            RunReply::Found(_) | RunReply::KnownPanic | RunReply::Skipped => 0,
        };
        self.measures = Measures::of(self.subject.recorder(), operations);
        answer
    }

    /// Runs one to three kept inputs, and then `input` once more. Returns a finding, and the input that shows it, if
    /// one of these runs differs from its earlier run or finds a bug.
    fn contradiction(
        &mut self,
        input: &[u8],
        answer: &RunReply,
        features: &CoverageFeatures,
    ) -> Option<(Finding, Vec<u8>)> {
        let mut entropy = Entropy::new(u64::from(crc32fast::hash(input)));
        let count = self.scheduler.entries().len() as u64;
        for _ in 0..(1 + entropy.below(3)).min(count) {
            let other = entropy.below(count) as usize;
            if !self.scheduler.entries()[other].sound {
                continue;
            }
            let whose = self.scheduler.entries()[other].input.clone();
            match self.run(&whose) {
                RunReply::Found(finding) => return Some((finding, whose)),
                RunReply::Sound(outcome)
                    if !outcome.varies
                        && self.features != self.scheduler.entries()[other].features =>
                {
                    return Some((not_the_same("counters"), whose));
                }
                RunReply::KnownPanic => return Some((not_the_same("answer"), whose)),
                RunReply::Sound(_) | RunReply::Skipped => {}
            }
        }
        let again = self.run(input);
        if answer.varies() {
            let RunReply::Found(finding) = again else { return None };
            return Some((finding, input.to_vec()));
        }
        let field = match again == *answer {
            false => "answer",
            true if self.features != *features => "counters",
            true => return None,
        };
        Some((not_the_same(field), input.to_vec()))
    }

    /// Adds an input to the scheduler, and to the corpus unless it came from there. Its coverage is that of the last
    /// run.
    fn keep(&mut self, input: &[u8], origin: &Origin, sound: bool) -> Result<(), Error> {
        if !matches!(origin, Origin::File) {
            let file = self.corpus.add("", input)?;
            self.seen.insert(file.into());
        }
        let parent = origin.parent().map(|place| (place, &self.scheduler.entries()[place]));
        let run = (std::mem::take(&mut self.features), self.measures);
        let entry = Testcase { sound, ..Testcase::new(input.to_vec(), parent, run) };
        self.scheduler.add(entry);
        Ok(())
    }

    /// Replaces the parent at `place` by `input` if that has the same coverage and is shorter, or as long and less
    /// work. The parent's file stays, because it may be the user's.
    fn simplify(&mut self, place: usize, input: &[u8]) -> Result<(), Error> {
        let parent = &self.scheduler.entries()[place];
        let (own, before) = (&self.measures, &parent.measures);
        let is_simpler = (input.len(), own.work) < (parent.input.len(), before.work);
        if is_simpler && self.features == parent.features {
            let file = self.corpus.add("", input)?;
            self.seen.insert(file.into());
            self.scheduler.simplify(place, input.to_vec(), self.measures);
        }
        Ok(())
    }

    fn record(&mut self, finding: &Finding, input: &[u8]) -> Result<(), Error> {
        self.found.add(&self.artifacts, "crash-", finding, input)
    }

    /// Returns the number of children that were run.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns the counters that the kept inputs cover.
    pub fn covered(&self) -> impl Iterator<Item = Counter> {
        self.scheduler.counters()
    }

    /// Returns the progress of the campaign.
    pub fn progress(&self) -> FuzzProgress {
        let (edges, rare_events) = tally(self.covered());
        FuzzProgress { runs: self.runs, inputs: self.scheduler.entries().len(), edges, rare_events }
    }

    /// Returns the findings.
    pub fn found(&self) -> &SavedFindings {
        &self.found
    }

    /// Returns the subject.
    pub fn subject(&mut self) -> &mut S {
        &mut self.subject
    }
}

/// Returns the finding for an input whose second run differs from the first in `field`.
fn not_the_same(field: &'static str) -> Finding {
    let (expected, actual) = ("the same", "others");
    let detail = "after other runs in the same process".to_string();
    let (oracle, drawn, error) = ("determinism", false, None);
    let violation =
        Violation { oracle, drawn, field, expected, actual, error, guest: None, detail };
    Finding { fingerprint: violation.fingerprint(), detail: violation.detail, guest: None }
}
