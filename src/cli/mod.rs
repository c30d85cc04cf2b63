//! The command line. Each verb parses its arguments, calls the library, prints the result, and returns an exit code.
//! Verbs about images are in `images`, verbs about inputs of fuzz targets in `inputs`.

mod corpus;
mod differential;
mod fuzz;
pub(crate) mod images;
mod inputs;
mod new_engine;
mod options;
mod output;
mod programs;
mod selftest;
mod under_test;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::harness::against::qemu_io::CostlyComparisons;
use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::failure;

use images::{check, convert, info, map, measure};
use inputs::{evidence, minimize, replay, triage};
use output::{CommandError, Exit, ExitResult, complain};
use under_test::{UnderTest, UnderTestOptions};

/// A structure-aware fuzz harness for code that reads or writes disk images.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    options: UnderTestOptions,
    #[command(subcommand)]
    verb: Verb,
}

// Campaigns start this command thousands of times: the options of the other verbs are not built.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum Verb {
    /// Print the format, the sizes, the features and the snapshots of an image, as 'qemu-img info' does
    Info(info::Arguments),
    /// Print the data, zeros and holes of a disk and their host offsets, as 'qemu-img map' does
    Map(map::Arguments),
    /// Check an image, as 'qemu-img check' does: the refcounts of a qcow2 image, the blocks or the grains of others
    Check(check::Arguments),
    /// Write the bytes that a guest reads to a raw file, as 'qemu-img convert -O raw' does
    Convert(convert::Arguments),
    /// Print the size of the file that a new image needs for a disk, as 'qemu-img measure' does
    Measure(measure::Arguments),
    /// Fuzz a target with the embedded loop, on stable Rust and without cargo-fuzz
    Fuzz(fuzz::Arguments),
    /// Compare the answers about disk images with those of QEMU, on images that QEMU and programs make and change
    Differential(differential::Arguments),
    /// Run one job of a campaign; 'fuzz' starts this command
    #[command(hide = true)]
    FuzzWorker(fuzz::WorkerArguments),
    /// Group artifacts by fingerprint, and print which bugs are new and which inputs show them
    Triage(triage::Arguments),
    /// Run the inputs that standard input brings; other commands start this one
    #[command(hide = true)]
    RunInputs(inputs::Arguments),
    /// Shrink an input while it shows the same bug: the same fingerprint, fewer and simpler operations
    Minimize(minimize::Arguments),
    /// Run inputs of a fuzz target and print the verdict, the fingerprint, the program and the first difference
    Replay(replay::Arguments),
    /// Write a page for a browser that explains what an input of a fuzz target does
    Report(evidence::ReportArguments),
    /// Print an input as a regression test: Rust code, or a file for tests/regressions/
    Regress(evidence::RegressArguments),
    /// Pack an input and its evidence into an archive for a bug report
    Bundle(evidence::BundleArguments),
    /// Print the coverage of a corpus; compare, prune and merge corpora
    #[command(alias = "state")]
    Corpus(corpus::Arguments),
    /// Ask the implementation about plain images, to find mistakes of its adapter
    Selftest(selftest::Arguments),
    /// Write a crate that fuzzes your implementation: the engine to fill in, fuzz targets, seeds
    NewEngine(new_engine::Arguments),
    /// Print a program as text, which 'qcowfuzz asm' assembles again
    Disasm(programs::DisasmArguments),
    /// Assemble a program from its text
    Asm(programs::AsmArguments),
    /// Write the image that a program builds to a file, for qemu-img and other readers
    Export(programs::ExportArguments),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  nothing was found
  1  a violation was found
  2  the command could not do its work
Commands that write output from a crash (minimize, report, regress, bundle) exit with 0 on success; \
'check', 'convert', 'info' and 'measure' exit with the codes of qemu-img.";

/// Parses the command line and runs the verb that it names, with your implementation under test:
///
/// ```no_run
/// # use qcowfuzz::harness::Walker;
/// # struct MyEngine;
/// # impl MyEngine { fn default() -> qcowfuzz::harness::Implementation {
/// #     qcowfuzz::harness::Implementation::our_walker()
/// # } }
/// fn main() -> std::process::ExitCode {
///     qcowfuzz::cli::main_with(MyEngine::default())
/// }
/// ```
///
/// [`command!`](crate::command) defines that `main`. With `--engine-command` or `--engine-qemu-img`, the implementation
/// behind that command takes the place of yours.
///
/// The verbs `fuzz`, `replay`, `minimize`, `report`, `regress`, `triage`, `bundle` and `corpus` run inputs with your
/// implementation, and `selftest` asks it about plain images. They start this executable again for work in other
/// processes, so the call must be all that the executable does.
pub fn main_with(implementation: impl Into<Implementation>) -> ExitCode {
    let matches = command_line().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let verb = matches.subcommand_name().unwrap_or("");
    // If the engine fails, the command fails.
    let outcome = failure::catch(|| run(implementation.into(), verb, &arguments))
        .unwrap_or_else(|line| Err(CommandError::Message(line)));
    let code = match &outcome {
        Ok(Exit::Nothing) | Err(CommandError::Pipe) => 0,
        Ok(Exit::Violation) | Err(CommandError::AsInQemuImg(_)) => 1,
        Ok(Exit::Check(code)) => *code,
        Err(CommandError::Message(_)) => 2,
    };
    if let Err(CommandError::Message(line) | CommandError::AsInQemuImg(line)) = &outcome {
        complain(line);
    }
    ExitCode::from(code)
}

/// The verbs that run no inputs, with the options about the implementation that each takes all the same.
const WITHOUT_INPUTS: [(&str, &[&str]); 11] = [
    ("info", &[]),
    ("map", &[]),
    ("check", &[]),
    ("convert", &[]),
    ("measure", &[]),
    ("asm", &[]),
    // Programs are folded into the features that are left.
    ("disasm", &["engine_command", "engine_qemu_img", "without"]),
    ("export", &["engine_command", "engine_qemu_img", "without"]),
    ("differential", &["known"]),
    // The self-test reports each wrong answer, known or not.
    ("selftest", &["engine_command", "engine_qemu_img"]),
    ("new-engine", &[]),
];

/// Returns the command line. If it asks for help, the help of a verb lacks the options that the verb refuses.
fn command_line() -> Command {
    let mut command = Arguments::command();
    // To build all verbs takes time, and campaigns start this command thousands of times.
    if !std::env::args_os().any(|word| ["-h", "--help", "help"].iter().any(|it| word == *it)) {
        return command;
    }
    command.build();
    let ids = UnderTestOptions::default().given().map(|(id, _)| id);
    WITHOUT_INPUTS.into_iter().fold(command, |command, (verb, taken)| {
        command.mut_subcommand(verb, |verb| {
            verb.mut_args(|option| {
                let id = option.get_id().as_str();
                let is_refused = ids.contains(&id) && !taken.contains(&id);
                if is_refused { option.hide(true) } else { option }
            })
        })
    })
}

/// Runs the verb with this name. `own` is the implementation of this executable.
fn run(own: Implementation, name: &str, Arguments { options, verb }: &Arguments) -> ExitResult {
    if let Some((name, taken)) = WITHOUT_INPUTS.iter().find(|(verb, _)| *verb == name) {
        options.reject(name, taken)?;
    }
    let costly = match verb {
        Verb::Fuzz(_) | Verb::FuzzWorker(_) => CostlyComparisons::Drawn,
        _ => CostlyComparisons::Always,
    };
    let under_test = &UnderTest::new(own, options, costly)?;
    if !matches!(verb, Verb::Triage(_)) {
        under_test.reject_folders()?;
    }
    let implementation = &under_test.implementation;
    match verb {
        Verb::Info(arguments) => info::run(arguments),
        Verb::Map(arguments) => map::run(arguments),
        Verb::Check(arguments) => check::run(arguments),
        Verb::Convert(arguments) => convert::run(arguments),
        Verb::Measure(arguments) => measure::run(arguments),
        Verb::Differential(arguments) => differential::run(arguments, options.known()?),
        Verb::Fuzz(arguments) => fuzz::run(under_test, arguments),
        Verb::FuzzWorker(arguments) => fuzz::work(implementation, arguments),
        Verb::Triage(arguments) => triage::run(under_test, arguments),
        Verb::RunInputs(arguments) => inputs::run(implementation, arguments),
        Verb::Minimize(arguments) => minimize::run(under_test, arguments),
        Verb::Replay(arguments) => replay::run(under_test, arguments),
        Verb::Report(arguments) => evidence::report(under_test, arguments),
        Verb::Regress(arguments) => evidence::regress(under_test, arguments),
        Verb::Bundle(arguments) => evidence::bundle_input(under_test, arguments),
        Verb::Corpus(arguments) => corpus::run(implementation, arguments),
        Verb::Selftest(arguments) => {
            selftest::run(implementation, options.has_command(), arguments)
        }
        Verb::NewEngine(arguments) => new_engine::run(arguments),
        Verb::Disasm(arguments) => programs::disasm(implementation, arguments),
        Verb::Asm(arguments) => programs::asm(arguments),
        Verb::Export(arguments) => programs::export_image(implementation, arguments),
    }
}

/// Defines the `main` of a program that is the whole command, with your implementation under test:
///
/// ```ignore
/// qcowfuzz::command!(MyEngine::default());
/// ```
///
/// It calls [`cli::main_with`](crate::cli::main_with), and makes [`PeakAlloc`](crate::harness::PeakAlloc) the global
/// allocator, which the oracle `memory` needs. A program with another allocator calls `main_with` itself.
#[macro_export]
macro_rules! command {
    ($implementation:expr) => {
        /// Counts the allocated bytes, for the oracle `memory`.
        #[global_allocator]
        static ALLOCATOR: $crate::harness::PeakAlloc = $crate::harness::PeakAlloc;

        fn main() -> ::std::process::ExitCode {
            use $crate::harness::cases::implementation::{Expression, Implementation};
            let expression = Expression::Engine(stringify!($implementation).into());
            $crate::cli::main_with(Implementation::from($implementation).written_as(expression))
        }
    };
}
