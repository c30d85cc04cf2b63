//! A target, as a worker runs it.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use crate::fuzzing::embedded::{RunReply, Subject};
use crate::fuzzing::feedback::Recorder;
use crate::harness::Checks;
use crate::images::files::FileNames;

use crate::findings::isolation::RunCounter;
use crate::findings::runner::{Ran, Runner};
use crate::harness::implementation::Implementation;
use crate::harness::targets::TargetKind;

use super::slot::Slot;

/// A target whose inputs are written to a slot before they are run.
pub struct Supervised<I> {
    runner: Runner<Rc<Recorder>, I>,
    recorder: Rc<Recorder>,
    slot: Slot,
    counter: RunCounter,
    /// The inputs that ended a worker.
    killers: BTreeSet<Vec<u8>>,
    skipped: bool,
    failed: Option<io::Error>,
}

impl<I: Implementation> Supervised<I> {
    /// Runs inputs of `target` with `implementation` under test, except `killers`.
    pub fn new(
        implementation: &I,
        target: TargetKind,
        slot: Slot,
        killers: BTreeSet<Vec<u8>>,
        counter: RunCounter,
    ) -> Self {
        let recorder = Rc::new(Recorder::new());
        let runner = Runner::new(implementation, target, FileNames::default(), &recorder);
        Self { runner, recorder, slot, counter, killers, skipped: false, failed: None }
    }

    /// Notes that no input is run.
    pub fn idle(&mut self) -> io::Result<()> {
        self.slot.idle()
    }

    /// Reports whether a killer was skipped since the last call. Fails if an input could not be written to the slot.
    pub fn skipped(&mut self) -> io::Result<bool> {
        self.failed.take().map_or(Ok(()), Err)?;
        Ok(std::mem::take(&mut self.skipped))
    }
}

impl<I: Implementation> Subject for Supervised<I> {
    fn run(&mut self, input: &[u8]) -> RunReply {
        if self.killers.contains(input) {
            self.skipped = true;
            return RunReply::Skipped;
        }
        if let Err(error) = self.slot.enter(input) {
            self.failed = Some(error);
        }
        self.counter.begin_run();
        let ran = self.runner.run(input, Checks::AtCheckpoints);
        match (ran.finding(), ran) {
            (None, Ran::Sound(outcome)) => RunReply::Sound(outcome),
            (None, _) => RunReply::KnownPanic,
            (Some(finding), _) => RunReply::Found(finding),
        }
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn met(&self) -> &[String] {
        self.runner.met()
    }
}
