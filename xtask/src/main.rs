//! The project's checks and measurements, which need more than `cargo test`: builds with planted bugs, fuzzing under
//! libFuzzer, other programs. Each subcommand runs in CI or in a workflow.
//!
//! Exit codes: 0, the check passed or the measurement is complete; 1, the check failed; 2, the program could not work.

mod checks;
mod planted;
mod process;
mod results;

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
    /// Check licences, sources and advisories of all locked dependencies
    CheckDependencies,
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let result: Result<()> = match verb {
        Verb::CheckDependencies => checks::dependencies(),
    };
    process::exit_code(result)
}
