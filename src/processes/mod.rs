//! Other processes, and the limits of this one. No other module starts a process, bounds its time, its memory and its
//! output, stops it with all that it has started, or describes its end.
//!
//! A process has a group of its own, so that it is stopped with its children, and Ctrl-C at the terminal reaches only
//! the process that supervises it. Dropping its `Process` stops it.

#[cfg(feature = "fuzzer")]
mod cause;
mod end;
#[cfg(feature = "fuzzer")]
mod folder;
#[cfg(feature = "fuzzer")]
mod limits;
#[cfg(feature = "fuzzer")]
mod piped;
#[cfg(feature = "fuzzer")]
mod process;
#[cfg(feature = "cli")]
mod run;

#[cfg(feature = "fuzzer")]
pub(crate) use cause::cause_in;
pub use end::ProcessEnd;
#[cfg(feature = "fuzzer")]
pub(crate) use folder::TemporaryFolder;
#[cfg(feature = "cli")]
pub(crate) use limits::{CPU_OPTION, MEMORY_OPTION};
#[cfg(feature = "fuzzer")]
pub use limits::{ProcessLimits, RunCounter};
#[cfg(feature = "fuzzer")]
pub(crate) use piped::TimeLimit;
#[cfg(feature = "fuzzer")]
pub(crate) use piped::{Bounds, NoAnswer, PipedProcess, TakeAnswers};
#[cfg(feature = "fuzzer")]
pub use process::Executable;
#[cfg(feature = "fuzzer")]
pub(crate) use process::Process;
#[cfg(feature = "cli")]
pub(crate) use run::{MARK, Reply, end_below, run};

#[cfg(test)]
mod tests;
