//! The project's checks and measurements, which need more than `cargo test`: builds with planted bugs, fuzzing under
//! libFuzzer, other programs. Each subcommand runs in CI or in a workflow.
//!
//! Exit codes: 0, the check passed or the measurement is complete; 1, the check failed; 2, the program could not work.

mod bugs;
mod checks;
mod coverage;
mod differential;
mod engines;
mod measured;
mod mutants;
mod oss_fuzz;
mod process;
mod rates;
mod tree;

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
    CheckNewEngine,
    /// Check that `nightly-fuzz` finds the canary, and nothing without it
    CheckNightlyFuzz {
        /// Seconds of each run
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Pack the crates, then build and test the packages
    CheckPackage,
    /// Check the workflows, and that they run every step of .ci/run
    CheckWorkflows,
    /// Plant a fault for each check, which must find it
    ChecksFail,
    /// Check that both loops find the canary
    Canary {
        /// Runs of each loop
        #[arg(long, default_value_t = 200_000)]
        runs: u64,
    },
    /// Check that ClusterFuzz derives one crash state from one bug
    CrashStates {
        /// Runs of each campaign from an empty corpus
        #[arg(long, default_value_t = 200_000)]
        runs: u64,
    },
    /// Check that the pages about a crash show the real output
    FromCrash,
    /// Fuzz targets from their committed corpora
    FuzzSmoke(checks::fuzzing::Smoke),
    /// Fuzz targets on all cores, continue after findings, and keep the corpora
    NightlyFuzz(checks::fuzzing::Night),
    /// Check that campaigns that share a corpus lose nothing if one is killed
    SharedCorpus(checks::shared_corpus::Arguments),
    /// Check that a campaign survives a stack overflow, a hang, an allocation without measure and a panic
    Survivor {
        /// Runs of each campaign
        #[arg(long, default_value_t = 700)]
        runs: u64,
    },
    /// Build the fuzz targets as OSS-Fuzz does, and check them as its runner does
    OssFuzz(oss_fuzz::Arguments),
    Campaign(engines::CampaignArguments),
    OtherLanguages(engines::other_languages::Arguments),
    /// Show a row of docs/findings.md, with the answers of the implementation and of qemu-img
    Finding {
        /// IMPLEMENTATION/NAME: the program is engines/findings/IMPLEMENTATION/NAME.txt
        row: String,
    },

    /// Compare answers with QEMU's, with several seeds
    Differential(differential::Options),
    /// Plant bugs that the differential campaign must find and distinguish
    DifferentialBugs(differential::BugOptions),
    /// Kill the differential campaign at random moments; nothing may be lost or left behind
    DifferentialKills(differential::kills::Options),
    /// Measure how soon both loops find each bug of bugs/
    Bugs(bugs::Options),
    /// Measure how soon the target `writes` finds each fault of the small writer
    WriterFaults(bugs::writer_faults::Options),
    /// Measure which mutants of the encoding functions the targets find
    Mutants(mutants::Options),
    /// Measure which lines the committed seeds reach
    Coverage(coverage::Options),
    /// Measure the command `map` beside `qemu-img map`
    MapRate(rates::map_rate::Options),
    /// Measure targets under libFuzzer with several settings
    FuzzRate(rates::fuzz_rate::Options),
    /// Measure the benchmarks beside another commit
    Against(rates::against::Options),
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let result: Result<()> = match verb {
        Verb::CheckDependencies { advisories } => checks::dependencies(advisories),
        Verb::CheckDocs { write } => checks::docs(write),
        Verb::CheckMsrv { build } => checks::msrv(build),
        Verb::CheckNewEngine => checks::new_engine::check(),
        Verb::CheckNightlyFuzz { seconds } => checks::planted_runs::nightly_fuzz(seconds),
        Verb::CheckPackage => checks::package::check(),
        Verb::CheckWorkflows => checks::workflows(),
        Verb::ChecksFail => checks::checks_fail::check(),
        Verb::Canary { runs } => checks::planted_runs::canary(runs),
        Verb::CrashStates { runs } => checks::crash_states::check(runs),
        Verb::FromCrash => checks::planted_runs::from_crash(),
        Verb::FuzzSmoke(options) => checks::fuzzing::smoke(&options),
        Verb::NightlyFuzz(options) => checks::fuzzing::night(&options),
        Verb::SharedCorpus(options) => checks::shared_corpus::check(&options),
        Verb::Survivor { runs } => checks::planted_runs::survivor(runs),
        Verb::OssFuzz(arguments) => oss_fuzz::check(&arguments),
        Verb::Campaign(arguments) => engines::campaign(&arguments),
        Verb::OtherLanguages(arguments) => engines::other_languages::fuzz(&arguments),
        Verb::Finding { row } => engines::other_languages::show_finding(&row),

        Verb::Differential(options) => differential::run(&options),
        Verb::DifferentialBugs(options) => differential::bugs(&options),
        Verb::DifferentialKills(options) => differential::kills::run(&options),
        Verb::Bugs(options) => bugs::measure(&options),
        Verb::WriterFaults(options) => bugs::writer_faults::measure(&options),
        Verb::Mutants(options) => mutants::measure(&options),
        Verb::Coverage(options) => coverage::measure(&options),
        Verb::MapRate(options) => rates::map_rate::measure(&options),
        Verb::FuzzRate(options) => rates::fuzz_rate::measure(&options),
        Verb::Against(options) => rates::against::measure(&options),
    };
    process::exit_code(result)
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
