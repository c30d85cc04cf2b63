//! A target, as a worker runs it.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use crate::fuzzing::embedded::{RunReply, Subject};
use crate::fuzzing::feedback::Recorder;
use crate::harness::{Checks, Failure, MetFinding};
use crate::images::files::FileNames;
use crate::programs::Program;

use crate::findings::runner::{Ran, Runner};
use crate::harness::cases::implementation::Implementation;
use crate::harness::cases::tracer::{AccessedRange, Tracer};
use crate::harness::targets::TargetKind;
use crate::processes::RunCounter;

use super::slot::Slot;

/// A target whose inputs are written to a slot before they are run.
pub struct Supervised {
    runner: Runner,
    tracer: Tracer,
    recorder: Rc<Recorder>,
    slot: Slot,
    counter: RunCounter,
    checks: Checks,
    /// The program of the last run up to the operation after which the violation was found, if it shows the finding at
    /// its end.
    cut: Option<Vec<u8>>,
    /// The inputs that ended a worker.
    killers: BTreeSet<Vec<u8>>,
    skipped: bool,
    failed: Option<io::Error>,
}

impl Supervised {
    /// Runs inputs of `target` with `implementation` under test, except `killers`.
    pub fn new(
        implementation: &Implementation,
        target: TargetKind,
        slot: Slot,
        killers: BTreeSet<Vec<u8>>,
        counter: RunCounter,
    ) -> Self {
        let recorder = Rc::new(Recorder::new());
        let runner = Runner::new(implementation, target, FileNames::default(), recorder.clone());
        let tracer = Tracer::new(implementation, target);
        let (checks, cut, skipped, failed) = Default::default();
        Self { runner, tracer, recorder, slot, counter, checks, cut, killers, skipped, failed }
    }

    /// Verifies the images of programs at these times.
    pub fn verified(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// Returns the program of `input` up to the operation after which a violation was found, if it shows the same
    /// finding at its end: then commands that verify only the last image show it, too.
    fn shown_at_end(&mut self, input: &[u8], failure: &Failure) -> Option<Vec<u8>> {
        let mut program = Program::decode(input);
        let checks = self.checks.of_seed(program.prologue.rng_seed);
        if !checks.are_after_operations() || program.operations.len() <= failure.operations_run {
            return None;
        }
        program.operations.truncate(failure.operations_run);
        let cut = program.encode();
        let found = self.runner.run(&cut, Checks::AtCheckpoints).finding()?;
        (found.fingerprint == failure.violation.fingerprint()).then_some(cut)
    }

    /// Writes an input to the slot, and begins its time.
    fn enter(&mut self, input: &[u8]) {
        if let Err(error) = self.slot.enter(input) {
            self.failed = Some(error);
        }
        self.counter.begin_run();
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

impl Subject for Supervised {
    fn run(&mut self, input: &[u8]) -> RunReply {
        if self.killers.contains(input) {
            self.skipped = true;
            return RunReply::Skipped;
        }
        self.enter(input);
        self.cut = None;
        let ran = self.runner.run(input, self.checks);
        if let Ran::Violation(failure) = &ran
            && self.runner.pipeline().is_some()
        {
            self.cut = self.shown_at_end(input, failure);
        }
        match (ran.finding(), ran) {
            (None, Ran::Sound(outcome)) => RunReply::Sound(outcome),
            (None, _) => RunReply::KnownPanic,
            (Some(finding), _) => RunReply::Found(finding),
        }
    }

    fn trace(&mut self, input: &[u8]) -> Option<Vec<AccessedRange>> {
        if self.killers.contains(input) {
            return None;
        }
        // The run may end the process only if it depends on earlier ones. Then the slot names it.
        self.enter(input);
        self.tracer.trace(input, self.checks)
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn met(&self) -> &[MetFinding] {
        self.runner.met()
    }

    fn shown_by(&self) -> Option<&[u8]> {
        self.cut.as_deref()
    }
}
