//! The option `--against`: another implementation that judges the images of a run, too.

use std::ffi::OsString;

use crate::harness::qemu_io::{CostlyComparisons, Qemu};

use super::exit::CommandError;

/// The option `--against`.
#[derive(Debug, clap::Args)]
pub struct AgainstOption {
    /// Compare each image with this implementation, too, on the targets map_extents, hostile and writes; docs/fuzz.md
    /// describes the comparison. The commands that take --known take this option
    #[arg(long, value_name = "NAME", global = true)]
    against: Option<Against>,
}

/// The implementations that judge images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Against {
    /// The installed qemu-io and qemu-img
    Qemu,
}

impl AgainstOption {
    /// Rejects the option for the verb `name`, which runs no inputs.
    pub fn reject(&self, name: &str) -> Result<(), CommandError> {
        match self.against {
            None => Ok(()),
            Some(Against::Qemu) => Err(CommandError::Message(format!(
                "--against: '{name}' runs no inputs, expected a command that does"
            ))),
        }
    }

    /// Starts QEMU, if the option names it, so that a mistake is reported at once.
    pub fn start(&self, costly: CostlyComparisons) -> Result<Option<Qemu>, CommandError> {
        let start = |_| {
            let failed = |what| CommandError::Message(format!("--against qemu: {what}"));
            Qemu::start(costly).map_err(failed)
        };
        self.against.map(start).transpose()
    }
}

/// Returns the arguments that choose the same implementation in another process.
pub fn arguments(qemu: Option<&Qemu>) -> Option<OsString> {
    qemu.map(|_| OsString::from("--against=qemu"))
}

/// Returns a text that changes with the implementation, which decides how an input runs. It is empty without one.
pub fn identity(qemu: Option<&Qemu>) -> String {
    qemu.map_or(String::new(), |qemu| format!("against qemu {}", qemu.version()))
}
