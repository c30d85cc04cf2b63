//! `replay`: runs programs once more, and tells what was found.

use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;

use qcowfuzz::engines::Walker;
use qcowfuzz::export::Holes;
use qcowfuzz::harness::{Checks, Harness};
use qcowfuzz::storage::Storage;

use super::files::{self, Existing};
use super::replay_report::{Found, Report, Verdict};
use super::{Exit, Failure, Outcome};

/// Run programs and tell what the oracles say: fingerprint, program and first difference
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of one input everything is told, of several a line each and a summary. The program is printed as
text that 'qcowfuzz asm' takes, with the operation marked after which the violation was found.

Exit codes: 0 nothing was found; 1 a violation was found; 2 an input could not be read, or the
image not be written.

Example: qcowfuzz replay --check-each artifacts/map_extents/crash-1f0c")]
pub struct Arguments {
    /// The programs, files of any content; - for standard input
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The fuzz target that the inputs are for
    #[arg(long, value_enum, default_value_t)]
    target: Target,
    /// Build and verify after every operation, not only at checkpoints and at the end
    #[arg(long)]
    check_each: bool,
    /// Print a JSON object a line for each input
    #[arg(long)]
    json: bool,
    /// Write the image that was built last to this file; of one input only
    #[arg(long, value_name = "F")]
    dump_image: Option<PathBuf>,
    /// Replace that file where it is there already
    #[arg(long, requires = "dump_image")]
    force: bool,
}

/// What an input is for. A target that is added here gets its arm in [`replay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// A program: its image is built and walked, all oracles judge
    #[default]
    #[value(name = "map_extents")]
    MapExtents,
}

impl Target {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MapExtents => "map_extents",
        }
    }
}

/// Images up to this length are dumped with their holes filled.
const MAX_DUMP_FILLED_BYTES: u64 = 64 << 20;

/// Replays the inputs.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.inputs.len() > 1
        && let Some(path) = &arguments.dump_image
    {
        return Err(Failure::at(path, "of several inputs no image is dumped, expected one input"));
    }
    let _silence = PanicNotes::take_over();
    let alone = arguments.inputs.len() == 1;
    let mut harness = Harness::new(Walker::default());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut violations = 0;
    for input in &arguments.inputs {
        let bytes = files::read(input)?;
        let found = match arguments.target {
            Target::MapExtents => replay(&mut harness, &bytes, arguments.check_each),
        };
        let report = Report::new(input, arguments.target, &harness, &found);
        violations += u64::from(report.verdict == Verdict::Violation);
        let printed = match (arguments.json, alone) {
            (true, _) => report.json(&mut out),
            (false, true) => report.whole(&mut out),
            (false, false) => report.line(&mut out),
        };
        if let Some(path) = &arguments.dump_image {
            dump(&harness, path, Existing::forced(arguments.force))?;
        }
        if matches!(found, Found::Panic(_)) {
            // What the panic left behind belongs to no run.
            harness = Harness::new(Walker::default());
        }
        match printed.map_err(|error| Failure::output(&error)) {
            Ok(()) => {}
            // Nobody reads on, but what was found is still told by the exit code.
            Err(Failure::Pipe) => return Ok(exit(violations)),
            Err(failure) => return Err(failure),
        }
    }
    if !alone && !arguments.json {
        let inputs = arguments.inputs.len();
        let _ = writeln!(out, "{inputs} inputs, {violations} with a violation");
    }
    match out.flush().map_err(|error| Failure::output(&error)) {
        Ok(()) | Err(Failure::Pipe) => Ok(exit(violations)),
        Err(failure) => Err(failure),
    }
}

fn exit(violations: u64) -> Exit {
    if violations == 0 { Exit::Nothing } else { Exit::Violation }
}

fn replay(harness: &mut Harness<Walker>, input: &[u8], check_each: bool) -> Found {
    let checks = if check_each { Checks::AfterEach } else { Checks::AtCheckpoints };
    let run = AssertUnwindSafe(|| harness.run(input, checks));
    match catch_unwind(run) {
        Ok(Ok(outcome)) => Found::Nothing(outcome),
        Ok(Err(failure)) => Found::Failure(failure),
        Err(_) => Found::Panic(PanicNotes::last()),
    }
}

fn dump(
    harness: &Harness<Walker>,
    path: &std::path::Path,
    existing: Existing,
) -> Result<(), Failure> {
    let image = harness.image();
    let small = image.length_bytes() <= MAX_DUMP_FILLED_BYTES;
    files::write_image(path, existing, image, if small { Holes::Fill } else { Holes::Keep })
}

/// Where the last panic was, and what it said.
#[derive(Clone, Debug, Default)]
pub struct PanicNote {
    /// The source file.
    pub file: String,
    /// Place and message.
    pub detail: String,
}

static LAST_PANIC: Mutex<Option<PanicNote>> = Mutex::new(None);

/// Keeps panics of the code under test from being printed: they are findings, and reported as such.
struct PanicNotes;

impl PanicNotes {
    fn take_over() -> Self {
        std::panic::set_hook(Box::new(|panic| {
            let payload = panic.payload();
            let message = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without a message");
            let file = panic.location().map_or("", |location| location.file()).to_string();
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let note = PanicNote { file, detail: format!("{place}: {message}") };
            if let Ok(mut last) = LAST_PANIC.lock() {
                *last = Some(note);
            }
        }));
        Self
    }

    fn last() -> PanicNote {
        LAST_PANIC.lock().ok().and_then(|mut last| last.take()).unwrap_or_default()
    }
}

impl Drop for PanicNotes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}
