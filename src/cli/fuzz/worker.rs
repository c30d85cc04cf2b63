//! `fuzz-worker`: a job of 'fuzz', in a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use qcowfuzz::fuzzing::campaign::worker;
use qcowfuzz::fuzzing::campaign::worker::Job;
use qcowfuzz::harness::targets::TargetKind;

use crate::cli::exit::{Exit, Failure, Outcome};
use crate::cli::target;

/// A job of 'fuzz', which starts it
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long, value_parser = target::parser())]
    target: TargetKind,
    #[arg(long)]
    dir: PathBuf,
    /// Where the inputs are, if not there
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// From 0
    #[arg(long)]
    job: usize,
    #[arg(long)]
    jobs: usize,
    /// Of this job, where nothing is saved yet
    #[arg(long)]
    rng_seed: u64,
    #[arg(long)]
    max_operations: usize,
    /// Which code is run
    #[arg(long)]
    build: String,
    /// End when there were so many, those of campaigns before included
    #[arg(long)]
    until: Option<u64>,
    #[arg(long)]
    milliseconds: Option<u64>,
    /// A campaign begins: look at what has come to the corpus since the state was saved, and forget what
    /// the one before has found
    #[arg(long)]
    begins: bool,
    /// Run this input, and nothing else
    #[arg(long, value_name = "INPUT")]
    only: Option<PathBuf>,
}

/// Runs a job until its end.
pub fn run(arguments: &Arguments) -> Outcome {
    // Ctrl-C reaches every process of a terminal; the supervisor answers it.
    let _ = ctrlc::set_handler(|| {});
    let ran = match &arguments.only {
        Some(input) => worker::run_only(arguments.target, input),
        None => worker::run(&job(arguments)),
    };
    ran.map(|()| Exit::Nothing).map_err(|error| Failure::output(&error))
}

fn job(arguments: &Arguments) -> Job {
    Job {
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
        begins: arguments.begins,
    }
}
