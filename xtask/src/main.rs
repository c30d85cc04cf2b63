//! The project's checks and measurements, which need more than `cargo test`: builds with planted bugs, fuzzing under
//! libFuzzer, other programs. Each subcommand runs in CI or in a workflow.
//!
//! The exit code is 0 if the check passed or the measurement is complete, and 1 if not.

mod against;
mod bugs;
mod c_library;
mod checks;
mod coverage;
mod findings;
mod measured;
mod mutants;
mod oss_fuzz;
mod other_languages;
mod process;
mod python_package;
mod tree;
mod waits;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Checks and measures qcowfuzz.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// The subcommands, by what they are for.
#[derive(Subcommand)]
enum Verb {
    /// Make the header of the C library and compare it, or write it
    CHeader {
        /// Write it
        #[arg(long)]
        write: bool,
    },
    /// Check the C library as a user in C would, and follow docs/c.md
    CheckC,
    /// Make the wheel of the Python package, with the C library in it
    PythonWheel {
        /// The folder that gets the wheel
        folder: std::path::PathBuf,
    },
    /// Check the Python package with its examples
    CheckPython,
    /// Install the C library: the header, the libraries, and the file of pkg-config
    InstallC {
        /// The folder that gets the folders include and lib
        prefix: std::path::PathBuf,
    },
    /// Check licences, sources and duplicates of all locked dependencies
    CheckDependencies {
        /// Check them against the advisory database, too, which is cloned from GitHub
        #[arg(long)]
        advisories: bool,
    },
    /// Build the documentation without a warning, and compare the list of public items
    CheckDocs {
        /// Write the list of public items instead of comparing it
        #[arg(long)]
        write: bool,
    },
    /// Check that no dependency needs a newer Rust than the manifest states
    CheckMsrv {
        /// Install that version, and build with it
        #[arg(long)]
        build: bool,
    },
    /// Build a crate of `qcowfuzz new-engine` and follow docs/engines.md
    CheckNewEngine {
        /// Instead, build the targets of such a crate as OSS-Fuzz does, and check them as its runner does
        #[arg(long)]
        on_oss_fuzz: bool,
    },
    /// Check that `nightly-fuzz` finds the canary, and nothing without it
    CheckNightlyFuzz,
    /// Pack the crates, then build the packages, run the example and the command, and test what pages show
    CheckPackage {
        /// Instead, run the unit tests of the packages
        #[arg(long)]
        unit_tests: bool,
    },
    /// Check the workflows, and that they run every step of .ci/run
    CheckWorkflows,
    /// Plant a fault for each check, which must find it
    ChecksFail,
    /// Check that the embedded loop finds the canary
    Canary,
    /// Check that ClusterFuzz derives one crash state from one bug
    CrashStates,
    /// Check that the pages about a crash show the real output
    FromCrash,
    /// Fuzz targets from their committed corpora
    FuzzSmoke(checks::fuzzing::Smoke),
    /// Fuzz targets on all cores, continue after findings, and keep the corpora
    NightlyFuzz(checks::fuzzing::Night),
    /// Check that campaigns that share a corpus lose nothing if one is killed
    SharedCorpus,
    /// Check that a campaign survives a stack overflow, a hang, an allocation without measure and a panic
    Survivor,
    /// Build the fuzz targets as OSS-Fuzz does, and check them as its runner does
    OssFuzz(oss_fuzz::Arguments),
    Findings(findings::Arguments),
    OtherLanguages(other_languages::Arguments),

    /// Measure how soon the loops and the differential campaign find planted bugs
    Bugs(bugs::Options),
    /// Measure which mutants of the encoding functions the targets find
    Mutants(mutants::Options),
    /// Measure which lines the committed seeds reach
    Coverage,
    /// Measure the benchmarks beside another commit
    Against(against::Options),
    Waits(waits::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::CHeader { write } => c_library::header(write),
        Verb::CheckC => c_library::check(),
        Verb::PythonWheel { folder } => python_package::wheel(&folder).map(drop),
        Verb::CheckPython => python_package::check(),
        Verb::InstallC { prefix } => c_library::install(&prefix),
        Verb::CheckDependencies { advisories } => checks::dependencies(advisories),
        Verb::CheckDocs { write } => checks::docs(write),
        Verb::CheckMsrv { build } => checks::msrv(build),
        Verb::CheckNewEngine { on_oss_fuzz } => checks::new_engine::check(on_oss_fuzz),
        Verb::CheckNightlyFuzz => checks::planted_runs::nightly_fuzz(),
        Verb::CheckPackage { unit_tests } => checks::package::check(unit_tests),
        Verb::CheckWorkflows => checks::workflows(),
        Verb::ChecksFail => checks::checks_fail::check(),
        Verb::Canary => checks::planted_runs::canary(),
        Verb::CrashStates => checks::crash_states::check(),
        Verb::FromCrash => checks::planted_runs::from_crash(),
        Verb::FuzzSmoke(options) => checks::fuzzing::smoke(&options),
        Verb::NightlyFuzz(options) => checks::fuzzing::night(&options),
        Verb::SharedCorpus => checks::shared_corpus::check(),
        Verb::Survivor => checks::planted_runs::survivor(),
        Verb::OssFuzz(arguments) => oss_fuzz::check(&arguments),
        Verb::Findings(arguments) => findings::run(&arguments),
        Verb::OtherLanguages(arguments) => other_languages::fuzz(&arguments),

        Verb::Bugs(options) => bugs::measure(&options),
        Verb::Mutants(options) => mutants::measure(&options),
        Verb::Coverage => coverage::measure(),
        Verb::Against(options) => against::measure(&options),
        Verb::Waits(options) => waits::measure(&options),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn pages_and_workflows_name_subcommands() {
        let list = ["README.md", "CONTRIBUTING.md", ".ci/run"]
            .map(|name| process::root().join(name))
            .into_iter();
        let folders = ["docs", ".github/workflows"]
            .map(|name| process::files_below(&process::root().join(name)).unwrap());
        let arguments = Arguments::command();
        let mut named = 0;
        for path in list.chain(folders.into_iter().flatten()) {
            let text = std::fs::read_to_string(&path).unwrap();
            // A job of measurements.yml names its subcommand in a line of its own.
            let commands = text.split("cargo xtask ").skip(1);
            let commands = commands.filter(|command| !command.starts_with("$COMMAND"));
            for verb in commands.chain(text.split("\n            command: ").skip(1)) {
                let verb =
                    verb.split(|it: char| it != '-' && !it.is_ascii_lowercase()).next().unwrap();
                let is_verb = arguments.find_subcommand(verb).is_some() || verb == "--help";
                assert!(is_verb, "{}: cargo xtask {verb}", path.display());
                named += 1;
            }
        }
        assert!(named > 20, "{named}");
    }
}
