//! A target, as the embedded loop runs it.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use qcowfuzz::fuzzing::embedded::{Answer, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::files::FileNames;

use qcowfuzz::findings::runner::{Ran, Runner};
use qcowfuzz::harness::targets::TargetKind;

use super::slot::Slot;

/// A target that tells what it runs before it does.
pub struct Supervised {
    runner: Runner<Rc<Recorder>>,
    recorder: Rc<Recorder>,
    slot: Slot,
    /// Inputs that ended a worker.
    killers: BTreeSet<Vec<u8>>,
    skipped: bool,
    failed: Option<io::Error>,
}

impl Supervised {
    /// Runs inputs of `target`, but for `killers`.
    pub fn new(target: TargetKind, slot: Slot, killers: BTreeSet<Vec<u8>>) -> Self {
        let recorder = Rc::new(Recorder::new());
        let runner = Runner::new(target, FileNames::default(), &recorder);
        Self { runner, recorder, slot, killers, skipped: false, failed: None }
    }

    /// What follows is no run.
    pub fn idle(&mut self) -> io::Result<()> {
        self.slot.idle()
    }

    /// Whether a killer was left out since this was asked last; an error, if what is run could not be told.
    pub fn skipped(&mut self) -> io::Result<bool> {
        self.failed.take().map_or(Ok(()), Err)?;
        Ok(std::mem::take(&mut self.skipped))
    }
}

impl Subject for Supervised {
    fn run(&mut self, input: &[u8]) -> Answer {
        if self.killers.contains(input) {
            self.skipped = true;
            return Answer::Skipped;
        }
        if let Err(error) = self.slot.enter(input) {
            self.failed = Some(error);
        }
        let ran = self.runner.run(input, Checks::AtCheckpoints);
        match (ran.finding(), ran) {
            (None, Ran::Sound(outcome)) => Answer::Sound(outcome),
            (finding, _) => Answer::Found(finding.unwrap_or_default()),
        }
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}
