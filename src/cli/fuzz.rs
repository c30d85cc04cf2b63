//! `fuzz`: runs the embedded loop in worker processes, so that no crash ends the campaign.

use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::formats::rare_events;
use crate::fuzzing::campaign::exhaustive::Judged;
use crate::fuzzing::campaign::worker::{self, WorkerJob};
use crate::fuzzing::campaign::{
    Campaign, CampaignError, CampaignPlan, CampaignSummary, FoundBug, KnownBug, Places,
    SlowFeature, Status, UnansweredQuestion, build_name,
};
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;

use super::options::{self, LimitArguments, MemoryArgument};
use super::output::{CommandError, Exit, ExitResult, counted, print, spinner};
use super::under_test::UnderTest;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A campaign uses three folders under DIR. It reads inputs from corpus/TARGET, and adds those that reach \
new edges or rare events; it writes the inputs that show bugs to artifacts/TARGET; it saves the state \
from which the next campaign continues to state/TARGET. All three survive a kill. A campaign ends after \
--seconds or --runs, or on Ctrl-C.

With --corpus, the campaign reads inputs from that folder and adds them there instead. Several \
campaigns, each with its own --dir, may share a corpus: every few thousand runs, each reads the inputs \
that the others have added. The subfolder .scratch holds files while they are being written.

A panic, a hang, a stack overflow or an allocation beyond --memory-limit is a finding too, and does \
not end the campaign. For each bug, the \
campaign writes the first input that shows it, and each input that is shorter than all earlier ones.

A known finding, which the implementation or --known lists, is counted, and it is no finding of the \
campaign. The summary lists the known findings apart from new ones, and names those that did not occur.

The inputs of raw_image are files. Without a corpus, a campaign of it begins from small images.

The inputs of recipes choose commands of the installed qemu-img and qemu-io, which make and change disks. The \
answers are compared with QEMU's, or with those of --against.

With --exhaustive, the campaign ends when all programs are judged; a killed one continues. An end after \
--seconds is no end: the next one continues, too.

With --jobs 1 and --runs, the same corpus and the same --rng-seed give the same campaign.

Exit codes: 0 nothing new was found; 1 a violation was found; 2 a file could not be read or written, or \
the workers could not be kept alive.

Examples: qcowfuzz fuzz --seconds 60
          qcowfuzz fuzz --target hostile --runs 100000 --jobs 1 --dir /tmp/campaign")]
pub struct Arguments {
    /// The fuzz target to run
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// End after N seconds
    #[arg(long, value_name = "N", conflicts_with = "runs")]
    seconds: Option<u64>,
    /// End after N more runs, counted over all jobs
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Run generated programs and programs of random bytes, instead of mutations of the corpus
    #[arg(long)]
    generated: bool,
    /// Run all programs of up to N requests to a small disk, instead of the loop: each with every file operation
    /// failing once, with every power cut, and with every order of two requests in flight. Only for writes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3),
          conflicts_with_all = ["generated", "runs", "check_each", "rng_seed"])]
    exhaustive: Option<u8>,
    /// Verify the image after every operation of a program, not only at checkpoints and at its end
    #[arg(long)]
    check_each: bool,
    /// End at the first violation
    #[arg(long)]
    until_found: bool,
    /// The seed of the random numbers of a new campaign [default: 1]
    #[arg(long, value_name = "N")]
    rng_seed: Option<u64>,
    /// The number of worker processes [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// The folder that holds corpus, artifacts and state
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The folder of inputs; campaigns, also on other machines, may share it [default: corpus/TARGET under --dir]
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// The maximum number of operations in a program
    #[arg(long, value_name = "N", default_value_t = 60)]
    max_operations: usize,
    /// Report a run that uses this much CPU time as a hang
    #[arg(long, value_name = "SECONDS", default_value_t = 25,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    #[command(flatten)]
    memory: MemoryArgument,
    /// Start a new campaign from the corpus, and discard the state of the previous one
    #[arg(long)]
    restart: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs a campaign.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { target, dir, .. } = arguments;
    options::reject_reader(*target, &under_test.implementation)?;
    if arguments.check_each {
        options::reject_files(*target, "--check-each")?;
    }
    let jobs = match arguments.jobs {
        Some(jobs) => usize::from(jobs),
        None => available_parallelism().map_or(1, NonZero::get),
    };
    let exhaustive = arguments.exhaustive.map(usize::from);
    if exhaustive.is_some() && *target != TargetKind::Writes {
        let found = format!("--exhaustive: found the target {}, expected writes", target.name());
        return Err(CommandError::Message(found));
    }
    let shared = arguments.corpus.clone();
    let places = Places::new(dir.clone(), shared, *target, exhaustive.is_some())?;
    let _lock = places.lock()?;
    places.clean(arguments.restart)?;
    let rng_seed = match exhaustive {
        // It draws nothing.
        Some(_) => 0,
        None => places.rng_seed(arguments.rng_seed)?,
    };
    let stop = stop_on_ctrl_c()?;
    let (start, executable) = (Instant::now(), under_test.executable()?);
    // A run stops at a finding that is not known, so the list of known ones decides about coverage, too.
    let checks = Checks::after_each_if(arguments.check_each);
    let judged = format!("{}{checks:?}", under_test.identity());
    let plan = CampaignPlan {
        build: build_name(&executable, &judged)?,
        executable,
        target: *target,
        known: under_test.known.clone(),
        places,
        jobs,
        rng_seed,
        max_operations: arguments.max_operations,
        runs: arguments.runs,
        // A deadline that the clock cannot represent is never reached.
        end: arguments.seconds.and_then(|seconds| start.checked_add(Duration::from_secs(seconds))),
        generated: arguments.generated,
        exhaustive,
        checks,
        until_found: arguments.until_found,
        limits: arguments.memory.limits(arguments.timeout),
    };
    let bar = spinner();
    let finished = Campaign::start(&plan, stop)?.supervise(&mut |status| {
        bar.set_message(line(status));
        bar.tick();
    });
    bar.finish_and_clear();
    let summary = CampaignSummary::new(&plan, start.elapsed(), &finished)?;
    let against = under_test.against.as_ref().map(|it| it.name.as_str());
    let replay = under_test.command_line("replay", *target);
    let failed = finished.failure.is_some();
    print(&summary, arguments.json, |summary, out| {
        lines(summary, against, out)?;
        found_lines(summary, failed, &replay, out)
    })?;
    match finished.failure {
        Some(line) => Err(CommandError::Message(line)),
        None => Ok(Exit::after(summary.found.len())),
    }
}

/// Returns a flag that the first Ctrl-C sets. The second Ctrl-C ends this process.
pub(super) fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, CommandError> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if stopped.swap(true, Ordering::Relaxed) {
            // The workers end too, because their standard input closes.
            std::process::exit(2);
        }
    })
    .map_err(|error| CommandError::Message(format!("cannot handle Ctrl-C: {error}")))?;
    Ok(stop)
}

impl From<CampaignError> for CommandError {
    fn from(error: CampaignError) -> Self {
        match error {
            CampaignError::Busy { dir } => {
                Self::at(&dir, "another campaign is running in this folder, expected another --dir")
            }
            CampaignError::Seed { path, saved } => Self::at(
                &path,
                format_args!(
                    "the saved campaign has --rng-seed {saved}, expected the same value or --restart"
                ),
            ),
            CampaignError::File(error) => error.into(),
            error => Self::Message(error.to_string()),
        }
    }
}

fn line(status: &Status) -> String {
    let Status { runs, elapsed, edges, rare_events, inputs, found, judged, runs_of_corpus } =
        status;
    let rate = *runs as f64 / elapsed.as_secs_f64().max(1e-3);
    if judged.of > 0 {
        let Judged { programs, of, .. } = judged;
        return format!("{programs} of {of} programs · {runs} runs, {rate:.0}/s · {found} found");
    }
    if let (Some(read @ 1..), 0) = (runs_of_corpus, runs) {
        return format!("reading the corpus: {read} runs · {found} found");
    }
    format!(
        "{runs} runs, {rate:.0}/s · {edges} edges, {rare_events} rare events · {inputs} inputs · {found} found"
    )
}

/// Writes the counts, and the known findings.
fn lines(summary: &CampaignSummary, against: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let CampaignSummary { jobs, runs, seconds, edges, rare_events, corpus, inputs, .. } = summary;
    let target = summary.target.name();
    let jobs = counted(*jobs, "job");
    writeln!(out, "{target}: {runs} runs in {seconds:.1} s, {jobs}")?;
    match &summary.judged {
        Some(judged) => judged_lines(judged, out)?,
        None => {
            let rare = format!("{rare_events} of {} rare events", rare_events::COUNT);
            writeln!(out, "{corpus}: {inputs} inputs; covered: {edges} edges, {rare}")?;
        }
    }
    if summary.unsupported > 0 {
        let what = "runs had images with features that the implementation does not claim";
        writeln!(out, "not judged: {} {what}", summary.unsupported)?;
    }
    if let Some(SlowFeature { feature, times, percent }) = summary.slow {
        let slower = format!("runs with '{feature}' take {times} times as long as others");
        writeln!(
            out,
            "slow: {slower}, {percent}% of the time; --without '{feature}' leaves them out"
        )?;
    }
    for UnansweredQuestion { question, idle_oracles } in &summary.unanswered {
        writeln!(out, "in some runs, no answer to '{question}'; idle oracles: {idle_oracles}")?;
    }
    against.map_or(Ok(()), |against| against_lines(summary, against, out))?;
    known_lines(&summary.known, out)
}

/// Writes what an exhaustive search has judged, and what it has left out.
fn judged_lines(judged: &Judged, out: &mut impl Write) -> io::Result<()> {
    let Judged { programs, of, faults, cuts, orders, more_cuts, more_orders, more_faults } = judged;
    writeln!(out, "{programs} of {of} programs: all sequences of requests to a small disk")?;
    writeln!(out, "{faults} runs in which one file operation failed")?;
    writeln!(out, "{cuts} runs with a power cut, each of which left other files")?;
    writeln!(out, "{orders} runs with two requests in flight, each in another order")?;
    for (count, what) in [
        (more_cuts, "with more power cuts: 256 of each were tried"),
        (more_orders, "with more orders: those of the first 16 file operations were tried"),
        (more_faults, "with more file operations of a kind: the first 256 failed"),
    ] {
        if *count > 0 {
            let plural = if *count == 1 { "" } else { "s" };
            writeln!(out, "not all: {count} program{plural} {what}")?;
        }
    }
    let end = if programs == of { "all judged" } else { "not all programs judged" };
    writeln!(out, "{end}")
}

/// Writes the new findings of a campaign, which may have failed. `replay` is the command line that replays an input.
fn found_lines(
    summary: &CampaignSummary,
    failed: bool,
    replay: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let found = &summary.found;
    if found.is_empty() {
        let new = if summary.known.is_empty() { "" } else { " new" };
        let until = if failed { ", until the campaign failed" } else { "" };
        return writeln!(out, "found: nothing{new}{until}");
    }
    for FoundBug { fingerprint, times, shortest, bytes, detail } in found {
        let times = often(*times);
        writeln!(out, "\n{fingerprint}\n  {times}; {bytes} bytes: {shortest}")?;
        detail.lines().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    writeln!(out, "\nfor details: {replay} FILE")
}

/// Writes the counts of the comparisons with the implementation `against`.
fn against_lines(summary: &CampaignSummary, against: &str, out: &mut impl Write) -> io::Result<()> {
    if summary.compared + summary.not_compared > 0 {
        write!(out, "{against} judged {} images", summary.compared)?;
        let what = "that are too large, change during reads, or are not read by one of the two";
        match summary.not_compared {
            0 => writeln!(out)?,
            others => writeln!(out, ", and not {others} others {what}")?,
        }
    }
    for question in &summary.uncompared {
        writeln!(
            out,
            "in some runs, {against} has no answer to '{question}': it was not compared"
        )?;
    }
    Ok(())
}

/// Writes the known findings: those that occurred, and those that did not.
fn known_lines(known: &[KnownBug], out: &mut impl Write) -> io::Result<()> {
    let (met, gone): (Vec<_>, Vec<_>) = known.iter().partition(|known| known.times > 0);
    for KnownBug { fingerprint, times, reason, link, .. } in met {
        writeln!(out, "known: {fingerprint}\n  {}; {reason}", often(*times))?;
        link.iter().try_for_each(|link| writeln!(out, "  {link}"))?;
    }
    for KnownBug { fingerprint, .. } in gone {
        writeln!(out, "known, but it did not occur: {fingerprint}")?;
    }
    Ok(())
}

fn often(times: u64) -> String {
    if times == 1 { "once".to_string() } else { format!("{times} times") }
}

#[derive(Debug, clap::Args)]
pub struct WorkerArguments {
    /// The job, as JSON
    #[arg(value_parser = |text: &str| serde_json::from_str::<WorkerJob>(text))]
    job: WorkerJob,
    #[command(flatten)]
    limits: LimitArguments,
}

/// Runs a job to its end.
pub fn work(implementation: &Implementation, arguments: &WorkerArguments) -> ExitResult {
    // The end of a service or of a container reaches all of its processes; the supervisor handles it.
    let _ = ctrlc::set_handler(|| {});
    let runs = arguments.limits.enforce()?;
    worker::run(implementation, &arguments.job, runs)
        .map(|()| Exit::Nothing)
        .map_err(|error| CommandError::output(&error))
}
