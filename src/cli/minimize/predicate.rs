//! A command that judges candidates by how it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use qcowfuzz::findings::explain::explain;
use qcowfuzz::findings::panics::{PanicNote, caught};
use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::corpus::Existing;
use qcowfuzz::programs::Program;

use crate::cli::exit::Failure;
use crate::cli::files;
use crate::cli::once::Scratch;
use qcowfuzz::harness::targets::TargetKind;

use super::judge::Judge;

/// A command, and how it ended with the input.
pub struct Predicate {
    command: String,
    target: TargetKind,
    as_image: bool,
    /// Candidates are written here.
    scratch: Scratch,
    ended: Option<ExitStatus>,
    failure: Option<Failure>,
}

/// Why a command was not run.
enum Unjudged {
    /// The build panicked.
    Build(PanicNote),
    /// It could not be.
    Failure(Failure),
}

impl From<Failure> for Unjudged {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Unjudged> for Failure {
    fn from(unjudged: Unjudged) -> Self {
        match unjudged {
            Unjudged::Build(note) => Self::Told(note.fingerprint()),
            Unjudged::Failure(failure) => failure,
        }
    }
}

impl Predicate {
    /// Runs `command` with the input at `path`, and with a program that does nothing: where both end alike,
    /// it tells nothing.
    pub fn new(
        command: &str,
        target: TargetKind,
        as_image: bool,
        path: &Path,
        input: &[u8],
    ) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let (command, ended, failure) = (command.to_string(), None, None);
        let mut predicate = Self { command, target, as_image, scratch, ended, failure };
        let ended = predicate.run(input)?;
        let nothing = predicate.run(&Program::default().encode())?;
        if ended == nothing {
            let what = format!(
                "ended with {ended} both with {} and with an empty program, expected something else",
                path.display()
            );
            return Err(Failure::Told(format!("--predicate: {}: {what}", predicate.command)));
        }
        predicate.ended = Some(ended);
        Ok(predicate)
    }

    fn run(&self, candidate: &[u8]) -> Result<ExitStatus, Unjudged> {
        let told = |error| Failure::Told(format!("--predicate: {}: {error}", self.command));
        // Of its own for each: a shorter chain leaves no file of a longer one.
        let folder = tempfile::tempdir_in(self.scratch.path()).map_err(&told)?;
        let path = self.written(candidate, folder.path())?;
        // The shell splits the command, and not the name of the file.
        let line = format!("{} \"$1\"", self.command);
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, "sh"]).arg(path);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(shell.status().map_err(told)?)
    }

    fn written(&self, candidate: &[u8], folder: &Path) -> Result<PathBuf, Unjudged> {
        if !self.as_image {
            let path = folder.join("candidate");
            corpus::replace(&path, folder, candidate).map_err(Failure::from)?;
            return Ok(path);
        }
        let path = folder.join("candidate.qcow2");
        let (limits, names) = (self.target.limits(), files::names(&path));
        let explained = caught(|| explain(candidate, limits, usize::MAX, &names));
        let explained = explained.map_err(Unjudged::Build)?;
        files::dump(&path, Existing::Replace, explained.built())?;
        Ok(path)
    }
}

impl Judge for Predicate {
    fn keeps(&mut self, candidate: &[u8]) -> bool {
        if self.failure.is_some() {
            return false;
        }
        match self.run(candidate) {
            Ok(ended) => Some(ended) == self.ended,
            // What cannot be built shows nothing to the command.
            Err(Unjudged::Build(_)) => false,
            Err(Unjudged::Failure(failure)) => {
                self.failure = Some(failure);
                false
            }
        }
    }

    fn shown(&self) -> String {
        let ended = self.ended.map_or("nothing".to_string(), |ended| ended.to_string());
        format!("{}: {ended}", self.command)
    }

    fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}
