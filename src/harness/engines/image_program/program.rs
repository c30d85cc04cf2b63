//! Runs the commands of a program about the files in a folder.

use std::fmt::Write as _;
use std::path::Path;

use crate::harness::engine::engine_failure;
use crate::harness::engine::{Answer, EngineEnd, EngineError};
use crate::harness::engines::engine_process;
use crate::processes::ProcessEnd;

/// The exit codes of a shell that cannot run a command.
const NOT_RUN: [i32; 2] = [126, 127];

/// The end of a program, and all that it has printed to standard output.
#[derive(Clone, Debug)]
pub(in crate::harness) struct Ran {
    pub(in crate::harness) end: EngineEnd,
    pub(in crate::harness) output: String,
}

/// The commands of a program about the files in a folder.
#[derive(Clone, Copy, Debug)]
pub(in crate::harness) struct ImageCommands<'p> {
    /// The program, which a shell runs.
    pub(in crate::harness) line: &'p str,
    /// The folder of the files. Images name each other by their names in it.
    pub(in crate::harness) folder: &'p Path,
}

impl ImageCommands<'_> {
    /// Runs the program to its end with these arguments. If it cannot be run, no image is to blame.
    pub(in crate::harness) fn run(&self, arguments: &[&str]) -> Ran {
        self.try_run(arguments).unwrap_or_else(|what| engine_failure::fail(what))
    }

    /// Runs the program to its end with these arguments.
    ///
    /// # Errors
    /// Returns one line for the user: the program cannot be run.
    pub(super) fn try_run(&self, arguments: &[&str]) -> Result<Ran, String> {
        let failed = |what: &str| format!("{}: {what}", self.line);
        let mut line = self.line.to_string();
        for argument in arguments {
            // A string takes everything. The harness has chosen the names, and none contains a quote.
            let _ = write!(line, " '{argument}'");
        }
        let ran = engine_process::run_to_end(&line, Some(self.folder));
        let (end, output) = ran.map_err(|what| failed(&what))?;
        if end.process.code().is_some_and(|code| NOT_RUN.contains(&code)) {
            return Err(failed(&format!("cannot be run: {}", end.detail)));
        }
        let end = EngineEnd { detail: self.without_folder(&end.detail), ..end };
        Ok(Ran { end, output: String::from_utf8_lossy(&output).into_owned() })
    }

    /// Runs the program, which must succeed, and returns its output.
    ///
    /// # Errors
    /// The program reports an error, or its process has ended in another way.
    pub(in crate::harness) fn answer(&self, arguments: &[&str]) -> Answer<String> {
        let Ran { end, output } = self.run(arguments);
        match end.process {
            ProcessEnd::Exit(0) => Ok(output),
            ProcessEnd::Exit(1) => Err(reported(&end)),
            _ => Err(EngineError::Ended(Box::new(end))),
        }
    }

    /// Removes the path of the folder from a message, because each process has another one.
    fn without_folder(&self, text: &str) -> String {
        text.replace(&*self.folder.join("").to_string_lossy(), "")
    }
}

/// Returns the error that a program has reported.
pub(super) fn reported(end: &EngineEnd) -> EngineError {
    match end.detail.is_empty() {
        true => EngineError::untyped(end.process.name()),
        false => EngineError::untyped(end.detail.clone()),
    }
}
