//! The options with the limits of processes that run inputs.

use std::time::Duration;

use crate::processes::{CPU_OPTION, MEMORY_OPTION, ProcessLimits, RunCounter};

use super::exit::CommandError;

/// The address space of a process that runs inputs, in MiB, unless the user sets another.
pub const DEFAULT_MEMORY_MIB: u64 = 4096;

// The memory limit, as a user sets it. A documentation comment would become the description of the whole command.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct MemoryArgument {
    /// Report a run whose process needs more address space as a finding; 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_MEMORY_MIB)]
    memory_limit: u64,
}

impl MemoryArgument {
    /// Returns the limits of processes whose runs may take `seconds` of CPU time.
    pub fn limits(self, seconds: u64) -> ProcessLimits {
        ProcessLimits { cpu_time: Duration::from_secs(seconds), memory_mib: self.memory_limit }
    }
}

// The limits of this process, as the process that supervises it sets them. The names are those of [`CPU_OPTION`] and
// [`MEMORY_OPTION`].
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LimitArguments {
    #[arg(long = &CPU_OPTION[2..], value_name = "N", hide = true)]
    cpu_milliseconds: Option<u64>,
    #[arg(long = &MEMORY_OPTION[2..], value_name = "N", hide = true, default_value_t = 0)]
    memory_mib: u64,
}

impl LimitArguments {
    /// Enforces the limits in this process, if there are any.
    pub fn enforce(self) -> Result<RunCounter, CommandError> {
        let Some(milliseconds) = self.cpu_milliseconds else { return Ok(RunCounter::default()) };
        let cpu_time = Duration::from_millis(milliseconds);
        let limits = ProcessLimits { cpu_time, memory_mib: self.memory_mib };
        limits.enforce().map_err(|error| {
            CommandError::Message(format!("cannot limit the memory of this process: {error}"))
        })
    }
}
