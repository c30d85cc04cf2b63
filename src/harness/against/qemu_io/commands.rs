//! The commands of a session, and the answers of qemu-io. A script keeps the commands, if there is one.

use std::fmt;

use crate::harness::ChainFiles;
use crate::harness::engine::{Answer, EngineError};
use crate::harness::files::chain::ChainFolder;

use super::recorded::RecordedFiles;
use super::script::SessionScript;
use super::session::{MAX_COMMAND_BYTES, QemuIo};

/// Parts of the lines that QEMU prints when it opens an image all the same: the warning about bitmaps that a program
/// without support for them has left, and the repair of an image that a crash has left marked as dirty.
const NOTICES: [&str; 6] = [
    "warning: a program lacking bitmap support modified this file",
    "Some clusters may be leaked",
    "Leaked cluster ",
    "ERROR cluster ",
    "Repairing cluster ",
    "Rebuilding refcount structure",
];

/// A qemu-io, and the files that it opens.
#[derive(Debug, Default)]
pub(super) struct QemuCommands {
    pub(super) io: QemuIo,
    pub(super) files: ChainFiles,
    pub(super) script: Option<SessionScript>,
}

/// Reports whether a line is one of the [`NOTICES`].
fn is_notice(line: &str) -> bool {
    NOTICES.iter().any(|notice| line.contains(notice))
}

/// The header of an image may have no room for the feature names that QEMU adds when it writes a header. The harness
/// cannot give QEMU such an image for writing.
pub(super) fn not_given_without_room(error: EngineError) -> EngineError {
    match error.to_string().contains("No space left on device") {
        true => EngineError::NotGiven(error.into()),
        false => error,
    }
}

impl QemuCommands {
    /// Opens an image. QEMU may repair it, and warns of bitmaps that a program without support for them has left.
    pub(super) fn open_with(&mut self, arguments: fmt::Arguments<'_>) -> Answer {
        self.io.work_in(self.files.folder().map(ChainFolder::path));
        let command = format!("open {arguments}");
        if command.len() > MAX_COMMAND_BYTES {
            return Err(EngineError::NotGiven("the options of the image are too long".into()));
        }
        let output = self.ask(format_args!("{command}"))?;
        let lines = output.trim().lines().filter(|line| !is_notice(line));
        let said = lines.collect::<Vec<_>>().join("\n");
        if said.is_empty() {
            return Ok(());
        }
        // QEMU may have opened it all the same, and would not open the next one.
        self.ask(format_args!("close"))?;
        Err(EngineError::untyped(said))
    }

    /// Opens an image for writing, with empty records.
    pub(super) fn open_recorded(&mut self, files: &mut RecordedFiles) -> Answer {
        // Without `-n`, qemu-io flushes after each write. It also bypasses the cache of the system, which
        // `cache.direct=off` undoes.
        let options = files.begin().with_layers_below;
        self.open_with(format_args!("-n -o cache.direct=off,{options}"))
    }

    /// Sends a command, and returns its output.
    pub(super) fn ask(&mut self, command: fmt::Arguments<'_>) -> Answer<&str> {
        if let Some(script) = &mut self.script {
            script.note(&command.to_string());
        }
        match self.io.ask(command) {
            Ok(output) => Ok(output),
            Err(ended) => {
                self.script.iter_mut().for_each(|script| script.finish(None));
                Err(EngineError::Ended(Box::new(ended.end)))
            }
        }
    }

    /// Sends a command whose output begins with `expected`, or is empty if `expected` is.
    pub(super) fn say(&mut self, command: fmt::Arguments<'_>, expected: &str) -> Answer {
        let output = self.ask(command)?.trim();
        let is_expected = match expected {
            "" => output.is_empty(),
            _ => output.starts_with(expected),
        };
        match is_expected {
            true => Ok(()),
            false => Err(EngineError::untyped(output.to_string())),
        }
    }
}
