//! `state`: what a corpus covers, in names; and one folder of inputs from several.

mod merge;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Serialize;

use qcowfuzz::error::Error;
use qcowfuzz::feedback::attribution::{Attributed, Walk};
use qcowfuzz::feedback::coverage::{Covered, Features, prune};
use qcowfuzz::feedback::layout::{schema_hash, values};
use qcowfuzz::feedback::{Counter, Coverage, Recorder};
use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::observer::{Event, Rare, State, Vital};

use merge::Merged;

use super::files::{self, Existing};
use super::print::print;
use super::runner::{Runner, Target};
use super::{Exit, Failure, Outcome};
use qcowfuzz::panics::PanicNotes;

/// Tell what a corpus covers: edges by state, rare events, vitals, and what has never happened
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All files of a folder are inputs, in the order of their names; folders in it are left alone. \
docs/feedback.md lists what there is to be covered.

Exit codes: 0 nothing was found; 1 an input has a violation, which 'qcowfuzz replay' tells; 2 a \
folder or an input could not be read, or an output not be written.

Examples: qcowfuzz state show corpus/map_extents
          qcowfuzz state prune corpus/hostile -o smaller --target hostile
          qcowfuzz state merge corpus/map_extents elsewhere/map_extents -o smaller")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The fuzz target that the inputs are for
    #[arg(long, value_enum, default_value_t, global = true)]
    target: Target,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// What is covered, and what is not; the rarest edges, and the shortest input that has each
    Show {
        /// The corpus
        dir: PathBuf,
        /// How many of the rarest edges are told
        #[arg(long, value_name = "N", default_value_t = 20)]
        rarest: usize,
    },
    /// What one corpus covers and another does not, both ways
    Diff {
        /// One corpus
        one: PathBuf,
        /// The other
        other: PathBuf,
    },
    /// Copy the inputs that are enough for all that a corpus covers; the corpus itself stays
    Prune {
        /// The corpus
        dir: PathBuf,
        /// Where they go: a folder, which is made if it is not there
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
        /// Replace files that are there already
        #[arg(long)]
        force: bool,
    },
    /// Add to a folder what it lacks of others: all named seeds, and the finds that cover something more
    ///
    /// Inputs that are called after their content, in 40 hexadecimal digits, are finds of a fuzzer. All others are
    /// seeds that somebody named: they are copied, whatever they cover. Nothing is removed or replaced, neither in
    /// the folders that are read nor in the one that is written: a seed whose name is taken by other content is
    /// called after its own. A find with a violation is not copied, since libFuzzer does not start with one. Hidden
    /// files are left alone. Files appear whole or not at all, and after a kill the same command completes the work.
    /// Campaigns may run in all of these folders meanwhile.
    Merge {
        /// The folders that are read
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
        /// The folder that is added to, which is made if it is not there
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
    },
}

/// Does what is asked.
pub fn run(arguments: &Arguments) -> Outcome {
    let _silence = PanicNotes::take_over();
    let target = arguments.target;
    let (told, violations) = match &arguments.what {
        What::Show { dir, rarest } => {
            let corpus = Corpus::read(dir, target)?;
            (Told::Show(Box::new(Show::of(&corpus, *rarest)?)), corpus.violations)
        }
        What::Diff { one, other } => {
            let (one, other) = (Corpus::read(one, target)?, Corpus::read(other, target)?);
            let violations = one.violations + other.violations;
            (Told::Diff(Diff::of(&one, &other)), violations)
        }
        What::Prune { dir, output, force } => {
            let corpus = Corpus::read(dir, target)?;
            (Told::Prune(pruned(&corpus, output, Existing::forced(*force))?), corpus.violations)
        }
        What::Merge { dirs, output } => {
            let merged = Merged::of(dirs, output, target)?;
            let violations = merged.violations();
            (Told::Merge(merged), violations)
        }
    };
    print(&told, arguments.json, |told, out| told.print(out))?;
    Ok(Exit::after(violations))
}

/// The inputs of a folder, and what they cover.
struct Corpus {
    dir: String,
    target: Target,
    /// Path and length in bytes.
    inputs: Vec<(PathBuf, usize)>,
    features: Vec<Features>,
    coverage: Coverage,
    violations: usize,
}

impl Corpus {
    fn read(dir: &Path, target: Target) -> Result<Self, Failure> {
        let paths = qcowfuzz::corpus::files(dir)?;
        let recorder = Rc::new(Recorder::new());
        let mut runner = Runner::new(target, FileNames::default(), &recorder);
        let (inputs, features, coverage) = Default::default();
        let dir = dir.display().to_string();
        let mut corpus = Self { dir, target, inputs, features, coverage, violations: 0 };
        for path in paths {
            // A campaign that runs there takes files away.
            let Some(bytes) = read_if_there(&path)? else { continue };
            recorder.begin_run();
            let found = runner.run_guarded(&bytes, Checks::AtCheckpoints);
            corpus.coverage.add(bytes.len(), &recorder);
            corpus.features.push(Features::of(&recorder));
            corpus.inputs.push((path, bytes.len()));
            corpus.violations += usize::from(found.finding().is_some());
        }
        Ok(corpus)
    }

    /// The walk of `input` in which `edge` is made, where one is.
    fn walk(&self, input: usize, edge: Counter) -> Result<Option<Walk>, Failure> {
        let Some((path, _)) = self.inputs.get(input) else { return Ok(None) };
        let attributed = Rc::new(Attributed::default());
        let mut runner = Runner::new(self.target, FileNames::default(), &attributed);
        runner.run_guarded(&files::read(path)?, Checks::AtCheckpoints);
        Ok(attributed.first_walk(edge))
    }

    fn bytes(&self) -> usize {
        self.inputs.iter().map(|(_, length)| length).sum()
    }

    fn name(&self, input: usize) -> String {
        let path = self.inputs.get(input).map(|(path, _)| path.as_path());
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The bytes of an input, if it is still there.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match qcowfuzz::corpus::read(path, u64::MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What is told.
#[derive(Serialize)]
#[serde(untagged)]
enum Told {
    Show(Box<Show>),
    Diff(Diff),
    Prune(Pruned),
    Merge(Merged),
}

impl Told {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Show(show) => show.print(out),
            Self::Diff(diff) => diff.print(out),
            Self::Prune(pruned) => pruned.print(out),
            Self::Merge(merged) => merged.print(out),
        }
    }
}

/// How many inputs, in words.
fn counted(inputs: usize) -> String {
    format!("{inputs} input{}", if inputs == 1 { "" } else { "s" })
}

/// What one corpus covers.
#[derive(Serialize)]
struct Show {
    corpus: String,
    /// Of which counters, and which names: comparable where it is the same.
    schema: String,
    inputs: usize,
    bytes: usize,
    violations: usize,
    /// Distinct edges by state.
    edges: BTreeMap<&'static str, usize>,
    /// By name, how many inputs fire each.
    rare_events: BTreeMap<&'static str, usize>,
    /// By name, the magnitudes that were reached.
    vitals: BTreeMap<&'static str, Vec<String>>,
    never_happened: Never,
    rarest_edges: Vec<Rarest>,
}

/// What no input reaches.
#[derive(Serialize)]
struct Never {
    events: Vec<&'static str>,
    rare_events: Vec<&'static str>,
    /// Vitals that were 0 in every image.
    vitals: Vec<&'static str>,
}

/// An edge that few inputs have.
#[derive(Serialize)]
struct Rarest {
    edge: String,
    inputs: usize,
    shortest: String,
    bytes: usize,
    /// The walk of the shortest in which it is made, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    walk: Option<String>,
}

impl Show {
    fn of(corpus: &Corpus, rarest: usize) -> Result<Self, Failure> {
        let mut edges: BTreeMap<_, _> = State::ALL.iter().map(|state| (state.name(), 0)).collect();
        let mut rare_events = BTreeMap::new();
        let mut vitals: BTreeMap<_, Vec<String>> = BTreeMap::new();
        let mut by_inputs: Vec<(Counter, Covered)> = Vec::new();
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
                Counter::Delta { .. } => {}
            }
        }
        by_inputs.sort_by_key(|(_, covered)| covered.inputs);
        let told = |(counter, covered): &(Counter, Covered)| {
            let (input, bytes) = covered.shortest;
            let walk = corpus.walk(input, *counter)?.map(|walk| walk.to_string());
            let (edge, shortest) = (counter.to_string(), corpus.name(input));
            Ok(Rarest { edge, inputs: covered.inputs, shortest, bytes, walk })
        };
        let rarest_edges =
            by_inputs.iter().take(rarest).map(told).collect::<Result<_, Failure>>()?;
        Ok(Self {
            corpus: corpus.dir.clone(),
            schema: format!("{:08x}", schema_hash()),
            inputs: corpus.coverage.inputs(),
            bytes: corpus.bytes(),
            violations: corpus.violations,
            edges,
            rare_events,
            vitals,
            never_happened: Never::of(&corpus.coverage),
            rarest_edges,
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}: {}, {} bytes", self.corpus, counted(self.inputs), self.bytes)?;
        if self.violations > 0 {
            writeln!(out, "{} with a violation", self.violations)?;
        }
        writeln!(out, "\nedges: {}", self.edges.values().sum::<usize>())?;
        for state in State::ALL.iter().map(|state| state.name()) {
            writeln!(out, "  {state:<16} {:>5}", self.edges.get(state).unwrap_or(&0))?;
        }
        writeln!(out, "\nrare events: {} of {}", self.rare_events.len(), Rare::COUNT)?;
        for rare in Rare::ALL.iter().map(|rare| rare.name()) {
            if let Some(inputs) = self.rare_events.get(rare) {
                writeln!(out, "  {rare:<36} {:>10}", counted(*inputs))?;
            }
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
        for Rarest { edge, inputs, shortest, bytes, walk } in &self.rarest_edges {
            let walk = walk.as_ref().map(|walk| format!("; {walk}")).unwrap_or_default();
            let inputs = counted(*inputs);
            writeln!(out, "  {inputs:>10}  {edge}  ({shortest}, {bytes} bytes{walk})")?;
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
        let rare = Rare::ALL.iter().filter(|rare| !coverage.reaches(Counter::Rare(**rare)));
        let vitals = Vital::ALL.iter().filter(|vital| !moved(**vital));
        Self {
            events: events.map(|event| event.name()).collect(),
            rare_events: rare.map(|rare| rare.name()).collect(),
            vitals: vitals.map(|vital| vital.name()).collect(),
        }
    }
}

/// What two corpora cover.
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

/// What was copied.
#[derive(Serialize)]
struct Pruned {
    corpus: String,
    output: String,
    inputs: usize,
    bytes: usize,
    kept: Vec<String>,
    kept_bytes: usize,
}

fn pruned(corpus: &Corpus, output: &Path, existing: Existing) -> Result<Pruned, Failure> {
    let lengths = corpus.inputs.iter().map(|(_, length)| *length);
    let inputs: Vec<_> = lengths.zip(corpus.features.iter().cloned()).collect();
    let kept = prune(&inputs);
    std::fs::create_dir_all(output).map_err(|error| Failure::at(output, error))?;
    let mut kept_bytes = 0;
    for at in &kept {
        let (path, _) = &corpus.inputs[*at];
        let bytes = files::read(path)?;
        files::write(&output.join(corpus.name(*at)), existing, &bytes)?;
        kept_bytes += bytes.len();
    }
    Ok(Pruned {
        corpus: corpus.dir.clone(),
        output: output.display().to_string(),
        inputs: corpus.inputs.len(),
        bytes: corpus.bytes(),
        kept: kept.iter().map(|at| corpus.name(*at)).collect(),
        kept_bytes,
    })
}

impl Pruned {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { corpus, output, inputs, bytes, kept, kept_bytes } = self;
        writeln!(out, "{corpus}: {}, {bytes} bytes", counted(*inputs))?;
        let kept = counted(kept.len());
        writeln!(out, "{output}: {kept}, {kept_bytes} bytes, which cover the same")
    }
}
