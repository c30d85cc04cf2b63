//! Runs inputs in a process as long as it survives, and in a process of their own.

use super::isolated_run::{IsolatedRun, Isolation, IsolationError, Repeat};
use super::run_process::RunProcess;

impl Isolation {
    /// Runs `input` in a process of its own, twice: a difference between the two runs is a finding.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        IsolatedRuns::new(self.clone(), Repeat::Twice).run(input)
    }
}

/// Runs inputs in a process, which it starts again when an input ends it.
#[derive(Debug)]
pub struct IsolatedRuns {
    isolation: Isolation,
    repeat: Repeat,
    process: Option<RunProcess>,
}

impl IsolatedRuns {
    /// Creates the runs. The process starts with the first input.
    pub fn new(isolation: Isolation, repeat: Repeat) -> Self {
        Self { isolation, repeat, process: None }
    }

    /// Runs `input`. An end of the process counts only if a new process ends too: the inputs before may have left
    /// something behind, such as memory that is never freed.
    ///
    /// # Errors
    /// The input could not be run.
    pub fn run(&mut self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let is_new = self.process.is_none();
        match self.run_in_process(input)? {
            IsolatedRun::Ended(_) if !is_new => self.run_in_process(input),
            ran => Ok(ran),
        }
    }

    fn run_in_process(&mut self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => RunProcess::start(&self.isolation, self.repeat)?,
        };
        let ran = process.run(input, self.isolation.limits.wall_clock())?;
        if let IsolatedRun::Finished(_) = ran {
            self.process = Some(process);
        }
        Ok(ran)
    }
}
