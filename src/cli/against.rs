//! The options `--against` and `--against-command`: another implementation that judges the images of a run, too.

use std::ffi::OsString;

use crate::harness::against::qemu_io::{CostlyComparisons, Qemu};
use crate::harness::cases::implementation::Implementation;
use crate::harness::engines::command::EngineCommand;

use super::exit::CommandError;

/// The name of the installed QEMU.
const QEMU_NAME: &str = "qemu";

/// The options.
#[derive(Debug, clap::Args)]
pub struct AgainstOption {
    /// Compare each answer with that of another implementation: 'qemu', the installed qemu-io and qemu-img; or an
    /// implementation in this executable, such as 'map_extents'. docs/fuzz.md describes the comparison. The commands
    /// that take --known take this option
    #[arg(long, value_name = "NAME", global = true)]
    against: Option<String>,
    /// Compare each answer with that of the implementation behind this command, which a shell runs, as --engine-command
    #[arg(long, value_name = "CMD", global = true)]
    against_command: Option<String>,
}

/// The implementation that judges images, too.
pub enum Against {
    /// The installed QEMU.
    Qemu(Qemu),
    /// An implementation in this executable.
    Compiled(String, Implementation),
    /// The implementation behind a command.
    Command(String, EngineCommand),
}

impl AgainstOption {
    /// Rejects the options for the verb `name`, which runs no inputs.
    pub fn reject(&self, name: &str) -> Result<(), CommandError> {
        let option = match (&self.against, &self.against_command) {
            (None, None) => return Ok(()),
            (Some(_), _) => "--against",
            (None, Some(_)) => "--against-command",
        };
        Err(CommandError::Message(format!(
            "{option}: '{name}' runs no inputs, expected a command that does"
        )))
    }

    /// Starts the implementation that the options name, so that a mistake is reported at once. `compiled` are those in
    /// this executable.
    pub fn start(
        &self,
        costly: CostlyComparisons,
        compiled: &[Implementation],
    ) -> Result<Option<Against>, CommandError> {
        let failed =
            |option: &str, what: String| CommandError::Message(format!("{option}: {what}"));
        match (&self.against, &self.against_command) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(failed(
                "--against-command",
                "found --against, too, expected one of them".into(),
            )),
            (None, Some(line)) => {
                let command =
                    EngineCommand::start(line).map_err(|what| failed("--against-command", what))?;
                Ok(Some(Against::Command(line.clone(), command)))
            }
            (Some(name), None) if name == QEMU_NAME => {
                let qemu = Qemu::start(costly).map_err(|what| failed("--against qemu", what))?;
                Ok(Some(Against::Qemu(qemu)))
            }
            (Some(name), None) => match compiled.iter().find(|it| it.facts().name == *name) {
                Some(found) => Ok(Some(Against::Compiled(name.clone(), found.clone()))),
                None => Err(failed("--against", unknown(name, compiled))),
            },
        }
    }
}

/// Returns the line about a name that no implementation has.
fn unknown(name: &str, compiled: &[Implementation]) -> String {
    let mut names = vec![QEMU_NAME.to_string()];
    for implementation in compiled {
        let name = implementation.facts().name.into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    format!("found '{name}', expected one of: {}", names.join(", "))
}

impl Against {
    /// Returns the name of the implementation, for reports.
    pub fn name(&self) -> String {
        match self {
            Self::Qemu(_) => "QEMU".to_string(),
            Self::Compiled(name, _) => name.clone(),
            Self::Command(_, command) => {
                Implementation::from(command.clone()).facts().name.into_owned()
            }
        }
    }

    /// Returns `implementation`, whose images this one judges, too.
    pub fn judge(&self, implementation: Implementation) -> Implementation {
        match self {
            Self::Qemu(qemu) => implementation.against(qemu),
            Self::Compiled(_, other) => implementation.against_engine(other.clone()),
            Self::Command(_, command) => implementation.against_engine(command.clone().into()),
        }
    }

    /// Returns the argument that chooses the same implementation in another process.
    pub fn argument(&self) -> OsString {
        OsString::from(match self {
            Self::Qemu(_) => format!("--against={QEMU_NAME}"),
            Self::Compiled(name, _) => format!("--against={name}"),
            Self::Command(line, _) => format!("--against-command={line}"),
        })
    }

    /// Returns a text that changes with the implementation, which decides how an input runs.
    pub fn identity(&self) -> String {
        match self {
            Self::Qemu(qemu) => format!("against qemu {}", qemu.version()),
            Self::Compiled(name, _) => format!("against {name}"),
            Self::Command(line, command) => {
                format!("against the command {line} {}", command.first_lines())
            }
        }
    }
}
