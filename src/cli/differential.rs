//! `differential`: the campaign against QEMU.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::base::features::{Feature, FeatureSet};
use crate::differential::campaign::{DifferentialCampaign, Plan};
use crate::differential::divergence::{cause_of, is_bug, known_of_qemu};
use crate::differential::recording;
use crate::differential::reports::{ISSUE_FILE, Reports};
use crate::differential::sides::{Sides, Tested};
use crate::differential::summary::Summary;
use crate::differential::workdir::WorkFolder;
use crate::disk::image_format::ImageFormat;
use crate::harness::KnownFindings;
use crate::recipes::perform::QemuTools;
use crate::recipes::recipe::DiskOperation;

use super::fuzz::stop_on_ctrl_c;
use super::output::{CommandError, Exit, ExitResult, print, say};

/// The default number of iterations in parallel, for each core: QEMU often waits for the disk.
const JOBS_PER_CORE: usize = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
An iteration creates a disk, changes it by one to three operations, and asks QEMU and the program under test \
the same questions after each: map, check, info, measure, and the data. QEMU performs all operations. The seed and the \
number of an iteration determine all its commands and questions, so '--replay SEED:ITERATION' repeats it alone.

Each divergence is minimized, and its report is a folder under --report: the commands, both complete outputs \
and the images. summary.json there describes the whole campaign. Divergences with the same \
fingerprint are counted and written once. Known divergences are only counted: those of QEMU (docs/differential.md), and \
those in a file of --known.

Ctrl-C ends a campaign after the iterations that are running; a second one ends it at once.

A campaign works in a subfolder of --workdir, and removes it at its end. The next campaign removes the \
subfolders of campaigns that were killed.

Exit codes: 0 no divergence; 1 a divergence was found; 2 the campaign could not run, or it was interrupted \
before it found a divergence.

Example: qcowfuzz differential --seed 1 --iterations 200 --workdir /var/tmp/campaign")]
pub struct Arguments {
    /// The seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The number of iterations
    #[arg(long, value_name = "N", default_value_t = 200)]
    iterations: u64,
    /// The number of the first iteration
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// The folder in which the campaign works; it may need some GiB
    #[arg(long, value_name = "DIR")]
    workdir: PathBuf,
    /// The folder of the reports [default: reports under --workdir]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Run only iterations whose top images have these formats
    #[arg(long, value_name = "FMT,...", value_delimiter = ',', value_parser = format_named)]
    formats: Vec<ImageFormat>,
    /// Run only iterations that consist of these operations
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum)]
    operations: Vec<DiskOperation>,
    /// Skip iterations that need these features, such as "compressed clusters"; an unknown name prints the list
    #[arg(long, value_name = "FEATURE,...", value_delimiter = ',')]
    lacks: Vec<Feature>,
    /// Carry out one iteration again, and print its commands
    #[arg(long, value_name = "SEED:ITERATION", value_parser = iteration_named,
          conflicts_with_all = ["seed", "iterations", "first", "formats", "operations", "lacks"])]
    replay: Option<(u64, u64)>,
    /// The number of iterations that run in parallel [default: two for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// The time limit of each process
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    /// Stop at the first divergence
    #[arg(long)]
    fail_fast: bool,
    /// The qemu-img to use; qemu-io must be in the same folder [default: from PATH]
    #[arg(long, value_name = "PATH")]
    qemu_img: Option<PathBuf>,
    /// Compare this program, which has the command line of 'qemu-img map'; a shell runs it in the folder of the images
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    map_command: Option<String>,
    /// Compare this program, which has the verbs map, check, info and convert of qemu-img; a shell runs it
    #[arg(long, value_name = "CMD")]
    command: Option<String>,
    /// The program of --command also performs the commands of qemu-img (create, resize, rebase, commit, convert, ...)
    /// on a copy of its own, and answers 'measure'. QEMU must find the same disk in both copies
    #[arg(long, requires = "command")]
    executes: bool,
    /// Write QEMU's answers and the images to this file, and compare nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["report", "file", "json", "replay", "fail_fast", "jobs",
                                                               "command", "map_command", "executes"])]
    record: Option<PathBuf>,
    /// Compare with the answers of this file; QEMU is not needed
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["record", "replay", "seed", "iterations", "first", "formats", "operations", "lacks",
                                "fail_fast", "jobs", "qemu_img", "executes"])]
    against_recording: Option<PathBuf>,
    /// Print the summary as one JSON object
    #[arg(long, conflicts_with = "file")]
    json: bool,
    /// Print the text of an issue for each divergence, also for the known ones that are faults
    #[arg(long)]
    file: bool,
}

fn format_named(name: &str) -> Result<ImageFormat, String> {
    ImageFormat::named(name.as_bytes()).ok_or_else(|| {
        let names = ImageFormat::ALL.map(ImageFormat::name).join(", ");
        format!("expected one of {names}")
    })
}

fn iteration_named(text: &str) -> Result<(u64, u64), String> {
    let expected = || "expected SEED:ITERATION, two numbers".to_string();
    let (seed, iteration) = text.split_once(':').ok_or_else(expected)?;
    let number = |text: &str| text.parse().map_err(|_| expected());
    Ok((number(seed)?, number(iteration)?))
}

/// Runs a campaign, or writes a recording, or compares with one. Divergences among `known` are counted only.
pub fn run(arguments: &Arguments, known: KnownFindings) -> ExitResult {
    let tested = tested(arguments)?;
    let known = known_of_qemu()?.and(&known);
    let timeout = Duration::from_secs(arguments.timeout);
    if let Some(path) = &arguments.against_recording {
        let qemu = QemuTools::default();
        return against(path, Sides { qemu, tested, timeout }, known, arguments);
    }
    let qemu = QemuTools::find(&arguments.qemu_img.clone().unwrap_or("qemu-img".into()))?;
    let plan = plan(arguments, Sides { qemu, tested, timeout }, known);
    let folder = WorkFolder::create(&arguments.workdir)?;
    let stop: Arc<AtomicBool> = stop_on_ctrl_c()?;
    let bar = progress(plan.iterations);
    if let Some(path) = &arguments.record {
        let recorded =
            recording::write(path, &plan, &folder, &stop, &|done| bar.set_position(done))?;
        bar.finish_and_clear();
        return recorded_lines(path, recorded, &plan);
    }
    if let Some((seed, iteration)) = arguments.replay {
        recipe_lines(seed, iteration).map_err(|error| CommandError::output(&error))?;
    }
    let reports = reports(arguments)?;
    let campaign = DifferentialCampaign::new(&plan, &folder, &reports, stop);
    let summary = campaign.run(&|summary| {
        bar.set_position(summary.distribution.iterations);
        bar.set_message(format!("{} divergences", summary.found.len()));
    });
    bar.finish_and_clear();
    finish(&summary?, arguments, &reports, &plan.known)
}

/// Says what a recording has. One that was interrupted is whole, and shorter than asked.
fn recorded_lines(path: &Path, recorded: u64, plan: &Plan) -> ExitResult {
    let (path, version) = (path.display(), &plan.sides.qemu.version);
    if recorded < plan.iterations {
        let message = format!(
            "interrupted: {path} has {recorded} iterations of QEMU {version}, expected {}",
            plan.iterations
        );
        return Err(CommandError::Message(message));
    }
    say(format_args!("{path}: {recorded} iterations of QEMU {version}"))?;
    Ok(Exit::Nothing)
}

/// Compares with a recording.
fn against(
    path: &Path,
    mut sides: Sides,
    known: KnownFindings,
    arguments: &Arguments,
) -> ExitResult {
    let folder = WorkFolder::create(&arguments.workdir)?;
    let reports = reports(arguments)?;
    let summary = recording::check(path, &mut sides, &known, &folder, &reports)?;
    finish(&summary, arguments, &reports, &known)
}

fn reports(arguments: &Arguments) -> Result<Reports, CommandError> {
    let dir = arguments.report.clone().unwrap_or(arguments.workdir.join("reports"));
    Ok(Reports::create(&dir)?)
}

/// Prints the summary, or the issues.
fn finish(
    summary: &Summary,
    arguments: &Arguments,
    reports: &Reports,
    known: &KnownFindings,
) -> ExitResult {
    match arguments.file {
        true => print_issues(summary, reports, known)?,
        false => print(summary, arguments.json, |summary, out| lines(summary, reports, out))?,
    }
    if !summary.is_complete && summary.found.is_empty() {
        let all = summary.distribution.iterations;
        let message = format!("interrupted after {all} iterations, before a divergence was found");
        return Err(CommandError::Message(message));
    }
    Ok(Exit::after(summary.found.len()))
}

fn tested(arguments: &Arguments) -> Result<Tested, CommandError> {
    let maps_only = arguments.map_command.is_some();
    let named = arguments.map_command.as_ref().or(arguments.command.as_ref());
    let ours = || {
        let path = std::env::current_exe();
        path.map_err(|error| CommandError::Message(format!("this program: {error}")))
    };
    Ok(match named {
        Some(text) => {
            Tested::Command { text: text.clone(), maps_only, executes: arguments.executes }
        }
        None => Tested::Ours(ours()?),
    })
}

fn plan(arguments: &Arguments, sides: Sides, known: KnownFindings) -> Plan {
    let jobs = match arguments.jobs {
        Some(jobs) => usize::from(jobs),
        None => JOBS_PER_CORE * available_parallelism().map_or(1, NonZero::get),
    };
    let (rng_seed, first, iterations) = match arguments.replay {
        Some((seed, iteration)) => (seed, iteration, 1),
        None => (arguments.seed, arguments.first, arguments.iterations),
    };
    Plan {
        rng_seed,
        first,
        iterations,
        jobs: jobs.min(usize::try_from(iterations).unwrap_or(jobs)).max(1),
        formats: those_or_all(&arguments.formats, &ImageFormat::ALL),
        operations: those_or_all(&arguments.operations, DiskOperation::ALL),
        lacks: FeatureSet::of(&arguments.lacks),
        fail_fast: arguments.fail_fast,
        sides,
        known,
    }
}

fn those_or_all<T: Clone>(those: &[T], all: &[T]) -> Vec<T> {
    if those.is_empty() { all.to_vec() } else { those.to_vec() }
}

/// Prints the commands of an iteration.
fn recipe_lines(rng_seed: u64, iteration: u64) -> io::Result<()> {
    let mut out = io::stderr().lock();
    for step in crate::recipes::draw::recipe(rng_seed, iteration).steps {
        let questions: Vec<_> = step.questions.iter().map(|question| question.name()).collect();
        writeln!(out, "# {}, then: {}", step.operation.name(), questions.join(", "))?;
        step.commands.iter().try_for_each(|command| writeln!(out, "{command}"))?;
    }
    Ok(())
}

/// Prints the issues of all divergences.
fn print_issues(
    summary: &Summary,
    reports: &Reports,
    known: &KnownFindings,
) -> Result<(), CommandError> {
    let mut texts = Vec::with_capacity(summary.found.len());
    for found in summary.found.values() {
        let path = reports.dir().join(&found.folder).join(ISSUE_FILE);
        let text = std::fs::read_to_string(&path);
        texts.push(
            text.map_err(|error| CommandError::Message(format!("{}: {error}", path.display())))?,
        );
    }
    // One for each cause.
    let mut causes = BTreeSet::new();
    for finding in known.iter().filter(|finding| is_bug(finding)) {
        if let Some(met) = summary.known.get(&finding.fingerprint)
            && causes.insert(&cause_of(known, finding).fingerprint)
        {
            texts.push(met.issue.clone());
        }
    }
    print(&(), false, |(), out| out.write_all(texts.join("\n").as_bytes()))
}

/// Returns a progress bar with the rate and the time left. Only a terminal shows it.
fn progress(iterations: u64) -> ProgressBar {
    let template = "{pos} of {len} iterations, {per_sec}, {eta} left · {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    ProgressBar::new(iterations).with_style(style)
}

fn lines(summary: &Summary, reports: &Reports, out: &mut impl Write) -> io::Result<()> {
    let Summary { qemu_version, tested, seconds, .. } = summary;
    let all = summary.distribution.iterations;
    let rate = all as f64 / seconds.max(1e-3);
    writeln!(
        out,
        "{tested} and QEMU {qemu_version}: {all} iterations in {seconds:.1} s, {rate:.1} a second"
    )?;
    for (heading, group) in summary.distribution.groups() {
        writeln!(out, "{heading}:")?;
        for (name, count) in group {
            let share = *count as f64 / all.max(1) as f64 * 100.0;
            writeln!(out, "  {share:5.1}%  {name}")?;
        }
    }
    for (fingerprint, known) in &summary.known {
        writeln!(out, "known: {fingerprint}, in {} iterations", known.times)?;
    }
    for (fingerprint, found) in &summary.found {
        writeln!(
            out,
            "\n{fingerprint}\n  {} times; first by iteration {}",
            found.times, found.iteration
        )?;
        found.detail.lines().try_for_each(|line| writeln!(out, "  {line}"))?;
        found.commands.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
    }
    if !summary.is_complete {
        writeln!(out, "interrupted before the last iteration")?;
    }
    match summary.found.len() {
        0 if !summary.is_complete => writeln!(out, "divergences: none so far"),
        0 => writeln!(out, "divergences: none"),
        count => writeln!(out, "\ndivergences: {count}; reports: {}", reports.dir().display()),
    }
}
