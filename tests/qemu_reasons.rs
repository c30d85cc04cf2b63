//! The reasons of failures, compared with those of qemu-img: damaged images of every format, files that cannot be
//! opened, and wrong command lines. If both programs fail, their messages have classes, and the classes are equal or
//! the difference has a name.

#[allow(dead_code)]
#[path = "qemu_formats/attacks.rs"]
mod attacks;
#[allow(dead_code)]
#[path = "planted/broken.rs"]
mod broken;
#[allow(dead_code)]
#[path = "planted/broken_formats.rs"]
mod broken_formats;
#[allow(dead_code)]
#[path = "qemu_formats/commands.rs"]
mod commands;
#[allow(dead_code)]
#[path = "qemu_formats/comparison.rs"]
mod comparison;
#[path = "qemu_headers/fields.rs"]
mod fields;
#[path = "qemu_reasons/files.rs"]
mod files;
#[path = "qemu_formats/form_fields.rs"]
mod form_fields;
#[path = "qemu_reasons/images.rs"]
mod images;
#[allow(dead_code)]
#[path = "qemu/info.rs"]
mod info;
#[allow(dead_code)]
mod lines;
#[allow(dead_code)]
#[path = "qemu_formats/maker.rs"]
mod maker;
#[allow(dead_code)]
#[path = "qemu_formats/parts.rs"]
mod parts;
#[allow(dead_code)]
#[path = "qemu_formats/parts_of_disk.rs"]
mod parts_of_disk;
#[path = "qemu_formats/program.rs"]
mod program;
#[allow(dead_code)]
mod qemu;
#[allow(dead_code)]
#[path = "qemu_formats/rules.rs"]
mod rules;
#[path = "qemu_reasons/runs.rs"]
mod runs;
mod tally;
#[allow(dead_code)]
#[path = "qemu_formats/vdi.rs"]
mod vdi;
#[path = "qemu_formats/vhdx.rs"]
mod vhdx;
#[allow(dead_code)]
#[path = "qemu_formats/vhdx_damage.rs"]
mod vhdx_damage;
#[allow(dead_code)]
#[path = "qemu_formats/vhdx_writer.rs"]
mod vhdx_writer;
#[allow(dead_code)]
#[path = "qemu_formats/vmdk.rs"]
mod vmdk;
#[allow(dead_code)]
#[path = "qemu_formats/vmdk_damage.rs"]
mod vmdk_damage;
#[allow(dead_code)]
#[path = "qemu_formats/vmdk_extents.rs"]
mod vmdk_extents;
#[allow(dead_code)]
#[path = "qemu_formats/vmdk_writer.rs"]
mod vmdk_writer;
#[allow(dead_code)]
#[path = "qemu_formats/vpc.rs"]
mod vpc;
#[allow(dead_code)]
#[path = "qemu_formats/vpc_writer.rs"]
mod vpc_writer;

use std::collections::BTreeSet;
use std::path::Path;

use images::Case;
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::internal::differential::reason::{Comparison, PAIRS, ReasonClass, class_of, compare};
use qemu::Checked;
use runs::{COMMANDS, Runs};
use tally::Tally;

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
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    case.write(&path)?;
    let mut tally = Tally::default();
    let Some(command) = runs::affordable(case.command, case.format, &path) else {
        tally.add("images that take qemu-img too long", 1);
        return Ok(tally);
    };
    let Some(runs) = Runs::on_image((command, case.form), case.format, &path)? else {
        tally.add("images that we accept", 1);
        return Ok(tally);
    };
    if runs.theirs.succeeded() {
        // `tests/qemu_hostile.rs` and `tests/qemu_formats.rs` compare the decisions.
        tally.add("images that only we refuse", 1);
    } else if runs.theirs.ended_by_signal() {
        // `tests/qemu_formats.rs` names the images on which qemu-img divides by zero or aborts.
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
    if !qemu::tools_are_there("failures_on_damaged_images_have_the_same_reason") {
        return;
    }
    let tally = qemu::judge_all(&images::cases(), || (), |(), case| judge_image(case));
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
    let named = PAIRS.iter().map(|pair| (pair.reason.to_string(), 1));
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
fn judge_file(dir: &Path, case: &files::Case) -> Checked<Tally> {
    let mut tally = Tally::default();
    let runs = case.run(dir)?;
    let failed = |run: &runs::Run| !run.succeeded() && !run.ended_by_signal();
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
    if !qemu::tools_are_there("failures_on_files_and_command_lines_have_the_same_reason") {
        return;
    }
    let dir = files::Folder::new();
    let cases = files::cases();
    let tally = qemu::judge_all(&cases, || (), |(), case| judge_file(dir.path(), case));
    let classes: BTreeSet<_> = cases.iter().map(|case| case.class).collect();
    // QEMU does not name the signature of a VHDX file.
    let signature = PAIRS.iter().find(|pair| pair.our_phrase.contains("vhdxfile")).unwrap();
    let classes = classes.into_iter().map(|class| (class.name(), 1));
    let bounds: Vec<_> = classes.chain([(signature.reason, 8)]).collect();
    tally.assert_at_least(&bounds);
}
