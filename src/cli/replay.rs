//! `replay`: runs inputs of a fuzz target once more, and tells what was found.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::examiner::Examiner;
use qcowfuzz::findings::isolation::end_with_input;
use qcowfuzz::findings::report::Verdict;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::disk::files::Existing;
use qcowfuzz::internal::harness::export;

use super::exit::{Exit, Failure, Outcome};
use super::input;
use super::target;
use qcowfuzz::harness::targets::TargetKind;

/// Run inputs of a fuzz target and tell what the oracles say: fingerprint, program, first difference
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of one input everything is told, of several a line each and a summary. The program is printed as \
text that 'qcowfuzz asm' takes, with the operation marked after which the violation was found.

An input of raw_image is a file, not a program. It is refused, or its walk failed, or it was walked: \
none of these is a violation.

Exit codes: 0 nothing was found; 1 a violation was found; 2 an input could not be read, or the \
image not be written.

Example: qcowfuzz replay --check-each artifacts/map_extents/crash-1f0c")]
pub struct Arguments {
    /// The inputs, files of any content; - for standard input
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The fuzz target that the inputs are for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Build and verify after every operation, not only at checkpoints and at the end; of programs only
    #[arg(long)]
    check_each: bool,
    /// Print what happened on the way, too: events of VM, allocator, walker and oracles; of one input only
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Print one JSON object per line, one line for each input
    #[arg(long)]
    json: bool,
    /// Print only the judgement, without what explains it
    #[arg(long, conflicts_with_all = ["events", "dump_image"])]
    brief: bool,
    /// Somebody waits for it: end when standard input does
    #[arg(long, hide = true)]
    supervised: bool,
    /// Write the image that was built last to this file, and the files that it names beside it; of one
    /// program only
    #[arg(long, value_name = "F")]
    dump_image: Option<PathBuf>,
    /// Replace files that are there already
    #[arg(long, requires = "dump_image")]
    force: bool,
}

/// Replays the inputs.
pub fn run(arguments: &Arguments) -> Outcome {
    refuse(arguments)?;
    if arguments.supervised {
        end_with_input();
    }
    let _silence = PanicNotes::take_over();
    let alone = arguments.inputs.len() == 1;
    let checks = if arguments.check_each { Checks::AfterEach } else { Checks::AtCheckpoints };
    let names = arguments.dump_image.as_deref().map_or_else(FileNames::default, export::names);
    let mut examiner = Examiner::new(arguments.target, checks, names);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut violations = 0;
    for input in &arguments.inputs {
        let bytes = input::read_input(input)?;
        let report = match arguments.brief {
            true => examiner.judge(input, &bytes),
            false => examiner.examine(input, &bytes),
        };
        violations += usize::from(report.verdict == Verdict::Violation);
        let printed = match (arguments.json, alone) {
            (true, _) => report.json(&mut out),
            (false, true) if !arguments.brief => report.text(&mut out),
            (false, _) => report.line(&mut out),
        };
        let printed = printed.and_then(|()| match arguments.events {
            true => write!(out, "\nevents:\n{}", examiner.log()),
            false => Ok(()),
        });
        if let (Some(path), Some(pipeline)) = (&arguments.dump_image, examiner.runner().pipeline())
        {
            let built = (pipeline.vm(), pipeline.images());
            export::write_small_filled(path, Existing::forced(arguments.force), built)?;
        }
        match printed.map_err(|error| Failure::output(&error)) {
            Ok(()) => {}
            // Nobody reads on, but what was found is still told by the exit code.
            Err(Failure::Pipe) => return Ok(Exit::after(violations)),
            Err(failure) => return Err(failure),
        }
    }
    if !alone && !arguments.json {
        let inputs = arguments.inputs.len();
        let _ = writeln!(out, "{inputs} inputs, {violations} with a violation");
    }
    match out.flush().map_err(|error| Failure::output(&error)) {
        Ok(()) | Err(Failure::Pipe) => Ok(Exit::after(violations)),
        Err(failure) => Err(failure),
    }
}

/// Refuses options that mean nothing for these inputs.
fn refuse(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { inputs, target, check_each, dump_image, events, .. } = arguments;
    let of_programs = [("--check-each", *check_each), ("--dump-image", dump_image.is_some())];
    if let Some((option, _)) = of_programs.iter().find(|(_, given)| *given) {
        target::reject_files(*target, option)?;
    }
    if *events && inputs.len() > 1 {
        let many = "--events: of several inputs no events are told, expected one input";
        return Err(Failure::Told(many.to_string()));
    }
    match dump_image {
        Some(path) if inputs.len() > 1 => {
            Err(Failure::at(path, "of several inputs no image is dumped, expected one input"))
        }
        _ => Ok(()),
    }
}
