//! A target, as a worker runs it: each input is written to a file, which outlives the worker, before it is run.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use crate::findings::runner::{Ran, Runner};
use crate::fuzzing::embedded::{RunReply, Subject};
use crate::fuzzing::feedback::Recorder;
use crate::harness::cases::explored::Explored;
use crate::harness::cases::implementation::Implementation;
use crate::harness::cases::tracer::{AccessedRange, Tracer};
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Failure, MetFinding};
use crate::images::files::FileNames;
use crate::processes::RunCounter;
use crate::programs::Program;

use super::run_times::RunTimes;

/// A target whose inputs are written to a slot before they are run.
pub struct Supervised {
    runner: Runner,
    tracer: Tracer,
    recorder: Rc<Recorder>,
    slot: Slot,
    counter: RunCounter,
    times: RunTimes,
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
    /// Runs inputs of `target` with `implementation` under test, except `killers`. Verifies the images of programs at
    /// the times `checks`.
    pub fn new(
        implementation: &Implementation,
        target: TargetKind,
        slot: Slot,
        killers: BTreeSet<Vec<u8>>,
        counter: RunCounter,
        checks: Checks,
    ) -> Self {
        let recorder = Rc::new(Recorder::new());
        let runner = Runner::new(implementation, target, FileNames::default(), recorder.clone());
        let tracer = Tracer::new(implementation, target);
        let (times, cut, skipped, failed) = Default::default();
        Self {
            runner,
            tracer,
            recorder,
            slot,
            counter,
            times,
            checks,
            cut,
            killers,
            skipped,
            failed,
        }
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

    /// Returns the times of the runs by the features of their last image.
    pub(super) fn times(&self) -> &RunTimes {
        &self.times
    }

    /// Returns what the last run could have met; `None` if the target does not write.
    pub(super) fn explored(&mut self) -> Option<&mut Explored> {
        self.runner.explored()
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
        let begun = Instant::now();
        let ran = self.runner.run(input, self.checks);
        if let Some(pipeline) = self.runner.pipeline() {
            self.times.add(pipeline.vm().features(), begun.elapsed());
        }
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

/// The file to which a worker writes each input before it runs it.
#[derive(Debug)]
pub struct Slot {
    file: File,
    /// The content of the file, written at once: number, length, input.
    buffer: Vec<u8>,
    number: u64,
}

/// The content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// A number that changes with each write.
    pub number: u64,
    /// The input that is run; `None` between two runs.
    pub input: Option<Vec<u8>>,
}

const HEAD_BYTES: usize = 16;
/// Stands in place of the length between two runs.
const IDLE: u64 = u64::MAX;

impl Slot {
    /// Opens the file at `path` and clears it. While it is open, the job belongs to this process: if another process
    /// has the job, this function waits until that process has ended.
    ///
    /// # Errors
    /// The file cannot be opened, locked or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        file.set_len(0)?;
        let mut slot = Self { file, buffer: Vec::new(), number: 0 };
        slot.idle()?;
        Ok(slot)
    }

    /// Writes the input that is about to be run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn enter(&mut self, input: &[u8]) -> io::Result<()> {
        self.write(input.len() as u64, input)
    }

    /// Notes that no input is run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn idle(&mut self) -> io::Result<()> {
        self.write(IDLE, &[])
    }

    fn write(&mut self, length: u64, input: &[u8]) -> io::Result<()> {
        self.number += 1;
        self.buffer.clear();
        self.buffer.extend(self.number.to_le_bytes());
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(input);
        // One call of the system for each run.
        self.file.write_all_at(&self.buffer, 0)
    }
}

impl Running {
    /// Returns what the worker runs, or ran when it ended, whose slot is at `path`. A worker that has no slot yet runs
    /// nothing.
    pub fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        // If the slot cannot be read yet, no input is running.
        let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Self::default();
        };
        let ([number, length], _) = head.as_chunks::<8>() else { return Self::default() };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let input = rest.get(..length).map(<[u8]>::to_vec);
        Self { number: u64::from_le_bytes(*number), input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_the_input_that_is_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        assert_eq!(Running::read(&path), Running::default());
        let mut slot = Slot::open(&path).unwrap();
        let first = Running::read(&path);
        assert_eq!(first.input, None);
        slot.enter(b"a long input").unwrap();
        slot.enter(b"short").unwrap();
        let running = Running::read(&path);
        assert_eq!(running, Running { number: first.number + 2, input: Some(b"short".to_vec()) });
        slot.enter(b"").unwrap();
        assert_eq!(Running::read(&path).input, Some(Vec::new()));
        slot.idle().unwrap();
        assert_eq!(Running::read(&path).input, None);
    }
}
