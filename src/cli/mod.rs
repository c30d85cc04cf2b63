//! The command line. Each verb has a file, which parses its arguments, calls the library, prints the result, and
//! returns an exit code.

mod asm;
mod bundle;
mod check;
mod disasm;
mod exit;
mod export;
mod fuzz;
mod input;
mod map;
mod minimize;
mod opening;
mod print;
mod regress;
mod replay;
mod report;
mod save;
mod size;
mod state;
mod target;
mod terminal;
mod triage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::{CommandError, Exit};
use terminal::complain;

/// A structure-aware fuzz harness for qcow2 disk-image code.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Map(map::Arguments),
    Check(check::Arguments),
    Fuzz(fuzz::Arguments),
    #[command(hide = true)]
    FuzzWorker(fuzz::worker::Arguments),
    Triage(triage::Arguments),
    Minimize(minimize::Arguments),
    Replay(replay::Arguments),
    Report(report::Arguments),
    Regress(regress::Arguments),
    Bundle(bundle::Arguments),
    State(state::Arguments),
    Disasm(disasm::Arguments),
    Asm(asm::Arguments),
    Export(export::Arguments),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found
  1  a violation was found
  2  the command could not do its work
Commands that write output from a crash (minimize, report, regress, bundle) exit with 0 on success; \
'check' exits with the codes of 'qemu-img check'.";

/// Parses the command line and runs the verb that it names.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Map(arguments) => map::run(&arguments),
        Verb::Check(arguments) => check::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::FuzzWorker(arguments) => fuzz::worker::run(&arguments),
        Verb::Triage(arguments) => triage::run(&arguments),
        Verb::Minimize(arguments) => minimize::run(&arguments),
        Verb::Replay(arguments) => replay::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Regress(arguments) => regress::run(&arguments),
        Verb::Bundle(arguments) => bundle::run(&arguments),
        Verb::State(arguments) => state::run(&arguments),
        Verb::Disasm(arguments) => disasm::run(&arguments),
        Verb::Asm(arguments) => asm::run(&arguments),
        Verb::Export(arguments) => export::run(&arguments),
    };
    let code = match &outcome {
        Ok(Exit::Nothing) | Err(CommandError::Pipe) => 0,
        Ok(Exit::Violation) | Err(CommandError::CheckMessage(_)) => 1,
        Ok(Exit::Check(code)) => *code,
        Err(CommandError::Message(_)) => 2,
    };
    if let Err(CommandError::Message(line) | CommandError::CheckMessage(line)) = &outcome {
        complain(line);
    }
    ExitCode::from(code)
}
