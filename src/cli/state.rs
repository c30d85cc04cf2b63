//! `state`: what a corpus covers, in names; and one folder of inputs from several.

mod corpus;
mod merge;
mod show;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use qcowfuzz::internal::disk::files::Existing;
use qcowfuzz::internal::fuzzing::feedback::coverage::prune;

use merge::Merged;
use show::Show;

use super::exit::{Exit, Failure, Outcome};
use super::input;
use super::print::print;
use super::save;
use super::target;
use qcowfuzz::findings::PanicNotes;
use qcowfuzz::harness::targets::TargetKind;

use corpus::{Corpus, counted};

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
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT, global = true)]
    target: TargetKind,
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
        let bytes = input::read(path)?;
        save::write(&output.join(corpus.name(*at)), existing, &bytes)?;
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
