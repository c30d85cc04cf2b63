//! `fuzz`: the embedded loop. Workers are processes of their own, so that none that ends takes the campaign
//! with it; here they are looked after.

mod job;
mod places;
mod slot;
mod subject;
mod summary;
mod supervisor;
pub mod worker;

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::exit::{Exit, Failure, Outcome};
use super::print::print;
use super::target;
use qcowfuzz::harness::targets::TargetKind;

use job::Plan;
use places::Places;
use summary::Summary;
use supervisor::Supervisor;

/// Fuzz a target with the embedded loop: on stable, without cargo-fuzz, steered by edges and rare events
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Under DIR: inputs are read from corpus/TARGET, and those worth keeping added to it; what is found \
goes to artifacts/TARGET; state/TARGET has what the next campaign goes on from. All of them survive \
a kill. A campaign ends after --seconds or --runs, or with Ctrl-C.

With --corpus, inputs are read from and added to that folder instead. Campaigns with a --dir each may \
share it: all look at what the others have added, every few thousand runs. Its subfolder .scratch has \
files while they are written.

A panic, a hang or a stack overflow of a run is a finding too, and does not end the campaign. Of \
each bug the first input is written, and every one that is shorter than those before.

With --jobs 1 and --runs the same corpus and the same --rng-seed give the same campaign.

Exit codes: 0 nothing was found; 1 a violation was found; 2 a file could not be read or \
written, or no worker be kept alive.

Examples: qcowfuzz fuzz --seconds 60
          qcowfuzz fuzz --target hostile --runs 100000 --jobs 1 --dir /tmp/campaign")]
pub struct Arguments {
    /// The fuzz target
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// End after so many seconds
    #[arg(long, value_name = "N", conflicts_with = "runs")]
    seconds: Option<u64>,
    /// End after so many runs more, of all jobs together
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// End as soon as something is found
    #[arg(long)]
    until_found: bool,
    /// Where the random numbers of a new campaign begin [default: 1]
    #[arg(long, value_name = "N")]
    rng_seed: Option<u64>,
    /// How many runs at a time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Where corpus, artifacts and state are
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Where the inputs are: a folder that campaigns share, also those of other machines [default: that under DIR]
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// How many operations a program has at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    max_operations: usize,
    /// A run of so many seconds is a hang
    #[arg(long, value_name = "SECONDS", default_value_t = 25,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    /// Begin a new campaign from the corpus: forget the state of the one before
    #[arg(long)]
    restart: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs a campaign.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { target, dir, .. } = arguments;
    target::reject_files(*target, "--target")?;
    let jobs = match arguments.jobs {
        Some(jobs) => usize::from(jobs),
        None => available_parallelism().map_or(1, NonZero::get),
    };
    let places = Places::new(dir.clone(), arguments.corpus.clone(), *target)?;
    let _lock = places.lock()?;
    places.clean(arguments.restart)?;
    let rng_seed = places.rng_seed(arguments.rng_seed)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if stopped.swap(true, Ordering::Relaxed) {
            // Asked twice: at once. Workers end with their standard input.
            std::process::exit(2);
        }
    })
    .map_err(|error| Failure::Told(format!("signals: {error}")))?;
    let start = Instant::now();
    let plan = Plan {
        places: &places,
        target: *target,
        jobs,
        rng_seed,
        max_operations: arguments.max_operations,
        build: job::build()?,
        runs: arguments.runs,
        until_found: arguments.until_found,
        // An end that no clock reaches is none.
        end: arguments.seconds.and_then(|seconds| start.checked_add(Duration::from_secs(seconds))),
        timeout: Duration::from_secs(arguments.timeout),
    };
    let finished = Supervisor::start(plan, stop)?.watch();
    let summary = Summary::new(&places, *target, jobs, start.elapsed(), &finished)?;
    print(&summary, arguments.json, |summary, out| summary.lines(out))?;
    match finished.failure {
        Some(line) => Err(Failure::Told(line)),
        None => Ok(Exit::after(summary.found())),
    }
}
