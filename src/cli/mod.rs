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

use crate::harness::implementation::{Implementation, OurWalker};

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

/// Parses the command line and runs the verb that it names, with our walker under test.
pub fn main() -> ExitCode {
    main_with(OurWalker)
}

/// Parses the command line and runs the verb that it names, with your implementation under test:
///
/// ```no_run
/// # use qcowfuzz::harness::implementation::OurWalker as MyEngine;
/// fn main() -> std::process::ExitCode {
///     qcowfuzz::cli::main_with(MyEngine::default())
/// }
/// ```
///
/// The verbs `fuzz`, `replay`, `minimize`, `report`, `regress`, `triage`, `bundle` and `state` run inputs with it. They
/// start this executable again for work in other processes, so the call must be all that it does.
pub fn main_with(implementation: impl Implementation) -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Map(arguments) => map::run(&arguments),
        Verb::Check(arguments) => check::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::FuzzWorker(arguments) => fuzz::worker::run(&implementation, &arguments),
        Verb::Triage(arguments) => triage::run(&arguments),
        Verb::Minimize(arguments) => minimize::run(&implementation, &arguments),
        Verb::Replay(arguments) => replay::run(&implementation, &arguments),
        Verb::Report(arguments) => report::run(&implementation, &arguments),
        Verb::Regress(arguments) => regress::run(&implementation, &arguments),
        Verb::Bundle(arguments) => bundle::run(&implementation, &arguments),
        Verb::State(arguments) => state::run(&implementation, &arguments),
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
