//! The settings of runs in other processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::targets::TargetKind;

use super::process_limits::ProcessLimits;

/// An executable that runs inputs, or jobs of a campaign.
#[derive(Clone, Debug)]
pub struct Executable {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Executable {
    /// Returns the executable at `path`. Every call passes `arguments` first.
    pub fn new(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().collect() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that calls the executable.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }
}

/// How inputs are run in other processes.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The executable that runs the inputs.
    pub executable: Executable,
    /// The target of the inputs.
    pub target: TargetKind,
    /// The limits of each run.
    pub limits: ProcessLimits,
}

/// The number of times that an input runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Once,
    /// Twice. A difference between the two runs is a finding.
    Twice,
}
