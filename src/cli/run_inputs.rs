//! `run-inputs`: runs the inputs that another process sends.

use crate::findings::isolation::{Repeat, run_inputs};
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;

use super::exit::{CommandError, Exit, ExitResult};
use super::limits::LimitArguments;
use super::target;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long, value_parser = target::parser())]
    target: TargetKind,
    /// Run each input twice, and report a difference
    #[arg(long)]
    twice: bool,
    #[command(flatten)]
    limits: LimitArguments,
}

/// Runs the inputs.
pub fn run(implementation: &Implementation, arguments: &Arguments) -> ExitResult {
    // The end of a service or of a container reaches all of its processes; the process that waits for the results
    // handles it.
    let _ = ctrlc::set_handler(|| {});
    let counter = arguments.limits.enforce()?;
    let repeat = if arguments.twice { Repeat::Twice } else { Repeat::Once };
    run_inputs(implementation, arguments.target, repeat, &counter)
        .map(|()| Exit::Nothing)
        .map_err(|error| CommandError::output(&error))
}
