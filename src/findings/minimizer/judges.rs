//! The judges of the minimizer: each reports whether a candidate shows the bug that the input shows.

use std::io;
use std::path::{Path, PathBuf};

use crate::base::error::Error;
use crate::base::files::{Existing, replace};
use crate::findings::explain::explain;
use crate::findings::isolation::{
    FinishedRun, IsolatedRun, IsolatedRuns, Isolation, IsolationError, Repeat,
};
use crate::findings::panics::caught;
use crate::findings::runner::UNSTEADY;
use crate::images::limits::Limits;
use crate::processes::{Executable, ProcessEnd, TemporaryFolder};
use crate::programs::{Program, export};

/// A judge of candidates.
pub struct Judge {
    /// The finding in the input: a fingerprint, or how a command ended.
    pub found: String,
    /// The number of other checksums that are tried for each candidate
    /// ([`MinimizeSettings::rerolls`](crate::findings::minimizer::MinimizeSettings::rerolls)).
    pub rerolls: u16,
    /// True if candidates may be run in this process
    /// ([`MinimizeSettings::runs_here`](crate::findings::minimizer::MinimizeSettings::runs_here)).
    pub runs_here: bool,
    shows: Box<JudgeFn>,
}

/// Reports whether a candidate shows the bug.
type JudgeFn = dyn FnMut(&[u8]) -> Result<bool, JudgeError>;

/// The reason why an input or a candidate could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The input shows no bug.
    #[error("no violation was found in the input, expected an input that shows one")]
    NothingFound,
    /// The process of a candidate could not be run.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// There is no temporary folder.
    #[error("a temporary folder: {0}")]
    Scratch(io::Error),
    /// A candidate could not be written.
    #[error(transparent)]
    File(#[from] Error),
    /// The command could not be run.
    #[error("{command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The command gives the same result for the input and for an empty one.
    #[error(
        "{command}: ended with {end} for the input and for an empty one, expected different results"
    )]
    Undecided {
        /// The command.
        command: String,
        /// The end of both runs.
        end: ProcessEnd,
    },
    /// The build of the image panics. This is the fingerprint of the panic.
    #[error("{0}")]
    Build(String),
}

/// The file that the command gets.
#[derive(Clone, Copy, Debug)]
pub enum Passed {
    /// The candidate, a program.
    Program,
    /// The candidate, a file.
    File,
    /// The image that the candidate builds, within these limits.
    Image(Limits),
}

/// A command that a shell runs.
#[derive(Debug)]
struct ShellCommand {
    line: String,
    passed: Passed,
    /// The folder for candidates.
    scratch: TemporaryFolder,
}

impl Judge {
    /// Reports whether `candidate` shows the bug.
    pub fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError> {
        (self.shows)(candidate)
    }

    /// Creates a judge by the end of `command`: it runs the command with `input`, and with an empty program or file.
    ///
    /// # Errors
    /// The command gives the same result for both, so it decides nothing; or it could not be run.
    pub fn by_command(command: &str, passed: Passed, input: &[u8]) -> Result<Self, JudgeError> {
        let scratch = TemporaryFolder::on_disk().map_err(JudgeError::Scratch)?;
        let command = ShellCommand { line: command.to_string(), passed, scratch };
        let ended = command.run(input)?;
        let empty = match passed {
            Passed::Program | Passed::Image(_) => Program::default().encode(),
            Passed::File => Vec::new(),
        };
        if ended == command.run(&empty)? {
            return Err(JudgeError::Undecided { command: command.line, end: ended });
        }
        let found = format!("{}: {ended}", command.line);
        let shows = move |candidate: &[u8]| match command.run(candidate) {
            Ok(end) => Ok(end == ended),
            // The command gets no image, so the candidate does not show its bug.
            Err(JudgeError::Build(_)) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(Self { found, rerolls: 0, runs_here: true, shows: Box::new(shows) })
    }

    /// Creates a judge that runs candidates in another process, and compares their findings with that of `input`, or
    /// with its first known finding if it has no other.
    ///
    /// # Errors
    /// The input shows no bug, or could not be run.
    pub fn by_finding(input: &[u8], isolation: Isolation) -> Result<Self, JudgeError> {
        let ran = isolation.isolated_run(input)?;
        let found = shown(&ran).ok_or(JudgeError::NothingFound)?;
        let is_drawn = matches!(ran, IsolatedRun::Finished(FinishedRun { drawn: true, .. }));
        let repeat = if found == UNSTEADY { Repeat::Twice } else { Repeat::Once };
        let (mut runs, expected) = (IsolatedRuns::new(isolation, repeat), found.clone());
        let shows =
            move |candidate: &[u8]| Ok(shown(&runs.run(candidate)?).as_ref() == Some(&expected));
        Ok(Self {
            found,
            rerolls: if is_drawn { REROLLS } else { 0 },
            // If the input ends its process, perhaps the build of its image does.
            runs_here: matches!(ran, IsolatedRun::Finished(_)),
            shows: Box::new(shows),
        })
    }
}

/// The number of other checksums that are tried for each candidate if the oracle draws its questions from the checksum.
const REROLLS: u16 = 12;

/// Returns the fingerprint of the finding of a run, or else of its first known finding.
fn shown(ran: &IsolatedRun) -> Option<String> {
    match ran {
        IsolatedRun::Finished(run) => run.fingerprint.as_ref().or(run.known.first()).cloned(),
        IsolatedRun::Ended(end) => Some(end.fingerprint()),
    }
}

impl ShellCommand {
    fn run(&self, candidate: &[u8]) -> Result<ProcessEnd, JudgeError> {
        let failed = |source: io::Error| JudgeError::Command { command: self.line.clone(), source };
        // Each run has its own folder, so that a shorter chain leaves no file of a longer one.
        let folder = tempfile::tempdir_in(self.scratch.path()).map_err(failed)?;
        let path = self.written(candidate, folder.path())?;
        // Nothing bounds the command, but Ctrl-C ends it, too.
        let shell = Executable::shell(&self.line).with([path]).sharing_group();
        shell.run_silently().map_err(failed)
    }

    fn written(&self, candidate: &[u8], folder: &Path) -> Result<PathBuf, JudgeError> {
        let limits = match self.passed {
            Passed::Program | Passed::File => {
                let path = folder.join("candidate");
                replace(&path, folder, candidate)?;
                return Ok(path);
            }
            Passed::Image(limits) => limits,
        };
        let path = folder.join("candidate.qcow2");
        let names = export::names(&path);
        let explained = caught(|| explain(candidate, limits, usize::MAX, &names));
        let explained = explained.map_err(|note| JudgeError::Build(note.fingerprint()))?;
        export::write_small_filled(&path, Existing::Replace, explained.built.files())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::isolation::tests::shell;

    #[test]
    fn an_input_that_ends_its_process_is_judged_by_the_end() {
        let script = r#"ulimit -c 0
            grep -q bad "$input" && kill -ABRT $$; grep -q odd "$input" && exit 3; echo {}"#;
        let mut judge = Judge::by_finding(b"a bad input", shell(script)).unwrap();
        assert_eq!(judge.found, "process: end, an answer → signal: 6 (SIGABRT)");
        assert!(!judge.runs_here && judge.rerolls == 0);
        let shows = [&b"bad"[..], b"odd", b"good"].map(|candidate| judge.shows(candidate).unwrap());
        assert_eq!(shows, [true, false, false]);
    }

    #[test]
    fn a_candidate_that_ends_the_process_does_not_show_another_finding() {
        let script = r#"ulimit -c 0; grep -q dies "$input" && kill -SEGV $$
            grep -q bug "$input" && echo '{"fingerprint":"model: kind, a → b","drawn":true}' || echo {}"#;
        let mut judge = Judge::by_finding(b"a bug", shell(script)).unwrap();
        assert_eq!(judge.found, "model: kind, a → b");
        assert!(judge.runs_here && judge.rerolls > 0);
        let shows = [&b"bug"[..], b"bug that dies", b"", b"bug"]
            .map(|candidate| judge.shows(candidate).unwrap());
        assert_eq!(shows, [true, false, false, true]);
    }

    #[test]
    fn a_known_finding_is_judged_if_there_is_no_other() {
        // The candidates are answers.
        let answers = || shell(r#"cat "$input"; echo"#);
        let (known, both) =
            (r#"{"known":["one","two"]}"#, r#"{"fingerprint":"new","known":["one"]}"#);
        let candidates = [known, both, r#"{"known":["two","one"]}"#, "{}"];
        for (input, expected) in
            [(known, [true, false, false, false]), (both, [false, true, false, false])]
        {
            let mut judge = Judge::by_finding(input.as_bytes(), answers()).unwrap();
            let shows = candidates.map(|candidate| judge.shows(candidate.as_bytes()).unwrap());
            assert_eq!(shows, expected, "{input}");
        }
    }

    #[test]
    fn an_input_without_a_finding_has_no_judge() {
        let judge = Judge::by_finding(b"", shell("echo {}"));
        assert!(matches!(judge, Err(JudgeError::NothingFound)));
    }

    #[test]
    fn a_judge_that_cannot_judge_returns_an_error() {
        let dir = tempfile::tempdir().unwrap();
        // The first run ends its process. The second run fails with exit code 2.
        let script = format!(
            "test -e {0} && {{ echo no >&2; exit 2; }}; touch {0}; exit 3",
            dir.path().join("flag").display()
        );
        let mut judge = Judge::by_finding(b"", shell(&script)).unwrap();
        assert_eq!(judge.shows(b"").unwrap_err().to_string(), "no");
    }
}
