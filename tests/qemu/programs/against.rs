//! QEMU in the loop finds faults that no oracle finds: each fault is planted in our walker, all other findings are set
//! aside, and QEMU's answers differ, with a fingerprint of their own.

use std::os::unix::fs::PermissionsExt;
use test_support::prelude::*;

use qcowfuzz::harness::against::qemu_io::{CostlyComparisons, Qemu, QemuEngine};
use qcowfuzz::harness::engine::CheckCounts;
use qcowfuzz::harness::engines::image_program::ImageProgram;
use qcowfuzz::programs::generate::generate_writes;
use small_writer::WriterFault;

use test_support::faulty::{Fault, comparable, first_finding, program};

const FAULTS: [(Fault, &str); 7] = [
    (Fault::LostData, "qemu: allocation, allocated → not allocated"),
    (Fault::Displaced, "qemu: map: offset, normal → normal"),
    (Fault::Longer, "qemu: size, QEMU's → larger"),
    (Fault::OtherByte, "qemu: data, normal → other bytes"),
    (Fault::Refuses, "qemu: open, opened → refused (planted)"),
    (Fault::FailedWalk, "qemu: walk, an answer → an error (planted)"),
    (Fault::FailedReads, "qemu: data, an answer → an error"),
];

fn qemu() -> Option<Qemu> {
    qemu::tools().map(|()| Qemu::start(CostlyComparisons::Always).unwrap())
}

/// Returns the first finding of QEMU in a program, with all findings of the oracles set aside.
fn found(implementation: &Implementation, qemu: &Qemu, input: &[u8]) -> Option<String> {
    let both = |known| implementation.clone().knowing(known).against(qemu);
    first_finding(both, TargetKind::MapExtents, input, "qemu: ")
}

#[test]
fn qemu_finds_each_planted_fault_by_its_own_fingerprint() {
    let Some(qemu) = qemu() else { return };
    let input = program("");
    assert_eq!(found(&Implementation::our_walker(), &qemu, &input), None);
    for (fault, fingerprint) in FAULTS {
        let found = found(&Changed::writer(fault).into(), &qemu, &input);
        assert_eq!(found.as_deref(), Some(fingerprint), "{fault:?}");
    }
}

#[test]
fn qemu_agrees_about_generated_programs() {
    let Some(qemu) = qemu() else { return };
    let both = small_writer::implementation(None).against(&qemu);
    for kind in [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::Writes] {
        let mut target = kind.create(&both, FileNames::default(), no_observer());
        let (mut compared, mut not_compared) = (0, 0);
        for rng_seed in 0..150 {
            let program = match kind {
                TargetKind::Writes => comparable(generate_writes(rng_seed, 24)),
                _ => generate_any(rng_seed, 24),
            };
            match target.run(&program.encode(), Checks::AtCheckpoints) {
                Ok(outcome) => {
                    compared += outcome.second.compared;
                    not_compared += outcome.second.not_compared;
                }
                Err(failure) => panic!("{}\n{program}", failure.violation),
            }
        }
        assert!(compared >= 150 && not_compared * 10 < compared, "{compared} {not_compared}");
    }
}

/// Returns the verdict of qemu-img check on the file that our writer leaves with a fault.
fn checked(fault: Option<WriterFault>, qemu: &Qemu) -> Result<bool, String> {
    let program = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 rng_seed=7 \
                   blocks=append table=append tolerance=0\n\
                   write at=start+1 clusters=2\nsync kind=flush choice=0\n\
                   write at=start+20 clusters=2\n";
    let walker = WritingWalker::default();
    let walker = fault.into_iter().fold(walker, WritingWalker::with_fault);
    let mut target = TargetKind::Writes.judging(walker);
    let ran = target.run(&assemble(program).unwrap().encode(), Checks::AtCheckpoints);
    assert_eq!(ran.is_err(), fault.is_some());
    let both = Implementation::our_walker().against(qemu);
    let mut second = both.second_opinion(&no_observer()).unwrap();
    second.begin_run(0);
    second.judge_left(target.written().unwrap()).map_err(|found| found.fingerprint())
}

#[test]
fn qemu_checks_the_file_that_a_writer_leaves() {
    let Some(qemu) = qemu() else { return };
    assert_eq!(checked(None, &qemu), Ok(true));
    let errors = Err("qemu: check, no errors → errors".to_string());
    assert_eq!(checked(Some(WriterFault::CountNotRaised), &qemu), errors);
}

/// Runs the command in `dir`, with `bin` in front of the programs' folders.
fn command(dir: &Path, bin: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).args(arguments).current_dir(dir).stdin(Stdio::null());
    command.output().unwrap()
}

/// Writes an executable script.
fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A qemu-io that dies when it opens an image.
const DYING: &str = "[ \"$1\" = --version ] && { echo qemu-io version 10.0.2; exit; }\n\
                     printf 'qemu-io> '\n\
                     while read -r line; do\n\
                     case \"$line\" in *json:*) kill -SEGV $$ ;; esac\n\
                     printf 'qemu-io> '\n\
                     done\n";

#[test]
fn the_death_of_qemu_is_a_finding_that_all_commands_know() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    script(&dir.join("qemu-io"), DYING);
    script(&dir.join("qemu-img"), "echo qemu-img version 10.0.2\n");
    let run = |arguments: &[&str]| command(dir, dir, arguments);
    let fingerprint = "qemu: end, an answer → signal: 11 (SIGSEGV)";
    let fuzz = ["fuzz", "--against=qemu", "--jobs=1", "--runs=50", "--until-found", "--json"];
    let ran = run(&fuzz);
    assert_eq!(ran.status.code(), Some(1), "{}{}", text(&ran.stdout), text(&ran.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let bug = &summary["found"][0];
    assert_eq!(bug["fingerprint"], fingerprint);
    let artifact = bug["shortest"].as_str().unwrap();
    let ran = run(&["replay", "--against=qemu", artifact]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stdout).starts_with(fingerprint), "{}", text(&ran.stdout));
    assert_eq!(run(&["replay", artifact]).status.code(), Some(0));
    let ran = run(&["minimize", "--against=qemu", artifact, "-o", "small"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(length(&dir.join("small")) <= length(&dir.join(artifact)));
    assert_eq!(run(&["replay", "--against=qemu", "small"]).status.code(), Some(1));
    let ran = run(&["triage", "--against=qemu", "artifacts/map_extents"]);
    assert!(text(&ran.stdout).contains(fingerprint), "{}", text(&ran.stdout));
    let known = format!("[[finding]]\nfingerprint = \"{fingerprint}\"\nreason = \"planted\"\n");
    fs::write(dir.join("known.toml"), known).unwrap();
    let ran = run(&["replay", "--against=qemu", "--known=known.toml", "small"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stdout));
}

#[test]
fn without_qemu_there_is_one_line_and_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("input"), [0; 20]).unwrap();
    script(&dir.join("qemu-io"), "exit 3\n");
    for arguments in [&["fuzz", "--runs=1"][..], &["replay", "input"]] {
        let ran = command(dir, dir, &[arguments, &["--against=qemu"]].concat());
        assert_eq!(ran.status.code(), Some(2));
        let line = text(&ran.stderr);
        let expected = "qcowfuzz: --against qemu: qemu-io does not start: ";
        assert!(line.starts_with(expected) && line.lines().count() == 1, "{line}");
    }
    let refused = command(dir, dir, &["info", "input", "--against=qemu"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("runs no inputs"), "{}", text(&refused.stderr));
}

/// Images with snapshots, bitmaps, a data file and a layer below.
const REPORTED: [&str; 2] = [
    "image version=3 cluster_bits=16 refcount_order=4 features=none size=9<<16+0 rng_seed=0 blocks=append \
     table=append tolerance=0\nwrite at=start+0 clusters=2\nsnapshot\nsnapshot\nwrite at=start+1 clusters=1\n\
     bitmap granularity=16 flags=none name=1\noverlay version=3 cluster_bits=12 refcount_order=4 features=none \
     data_in=file size=same\nwrite at=start+2 clusters=1\n",
    "image version=3 cluster_bits=16 refcount_order=4 features=none size=9<<16+0 rng_seed=0 blocks=append \
     table=append tolerance=0\nwrite at=start+0 clusters=2\nsnapshot\nsnapshot\nwrite at=start+1 clusters=1\n\
     bitmap granularity=16 flags=none name=1\n",
];

/// Returns both reports of an engine.
fn reports(engine: &mut dyn Engine, chain: &Chain) -> [ImageReport; 2] {
    let mut disk = engine.open(chain).unwrap();
    [ReportKind::Info, ReportKind::Check].map(|kind| disk.report(kind).unwrap())
}

#[test]
fn qemu_and_a_program_report_about_images_as_our_walker_does() {
    let Some(()) = qemu::tools() else { return };
    let program = Implementation::from(ImageProgram::start("qemu-img").unwrap());
    let mut program = program.engine(&no_observer());
    let mut qemu = QemuEngine::default();
    let mut same = |chain: &Chain| {
        let ours = reports(&mut Walker::default(), chain);
        assert_eq!(reports(&mut qemu, chain), ours);
        assert_eq!(reports(&mut *program, chain), ours);
        ours
    };
    let mut harness = Harness::new(Walker::default());
    for text in REPORTED {
        let sound = harness.build(&assemble(text).unwrap().encode()).clone();
        let [info, check] = same(&Chain::new(harness.images()));
        assert_eq!(check, ImageReport::Check(CheckCounts::default()));
        let ImageReport::Info(info) = info else { panic!("{info:?}") };
        let is_overlay = text.contains("overlay");
        assert_eq!(info.snapshots, Some(if is_overlay { 0 } else { 2 }));
        assert_eq!(info.chain.map(|names| names.len()), Some(usize::from(is_overlay)));
        if is_overlay {
            continue;
        }
        // Another count for the cluster of the header: an error or a leak.
        let table = HostOffset::new(sound.number(HostOffset::new(48), 8));
        let block = HostOffset::new(sound.number(table, 8));
        for (count, errors, leaks) in [(0u16, 1, 0), (2, 0, 1)] {
            let mut damaged = sound.clone();
            damaged.overwrite(block, &count.to_be_bytes());
            let [_, check] = same(&Chain::alone(damaged));
            assert_eq!(check, ImageReport::Check(CheckCounts { errors, leaks }));
        }
    }
}
