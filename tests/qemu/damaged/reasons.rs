//! The reasons of failures, compared with those of qemu-img: damaged images of every format, files that cannot be
//! opened, and wrong command lines. If both programs fail, their messages have classes, and the classes are equal or
//! the difference has a name.

use std::os::unix::process::ExitStatusExt;
use test_support::prelude::*;

use qcowfuzz::internal::differential::reason::{Comparison, ReasonClass, class_of, compare, pairs};
use qcowfuzz::walkers::chain::FileChain;

use super::reason_files;
use super::reason_images::{self, Case};

/// The number of failures of both programs, for all formats and commands together.
const FAILURES: u64 = 1000;

/// Compares the reasons of two failures, and counts the class or the name of the difference.
fn judge(command: &str, runs: &Runs, tally: &mut Tally) -> Checked<ReasonClass> {
    let (ours, theirs) = (runs.ours.stderr(), runs.theirs.stderr());
    match compare(command, &ours, &theirs) {
        Comparison::Same(class) => {
            tally.add(class.name(), 1);
            Ok(class)
        }
        Comparison::Named(pair) => {
            tally.add(pair.reason, 1);
            class_of(&ours).ok_or("no class".to_string())
        }
        Comparison::Different { ours: our_class, theirs: their_class } => {
            Err(format!("{our_class:?}: {ours}\n{their_class:?}: {theirs}"))
        }
    }
}

/// Runs one command on a damaged image, and compares the reasons if both programs fail.
fn judge_image(case: &Case) -> Checked<Tally> {
    let dir = tempfile::tempdir().described()?;
    let path = dir.path().join("image");
    case.write(&path)?;
    let mut tally = Tally::default();
    let Some(command) = affordable(case.command, case.format, &path) else {
        tally.add("images that take qemu-img too long", 1);
        return Ok(tally);
    };
    let Some(runs) = Runs::on_image((command, case.form), case.format, &path)? else {
        tally.add("images that we accept", 1);
        return Ok(tally);
    };
    if runs.theirs.succeeded() {
        // `tests/qemu/damaged/hostile.rs` and `tests/qemu/formats/mod.rs` compare the decisions.
        tally.add("images that only we refuse", 1);
    } else if runs.theirs.ended_by_signal() {
        // `tests/qemu/formats/mod.rs` names the images on which qemu-img divides by zero or aborts.
        tally.add("images that end qemu-img by a signal", 1);
    } else {
        judge(command, &runs, &mut tally)?;
        tally.add("failures", 1);
        tally.add(format!("failures of {command}"), 1);
        tally.add(format!("failures of {}", case.format.name()), 1);
    }
    Ok(tally)
}

#[test]
fn failures_on_damaged_images_have_the_same_reason() {
    let Some(()) = qemu::tools() else { return };
    let tally = qemu::judge_all(&reason_images::cases(), || (), |(), case| judge_image(case));
    let classes = [
        (ReasonClass::MissingFile, 0),
        (ReasonClass::NotThisFormat, 50),
        (ReasonClass::Unsupported, 80),
        (ReasonClass::Invalid, 500),
        (ReasonClass::Bitmaps, 1),
        (ReasonClass::Entry, 30),
        (ReasonClass::Read, 3),
        (ReasonClass::LogReplay, 4),
        (ReasonClass::NoChecks, 8),
        (ReasonClass::CheckFindings, 20),
    ];
    let classes = classes.map(|(class, least)| (class.name().to_string(), least));
    let named = pairs().map(|pair| (pair.reason.to_string(), 1));
    let commands = COMMANDS.map(|command| (format!("failures of {command}"), 200));
    let formats = ImageFormat::ALL.into_iter().filter(|format| *format != ImageFormat::Raw);
    let formats = formats.map(|format| (format!("failures of {}", format.name()), 100));
    let counts = [("failures", FAILURES), ("images that we accept", 100)];
    let rest = ["images that only we refuse", "images that end qemu-img by a signal"];
    let rest = rest.into_iter().chain(["images that take qemu-img too long"]);
    let bounds: Vec<(String, u64)> = classes
        .into_iter()
        .chain(named)
        .chain(commands)
        .chain(formats)
        .chain(counts.map(|(what, least)| (what.to_string(), least)))
        .chain(rest.map(|what| (what.to_string(), 0)))
        .collect();
    let bounds: Vec<_> = bounds.iter().map(|(what, least)| (what.as_str(), *least)).collect();
    tally.assert_at_least(&bounds);
}

/// Runs a command line that must fail, and checks the class of its reason.
fn judge_file(dir: &Path, case: &reason_files::Case) -> Checked<Tally> {
    let mut tally = Tally::default();
    let runs = case.run(dir)?;
    let failed = |run: &Run| !run.succeeded() && !run.ended_by_signal();
    if !failed(&runs.ours) || !failed(&runs.theirs) {
        return Err(format!("ours: {:?}\nqemu-img: {:?}", runs.ours, runs.theirs));
    }
    let class = judge(case.command(), &runs, &mut tally)?;
    if class != case.class {
        return Err(format!("{class:?}, expected {:?}: {runs:?}", case.class));
    }
    Ok(tally)
}

#[test]
fn failures_on_files_and_command_lines_have_the_same_reason() {
    let Some(()) = qemu::tools() else { return };
    let dir = reason_files::Folder::new();
    let cases = reason_files::cases();
    let tally = qemu::judge_all(&cases, || (), |(), case| judge_file(dir.path(), case));
    let classes: BTreeSet<_> = cases.iter().map(|case| case.class).collect();
    // QEMU does not name the signature of a VHDX file.
    let signature = pairs().find(|pair| pair.our_phrase.contains("vhdxfile")).unwrap();
    let classes = classes.into_iter().map(|class| (class.name(), 1));
    let bounds: Vec<_> = classes.chain([(signature.reason, 8)]).collect();
    tally.assert_at_least(&bounds);
}

/// The commands that both programs have.
pub const COMMANDS: [&str; 4] = ["map", "info", "check", "convert"];

/// The program of this project.
pub const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");

/// The size up to which disks are converted.
const MAX_CONVERTED_BYTES: u64 = 16 << 20;
/// The size up to which disks are mapped: qemu-img visits each grain.
const MAX_MAPPED_BYTES: u64 = 1 << 40;

/// The exit and the messages of a program.
#[derive(Debug)]
pub struct Run(Output);

impl Run {
    /// Runs a program. System errors have English texts.
    pub fn of(command: &mut Command) -> Checked<Self> {
        let output = command.env("LC_ALL", "C").output();
        output.map(Self).map_err(|error| format!("{command:?}: {error}"))
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub fn succeeded(&self) -> bool {
        self.0.status.success()
    }

    fn ended_by_signal(&self) -> bool {
        self.0.status.signal().is_some()
    }
}

/// The runs of both programs.
#[derive(Debug)]
pub struct Runs {
    pub ours: Run,
    pub theirs: Run,
}

impl Runs {
    /// Runs a command on an image by both programs, with answers in the form "json" or "human". Returns `None` if ours
    /// succeeds.
    fn on_image(
        (command, form): (&str, &str),
        format: ImageFormat,
        path: &Path,
    ) -> Checked<Option<Self>> {
        let run = |program: &str, output: &str| {
            let mut line = Command::new(program);
            line.args([command, "-f", format.name()]).arg(path);
            if command == "convert" {
                line.args([OsStr::new("-O"), OsStr::new("raw")]).arg(path.with_file_name(output));
            } else {
                line.arg(format!("--output={form}"));
            }
            // QEMU looks for data files in the current directory.
            line.current_dir(path.parent().ok_or("no folder")?);
            Run::of(&mut line)
        };
        let ours = run(OURS, "ours.raw")?;
        if ours.succeeded() {
            return Ok(None);
        }
        Ok(Some(Self { ours, theirs: run("qemu-img", "theirs.raw")? }))
    }
}

/// Returns the command, or another one if the disk is too large for it: qemu-img copies it whole. Returns `None` if
/// the disk is too large for any.
fn affordable(command: &'static str, format: ImageFormat, path: &Path) -> Option<&'static str> {
    let size = |chain: FileChain| chain.disk().ok().map(|disk| disk.virtual_size_bytes());
    match FileChain::open(path, Some(format)).ok().and_then(size) {
        Some(size) if size > MAX_MAPPED_BYTES => (command == "info").then_some(command),
        Some(size) if size > MAX_CONVERTED_BYTES && command == "convert" => Some("map"),
        _ => Some(command),
    }
}
