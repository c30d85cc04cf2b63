//! `corpus`: prints the coverage of a corpus by name and the state of a campaign, compares and prunes corpora, and
//! merges folders of inputs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::base::error::Error;
use crate::base::files::Existing;
use crate::cli::options;
use crate::cli::output::{Exit, ExitResult, counted, print};
use crate::disk::observer::{Event, State, Vital};
use crate::findings::PanicNotes;
use crate::formats::rare_events;
use crate::fuzzing::campaign::Places;
use crate::fuzzing::corpus::inputs::{Corpus, Pruned};
use crate::fuzzing::corpus::merge::Merged;
use crate::fuzzing::embedded::state::{JobReport, ParentReport};
use crate::fuzzing::feedback::coverage::{Coverage, Covered};
use crate::fuzzing::feedback::layout::{Counter, schema_hash, values};
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every file of a corpus folder is an input, in the order of the names; subfolders are ignored. \
docs/architecture.md lists the edges, events and vitals that a corpus can cover.

Exit codes: 0 nothing was found; 1 an input shows a violation, which 'qcowfuzz replay' prints; 2 a \
folder or an input could not be read, or an output could not be written.

Examples: qcowfuzz corpus show corpus/map_extents
          qcowfuzz corpus campaign --target hostile
          qcowfuzz corpus prune corpus/hostile -o smaller --target hostile
          qcowfuzz corpus merge corpus/map_extents elsewhere/map_extents -o smaller")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The fuzz target of the inputs
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET, global = true)]
    target: TargetKind,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the edges, rare events and vitals that a corpus covers, those that it misses, and its rarest edges
    Show {
        /// The corpus folder
        dir: PathBuf,
        /// Print at most N of the rarest edges
        #[arg(long, value_name = "N", default_value_t = 20)]
        rarest: usize,
    },
    /// Print the parents of a campaign's inputs
    ///
    /// An input is chosen as a parent by its weight. Its children are its mutations: 'kept' counts
    /// those that were kept, and 'barren' those since the last one that was kept. The campaign may be running.
    Campaign {
        /// The folder of the campaign, which 'qcowfuzz fuzz --dir' names
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print at most N of the inputs of each job, those first that are chosen most often
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
    },
    /// Print what each of two corpora covers and the other does not
    Diff {
        /// The first corpus folder
        one: PathBuf,
        /// The second corpus folder
        other: PathBuf,
    },
    /// Copy a subset of the inputs that has the same coverage; the corpus itself does not change
    Prune {
        /// The corpus folder
        dir: PathBuf,
        /// Copy the inputs to this folder; create it if needed
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
        /// Replace existing files
        #[arg(long)]
        force: bool,
    },
    /// Add the inputs of other folders to a folder: all named seeds, and the other inputs that add coverage
    ///
    /// An input with a name of 40 hexadecimal digits, the hash of its content, is a find of a fuzzer. All other inputs
    /// are seeds, which are always copied. The command removes and replaces no file in any of the folders. If the name
    /// of a seed is taken by a file with other content, the copy is named by its content. Finds that show a violation
    /// are not copied, because libFuzzer does not start with them. Hidden files are ignored. Each file is written as a
    /// whole or not at all; after a kill, the same command completes the work. Campaigns may run in all of these
    /// folders at the same time.
    Merge {
        /// Read the inputs of these folders
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
        /// Add the inputs to this folder; create it if needed
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(implementation: &Implementation, arguments: &Arguments) -> ExitResult {
    let _silence = PanicNotes::take_over();
    let target = arguments.target;
    // The report about a campaign runs no input.
    if !matches!(arguments.what, What::Campaign { .. }) {
        options::reject_reader(target, implementation)?;
    }
    let read = |dir: &Path| Corpus::read(implementation, dir, target);
    let json = arguments.json;
    let violations = match &arguments.what {
        What::Show { dir, rarest } => {
            let corpus = read(dir)?;
            print(&Show::of(&corpus, *rarest), json, |show, out| show.print(out))?;
            corpus.violations
        }
        What::Campaign { dir, most } => {
            print(&CampaignReport::of(dir, target, *most)?, json, |report, out| report.print(out))?;
            0
        }
        What::Diff { one, other } => {
            let (one, other) = (read(one)?, read(other)?);
            print(&Diff::of(&one, &other), json, |diff, out| diff.print(out))?;
            one.violations + other.violations
        }
        What::Prune { dir, output, force } => {
            let corpus = read(dir)?;
            let pruned = corpus.pruned_into(output, Existing::forced(*force))?;
            print(&pruned, json, print_pruned)?;
            corpus.violations
        }
        What::Merge { dirs, output } => {
            let merged = Merged::of(implementation, dirs, output, target)?;
            print(&merged, json, print_merged)?;
            merged.violations()
        }
    };
    Ok(Exit::after(violations))
}

/// The coverage of a corpus.
#[derive(Serialize)]
struct Show {
    corpus: String,
    /// A hash of the counters and their names. Two results are comparable if their hashes are equal.
    schema: String,
    inputs: usize,
    bytes: usize,
    violations: usize,
    /// The number of distinct edges of each state.
    edges: BTreeMap<&'static str, usize>,
    /// The number of inputs that fire each rare event, by name.
    rare_events: BTreeMap<&'static str, usize>,
    /// The number of distinct reasons for which the walker refuses damaged images.
    reasons: usize,
    /// The magnitudes that each vital reached, by name.
    vitals: BTreeMap<&'static str, Vec<String>>,
    never_happened: Never,
    rarest_edges: Vec<Rarest>,
}

/// The names of the events and vitals that no input reaches.
#[derive(Serialize)]
struct Never {
    events: Vec<&'static str>,
    rare_events: Vec<&'static str>,
    /// The vitals that were 0 in every image.
    vitals: Vec<&'static str>,
}

/// An edge that few inputs take.
#[derive(Serialize)]
struct Rarest {
    edge: String,
    inputs: usize,
    shortest: String,
    bytes: usize,
}

impl Show {
    /// Summarizes what `corpus` covers, with at most `rarest` of its rarest edges.
    fn of(corpus: &Corpus, rarest: usize) -> Self {
        let mut edges: BTreeMap<_, _> = State::ALL.iter().map(|state| (state.name(), 0)).collect();
        let mut rare_events = BTreeMap::new();
        let mut vitals: BTreeMap<_, Vec<String>> = BTreeMap::new();
        let mut by_inputs: Vec<(Counter, Covered)> = Vec::new();
        let mut reasons = 0;
        for (counter, covered) in corpus.coverage.counters() {
            match counter {
                Counter::Edge { state, .. } => {
                    *edges.entry(state.name()).or_default() += 1;
                    by_inputs.push((counter, covered));
                }
                Counter::Rare(rare) => drop(rare_events.insert(rare.name(), covered.inputs)),
                Counter::Vital { vital, magnitude } => {
                    vitals.entry(vital.name()).or_default().push(values(magnitude));
                }
                Counter::Reason(_) => reasons += 1,
                Counter::Delta { .. } | Counter::Second(_) => {}
            }
        }
        by_inputs.sort_by_key(|(_, covered)| covered.inputs);
        let rarest_edge = |(counter, covered): &(Counter, Covered)| {
            let (input, bytes) = covered.shortest;
            let (edge, shortest) = (counter.to_string(), corpus.name(input));
            Rarest { edge, inputs: covered.inputs, shortest, bytes }
        };
        Self {
            corpus: corpus.dir.clone(),
            schema: format!("{:08x}", schema_hash()),
            inputs: corpus.coverage.inputs(),
            bytes: corpus.bytes(),
            violations: corpus.violations,
            edges,
            rare_events,
            reasons,
            vitals,
            never_happened: Never::of(&corpus.coverage),
            rarest_edges: by_inputs.iter().take(rarest).map(rarest_edge).collect(),
        }
    }

    /// Prints the summary as text.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}: {}, {} bytes", self.corpus, counted(self.inputs, "input"), self.bytes)?;
        if self.violations > 0 {
            writeln!(out, "{} with a violation", self.violations)?;
        }
        writeln!(out, "\nedges: {}", self.edges.values().sum::<usize>())?;
        for state in State::ALL.iter().map(|state| state.name()) {
            writeln!(out, "  {state:<16} {:>5}", self.edges.get(state).unwrap_or(&0))?;
        }
        writeln!(out, "\nrare events: {} of {}", self.rare_events.len(), rare_events::COUNT)?;
        for rare in rare_events::ALL.iter().map(|rare| rare.name()) {
            if let Some(inputs) = self.rare_events.get(rare) {
                writeln!(out, "  {rare:<36} {:>10}", counted(*inputs, "input"))?;
            }
        }
        if self.reasons > 0 {
            writeln!(out, "\nreasons of refusals: {}", self.reasons)?;
        }
        writeln!(out, "\nvitals, in magnitudes:")?;
        for (vital, values) in &self.vitals {
            writeln!(out, "  {vital:<24} {}", values.join(", "))?;
        }
        let Never { events, rare_events, vitals } = &self.never_happened;
        writeln!(out, "\nnever happened:")?;
        for (what, names) in [("events", events), ("rare events", rare_events), ("vitals", vitals)]
        {
            let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            writeln!(out, "  {what:<12} {names}")?;
        }
        writeln!(out, "\nrarest edges:")?;
        for Rarest { edge, inputs, shortest, bytes } in &self.rarest_edges {
            let inputs = counted(*inputs, "input");
            writeln!(out, "  {inputs:>10}  {edge}  ({shortest}, {bytes} bytes)")?;
        }
        Ok(())
    }
}

impl Never {
    fn of(coverage: &Coverage) -> Self {
        let happened = |wanted: Event| {
            coverage.counters().any(|(counter, _)| match counter {
                Counter::Edge { previous, event, .. } => wanted == previous || wanted == event,
                _ => false,
            })
        };
        let moved = |wanted: Vital| {
            coverage.counters().any(|(counter, _)| match counter {
                Counter::Vital { vital, magnitude } => vital == wanted && magnitude > 0,
                _ => false,
            })
        };
        let events = Event::ALL.iter().filter(|event| !happened(**event));
        let rare = rare_events::ALL.iter().filter(|rare| !coverage.reaches(Counter::Rare(**rare)));
        let vitals = Vital::ALL.iter().filter(|vital| !moved(**vital));
        Self {
            events: events.map(|event| event.name()).collect(),
            rare_events: rare.map(|rare| rare.name()).collect(),
            vitals: vitals.map(|vital| vital.name()).collect(),
        }
    }
}

/// The comparison of two corpora: the number of counters that both reach, and the counters that only one reaches.
#[derive(Serialize)]
struct Diff {
    one: String,
    other: String,
    both: usize,
    only_one: Vec<String>,
    only_other: Vec<String>,
}

impl Diff {
    fn of(one: &Corpus, other: &Corpus) -> Self {
        let only = |one: &Corpus, other: &Corpus| -> Vec<String> {
            let counters = one.coverage.counters().map(|(counter, _)| counter);
            let missing = counters.filter(|counter| !other.coverage.reaches(*counter));
            missing.map(|counter| counter.to_string()).collect()
        };
        let (only_one, only_other) = (only(one, other), only(other, one));
        let both = one.coverage.counters().count() - only_one.len();
        Self { one: one.dir.clone(), other: other.dir.clone(), both, only_one, only_other }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "both: {}", self.both)?;
        for (name, only) in [(&self.one, &self.only_one), (&self.other, &self.only_other)] {
            writeln!(out, "\nonly {name}: {}", only.len())?;
            only.iter().try_for_each(|counter| writeln!(out, "  {counter}"))?;
        }
        Ok(())
    }
}

fn print_pruned(pruned: &Pruned, out: &mut impl Write) -> io::Result<()> {
    let Pruned { corpus, output, inputs, bytes, kept, kept_bytes } = pruned;
    writeln!(out, "{corpus}: {}, {bytes} bytes", counted(*inputs, "input"))?;
    let kept = counted(kept.len(), "input");
    writeln!(out, "{output}: {kept}, {kept_bytes} bytes, with the same coverage")
}

fn print_merged(merged: &Merged, out: &mut impl Write) -> io::Result<()> {
    let Merged { into, before, seeds, finds, bytes, left_out, .. } = merged;
    writeln!(out, "{into}: {} before", counted(*before, "input"))?;
    let (seeds, finds) = (seeds.len(), finds.len());
    writeln!(out, "added: {seeds} seeds by name, {finds} finds, {bytes} bytes")?;
    writeln!(
        out,
        "skipped: {}, which were there before or add no coverage",
        counted(*left_out, "input")
    )?;
    for (what, paths) in [
        ("copied under the hash of its content, because its name is taken", &merged.renamed),
        ("torn: the content does not match the hash in the name", &merged.torn),
        ("shows a violation", &merged.with_violation),
    ] {
        paths.iter().try_for_each(|path| writeln!(out, "{}: {what}", path.display()))?;
    }
    Ok(())
}

/// The saved state of a campaign, job by job.
#[derive(Serialize)]
struct CampaignReport {
    jobs: Vec<JobReport>,
}

impl CampaignReport {
    /// Reads the state of a campaign under `dir`, and keeps the `most` inputs of each job that are chosen most often.
    fn of(dir: &Path, target: TargetKind, most: usize) -> Result<Self, Error> {
        let states = Places::saved_states(dir, target)?;
        let mut jobs: Vec<_> = states.iter().map(JobReport::of).collect();
        jobs.iter_mut().for_each(|job| job.parents.truncate(most));
        Ok(Self { jobs })
    }

    /// Prints the report as text.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.jobs.iter().enumerate().try_for_each(|(number, job)| print_job(number, job, out))
    }
}

fn print_job(number: usize, job: &JobReport, out: &mut impl Write) -> io::Result<()> {
    let JobReport { runs, inputs, without_parent, greatest_depth, parents } = job;
    let inputs = counted(*inputs, "input");
    writeln!(out, "job {number}: {runs} runs")?;
    writeln!(
        out,
        "{inputs}, {without_parent} without a parent; at most {greatest_depth} ancestors"
    )?;
    writeln!(
        out,
        "\n{:>8} {:>9} {:>6} {:>7} {:>10} {:>8} {:>10}  {:40}  parent",
        "chosen", "children", "kept", "barren", "ancestors", "work", "complexity", "input"
    )?;
    for one in parents {
        let ParentReport { input, parent, depth, chosen_percent, children, kept, .. } = one;
        let ParentReport { barren, work, complexity, .. } = one;
        let parent = parent.as_deref().unwrap_or("none");
        writeln!(
            out,
            "{chosen_percent:>7.2}% {children:>9} {kept:>6} {barren:>7} {depth:>10} {work:>8} {complexity:>10}  {input:40}  {parent}"
        )?;
    }
    writeln!(out)
}
