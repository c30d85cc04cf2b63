//! `fuzz-worker`: runs one job of `fuzz` in a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use crate::fuzzing::campaign::worker;
use crate::fuzzing::campaign::worker::WorkerJob;
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;

use crate::cli::exit::{CommandError, Exit, ExitResult};
use crate::cli::limits::LimitArguments;
use crate::cli::target;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long, value_parser = target::parser())]
    target: TargetKind,
    #[arg(long)]
    dir: PathBuf,
    /// The folder of inputs, if it is not under --dir
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// The number of this job, from 0
    #[arg(long)]
    job: usize,
    #[arg(long)]
    jobs: usize,
    /// The seed of this job, if it has no saved state
    #[arg(long)]
    rng_seed: u64,
    #[arg(long)]
    max_operations: usize,
    /// The name of the build under test
    #[arg(long)]
    build: String,
    /// End when this job has made N runs, counting those of earlier campaigns
    #[arg(long)]
    until: Option<u64>,
    #[arg(long)]
    milliseconds: Option<u64>,
    /// Start a campaign: read the inputs that came to the corpus since the state was saved, and discard the
    /// violations of the previous campaign
    #[arg(long)]
    begins: bool,
    /// Run generated programs instead of mutations of the corpus
    #[arg(long)]
    generated: bool,
    /// Verify the image after every operation of a program
    #[arg(long)]
    check_each: bool,
    #[command(flatten)]
    limits: LimitArguments,
}

/// Runs a job to its end.
pub fn run(implementation: &Implementation, arguments: &Arguments) -> ExitResult {
    // The end of a service or of a container reaches all of its processes; the supervisor handles it.
    let _ = ctrlc::set_handler(|| {});
    let runs = arguments.limits.enforce()?;
    worker::run(implementation, &job(arguments), runs)
        .map(|()| Exit::Nothing)
        .map_err(|error| CommandError::output(&error))
}

fn job(arguments: &Arguments) -> WorkerJob {
    WorkerJob {
        target: arguments.target,
        dir: arguments.dir.clone(),
        shared: arguments.corpus.clone(),
        number: arguments.job,
        jobs: arguments.jobs,
        rng_seed: arguments.rng_seed,
        max_operations: arguments.max_operations,
        build: arguments.build.clone(),
        until: arguments.until,
        limit: arguments.milliseconds.map(Duration::from_millis),
        generated: arguments.generated,
        checks: Checks::after_each_if(arguments.check_each),
        begins: arguments.begins,
    }
}
