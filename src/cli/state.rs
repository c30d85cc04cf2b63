//! `state`: prints the coverage of a corpus by name, compares and prunes corpora, and merges folders of inputs.

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

use super::exit::{CommandError, Exit, ExitResult};
use super::input;
use super::print::print;
use super::save;
use super::target;
use qcowfuzz::findings::PanicNotes;
use qcowfuzz::harness::targets::TargetKind;

use corpus::{Corpus, counted};

/// Print the coverage of a corpus; compare, prune and merge corpora
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every file of a folder is an input, in the order of the names; subfolders are ignored. \
docs/feedback.md lists the edges, events and vitals that a corpus can cover.

Exit codes: 0 nothing was found; 1 an input shows a violation, which 'qcowfuzz replay' prints; 2 a \
folder or an input could not be read, or an output could not be written.

Examples: qcowfuzz state show corpus/map_extents
          qcowfuzz state prune corpus/hostile -o smaller --target hostile
          qcowfuzz state merge corpus/map_extents elsewhere/map_extents -o smaller")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The fuzz target of the inputs
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT, global = true)]
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
    /// Add the inputs of other folders to a folder: all named seeds, and the finds that add coverage
    ///
    /// A find is an input that a fuzzer named by its content, with 40 hexadecimal digits. All other inputs are seeds,
    /// which are always copied. The command removes and replaces no file in any of the folders. If the name of a seed
    /// is taken by a file with other content, the copy is named by its content. Finds that show a violation are not
    /// copied, because libFuzzer does not start with them. Hidden files are ignored. Each file is written as a whole or
    /// not at all; after a kill, the same command completes the work. Campaigns may run in all of these folders at
    /// the same time.
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
pub fn run(arguments: &Arguments) -> ExitResult {
    let _silence = PanicNotes::take_over();
    let target = arguments.target;
    let (summary, violations) = match &arguments.what {
        What::Show { dir, rarest } => {
            let corpus = Corpus::read(dir, target)?;
            (StateSummary::Show(Box::new(Show::of(&corpus, *rarest)?)), corpus.violations)
        }
        What::Diff { one, other } => {
            let (one, other) = (Corpus::read(one, target)?, Corpus::read(other, target)?);
            let violations = one.violations + other.violations;
            (StateSummary::Diff(Diff::of(&one, &other)), violations)
        }
        What::Prune { dir, output, force } => {
            let corpus = Corpus::read(dir, target)?;
            (
                StateSummary::Prune(pruned(&corpus, output, Existing::forced(*force))?),
                corpus.violations,
            )
        }
        What::Merge { dirs, output } => {
            let merged = Merged::of(dirs, output, target)?;
            let violations = merged.violations();
            (StateSummary::Merge(merged), violations)
        }
    };
    print(&summary, arguments.json, |summary, out| summary.print(out))?;
    Ok(Exit::after(violations))
}

/// The result of a subcommand.
#[derive(Serialize)]
#[serde(untagged)]
enum StateSummary {
    Show(Box<Show>),
    Diff(Diff),
    Prune(Pruned),
    Merge(Merged),
}

impl StateSummary {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Show(show) => show.print(out),
            Self::Diff(diff) => diff.print(out),
            Self::Prune(pruned) => pruned.print(out),
            Self::Merge(merged) => merged.print(out),
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

/// The result of `prune`: the corpus, and the inputs that were copied.
#[derive(Serialize)]
struct Pruned {
    corpus: String,
    output: String,
    inputs: usize,
    bytes: usize,
    kept: Vec<String>,
    kept_bytes: usize,
}

fn pruned(corpus: &Corpus, output: &Path, existing: Existing) -> Result<Pruned, CommandError> {
    let lengths = corpus.inputs.iter().map(|(_, length)| *length);
    let inputs: Vec<_> = lengths.zip(corpus.features.iter().cloned()).collect();
    let kept = prune(&inputs);
    std::fs::create_dir_all(output).map_err(|error| CommandError::at(output, error))?;
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
        writeln!(out, "{output}: {kept}, {kept_bytes} bytes, with the same coverage")
    }
}
