//! `replay`: runs inputs of a fuzz target again and prints the verdicts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::base::files::Existing;
use crate::cli::output::{CommandError, Exit, ExitResult, UnbufferedStdout, buffered_stdout, say};
use crate::cli::under_test::UnderTest;
use crate::cli::{inputs, options};
use crate::findings::PanicNotes;
use crate::findings::report::Verdict;
use crate::findings::report::examiner::Examiner;
use crate::findings::runner::{self, Ran, Runner};
use crate::harness::against::second_opinion;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::engine::known::{KnownFinding, KnownFindings};
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Pipeline};
use crate::images::FileNames;
use crate::images::files::LayerFiles;
use crate::programs::export;
use crate::recipes::recipe::quoted;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
For one input, the command prints the full report; for several, a line for each and a summary. It \
prints the program as text that 'qcowfuzz asm' accepts, and marks the operation after which an oracle \
found the violation.

An input of raw_image is a file, not a program. The walker may reject it, fail in the middle of the \
walk, or finish: none of these is a violation. An input of recipes chooses commands of QEMU, which the report prints.

Exit codes: 0 nothing was found; 1 a violation was found; 2 an input could not be read, or the \
image could not be written.

Example: qcowfuzz replay --check-each artifacts/map_extents/crash-1f0c")]
pub struct Arguments {
    /// The inputs: files with any content; '-' for standard input
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The fuzz target of the inputs
    #[arg(long, value_parser = options::target_parser(), default_value = options::DEFAULT_TARGET)]
    target: TargetKind,
    /// Build and verify after every operation, not only at checkpoints and at the end (programs only)
    #[arg(long)]
    check_each: bool,
    /// First print the events of the VM, the allocator, the walker and the oracles, and the accesses to files
    /// that are feedback, as they occur (one input only)
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Print one line with a JSON object for each input
    #[arg(long)]
    json: bool,
    /// Print only the verdict, without an explanation
    #[arg(long, conflicts_with_all = ["events", "dump_image"])]
    brief: bool,
    /// Show the first known finding as if it were new, if there is no new one (one input only)
    #[arg(long)]
    show_known: bool,
    /// Write the last image of the run to this file, and the files that it names beside it (one program
    /// only): in the target writes, as the engine or a cut has left it
    #[arg(long, value_name = "F")]
    dump_image: Option<PathBuf>,
    /// Replace existing files
    #[arg(long, requires = "dump_image")]
    force: bool,
}

/// Replays the inputs.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    refuse(arguments)?;
    let implementation = &under_test.implementation;
    options::reject_reader(arguments.target, implementation)?;
    let _silence = PanicNotes::take_over();
    let alone = arguments.inputs.len() == 1;
    let checks = Checks::after_each_if(arguments.check_each);
    let names = arguments.dump_image.as_deref().map_or_else(FileNames::default, export::names);
    let known = arguments.inputs.first().filter(|_| arguments.show_known);
    let showing = known.map(|input| showing(under_test, arguments.target, input)).transpose()?;
    let implementation = showing.as_ref().unwrap_or(implementation);
    let mut examiner = Examiner::new(implementation, arguments.target, checks, names);
    let mut out = buffered_stdout();
    let mut violations = 0;
    for input in &arguments.inputs {
        let bytes = inputs::read_input(input, arguments.target)?;
        if arguments.events {
            say("events:")?;
            examiner.print_events(Box::new(UnbufferedStdout));
        }
        let report = match arguments.brief {
            true => examiner.judge(input, &bytes),
            false => examiner.examine(input, &bytes),
        };
        violations += usize::from(report.verdict == Verdict::Violation);
        let confirms = alone && !arguments.json && !arguments.brief;
        let confirms = confirms && report.verdict == Verdict::Violation;
        let printed = match (arguments.json, alone) {
            (true, _) => report.json(&mut out),
            (false, true) if arguments.events => writeln!(out).and_then(|()| report.text(&mut out)),
            (false, true) if !arguments.brief => report.text(&mut out),
            (false, _) => report.line(&mut out),
        };
        if let Some(path) = &arguments.dump_image {
            let runner = examiner.runner();
            let files = (runner.pipeline(), runner.left());
            dump(files, path, Existing::forced(arguments.force))?;
        }
        let printed = printed.and_then(|()| match confirms {
            true => confirm(under_test, arguments.target, (input, &bytes), &mut out),
            false => Ok(()),
        });
        match printed.map_err(|error| CommandError::output(&error)) {
            Ok(()) => {}
            // The reader has closed the pipe, but the exit code still reports the violations.
            Err(CommandError::Pipe) => return Ok(Exit::after(violations)),
            Err(failure) => return Err(failure),
        }
    }
    if !alone && !arguments.json {
        let inputs = arguments.inputs.len();
        let _ = writeln!(out, "{inputs} inputs, {violations} with a violation");
    }
    match out.flush().map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => Ok(Exit::after(violations)),
        Err(failure) => Err(failure),
    }
}

/// Returns the implementation that shows the findings of an input, even if all of them are known.
fn showing(
    under_test: &UnderTest,
    target: TargetKind,
    input: &Path,
) -> Result<Implementation, CommandError> {
    let bytes = inputs::read_input(input, target)?;
    Ok(runner::showing(&under_test.implementation, target, &bytes))
}

/// Writes the answer of the second implementation, if there is one, or the command that asks QEMU; and the command that
/// writes the image.
fn confirm(
    under_test: &UnderTest,
    target: TargetKind,
    (input, bytes): (&Path, &[u8]),
    out: &mut impl Write,
) -> io::Result<()> {
    if let Some(second) = &under_test.against {
        let name = &second.name;
        match second_finding(under_test, target, bytes) {
            SecondAnswer::Differs(finding) => writeln!(out, "\n{name} disagrees: {finding}")?,
            SecondAnswer::Agrees => writeln!(out, "\n{name} agrees")?,
            SecondAnswer::None => writeln!(out, "\n{name} was not asked: the run ended before")?,
        }
    }
    let definition = target.definition();
    let input = quoted(&[input.display().to_string()]);
    let replay = under_test.command_line("replay", target);
    if definition.expectation != Expectation::NotWalked
        && definition.inputs != Inputs::Recipes
        && under_test.against.is_none()
    {
        writeln!(out, "\nwhat QEMU answers: {replay} --against qemu {input}")?;
    }
    if target.runs_programs() {
        writeln!(out, "the image alone:   {replay} {input} --dump-image image")?;
    }
    Ok(())
}

/// The maximum number of findings without the second implementation that are set aside to reach its answer.
const MAX_SET_ASIDE: usize = 32;

/// The answer of the second implementation.
enum SecondAnswer {
    /// The fingerprint of the first difference from the implementation under test.
    Differs(String),
    /// There is none.
    Agrees,
    /// The run has ended before.
    None,
}

/// Returns the answer of the second implementation, which judges a case after all other oracles: their findings are set
/// aside.
fn second_finding(under_test: &UnderTest, target: TargetKind, bytes: &[u8]) -> SecondAnswer {
    let mut known = KnownFindings::default();
    for _ in 0..MAX_SET_ASIDE {
        let implementation = under_test.implementation.clone().knowing(known.clone());
        let mut runner = Runner::new(&implementation, target, FileNames::default(), no_observer());
        let fingerprint = match runner.run(bytes, Checks::default()) {
            Ran::Sound(_) => return SecondAnswer::Agrees,
            Ran::Panic(_) | Ran::KnownPanic(_) => return SecondAnswer::None,
            Ran::Violation(failure) => failure.violation.fingerprint(),
        };
        let oracles = [second_opinion::OF_QEMU, second_opinion::OF_ENGINE];
        if oracles.iter().any(|oracle| fingerprint.starts_with(oracle)) {
            return SecondAnswer::Differs(fingerprint);
        }
        let finding = KnownFinding { fingerprint, ..KnownFinding::default() };
        known = known.and(&KnownFindings::new([finding]));
    }
    SecondAnswer::None
}

/// Writes the last image of a run and the files that it names: as an engine has `left` them if one has written them.
fn dump(
    (pipeline, left): (Option<&Pipeline>, Option<&LayerFiles>),
    path: &Path,
    existing: Existing,
) -> Result<(), CommandError> {
    let Some(pipeline) = pipeline else { return Ok(()) };
    let left = left.map(|files| pipeline.images().with_top(files));
    let built = (pipeline.vm(), left.as_ref().unwrap_or(pipeline.images()));
    Ok(export::write_small_filled(path, existing, built)?)
}

/// Rejects options that do not apply to these inputs.
fn refuse(arguments: &Arguments) -> Result<(), CommandError> {
    let Arguments { inputs, target, check_each, dump_image, events, show_known, .. } = arguments;
    let of_programs = [("--check-each", *check_each), ("--dump-image", dump_image.is_some())];
    if let Some((option, _)) = of_programs.iter().find(|(_, given)| *given) {
        options::reject_files(*target, option)?;
    }
    let of_one = [("--events", *events), ("--show-known", *show_known)];
    if let Some((option, _)) = of_one.iter().find(|(_, given)| *given && inputs.len() > 1) {
        let many = format!("{option}: found several inputs, expected one");
        return Err(CommandError::Message(many));
    }
    match dump_image {
        Some(path) if inputs.len() > 1 => Err(CommandError::at(
            path,
            "cannot dump the images of several inputs, expected one input",
        )),
        _ => Ok(()),
    }
}
