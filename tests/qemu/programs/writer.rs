//! QEMU is the reference implementation of writing: the target `writes` finds nothing in it, with power cuts and
//! without. The harness knows the order of its writes and flushes: cuts find a flush that QEMU does not make.

use test_support::prelude::*;

use qcowfuzz::harness::against::qemu_io::QemuEngine;
use qcowfuzz::harness::engine::questions::QuestionKind;
use qcowfuzz::internal::programs::operand::DataIn;
use qcowfuzz::programs::generate::generate_writes;

/// The number of generated programs.
const PROGRAMS: u64 = 300;
/// The number of their operations before the first request.
const OPERATIONS: usize = 10;
/// The number of those that get a data file, behind them. Half of the files are raw images of the disk.
const DATA_FILES: u64 = 100;
/// The least number of cuts in them. Fewer would prove little.
const LEAST_CUTS: usize = 30;
/// The least number of requests about snapshots in them.
const LEAST_SNAPSHOTS: usize = 30;
/// The programs whose requests are about bitmaps.
const BITMAP_SEEDS: &str = "corpus/text/writes";

/// The result of a program: the fingerprint of the violation, if there is one. `None` if QEMU did not get the files:
/// they are too long for the file system, or the header has no room for what QEMU adds.
fn judged(target: &mut Harness, program: &Program) -> Option<Option<String>> {
    match target.run(&program.encode(), Checks::AtCheckpoints) {
        Ok(outcome) => {
            assert_eq!(outcome.refused, 0, "{outcome:?}");
            if outcome.unsupported {
                return None;
            }
            let unanswered = outcome.unanswered;
            assert!(!unanswered.has(QuestionKind::Flush), "{outcome:?}");
            (!unanswered.has(QuestionKind::Writing)).then_some(None)
        }
        Err(failure) => Some(Some(failure.violation.fingerprint())),
    }
}

#[test]
fn qemu_writes_without_a_fault() {
    let Some(()) = qemu::tools() else { return };
    let mut target = TargetKind::Writes.judging(QemuEngine::default());
    let (mut cuts, mut snapshots) = (0, 0);
    for number in 0..PROGRAMS {
        let program = generate_writes(number, OPERATIONS);
        let Some(found) = judged(&mut target, &program) else { continue };
        assert_eq!(found, None, "program {number}");
        let requests = target.pipeline().vm().requests();
        cuts += requests.iter().filter(|request| request.is_cut()).count();
        snapshots += requests.iter().filter(|request| request.is_about_snapshots()).count();
    }
    assert!(snapshots >= LEAST_SNAPSHOTS, "{snapshots} requests about snapshots");
    assert!(cuts >= LEAST_CUTS, "{cuts} cuts");
}

#[test]
fn qemu_keeps_bitmaps_up_to_date() {
    let Some(()) = qemu::tools() else { return };
    let mut target = TargetKind::Writes.judging(QemuEngine::default());
    let mut requests = 0;
    for seed in std::fs::read_dir(BITMAP_SEEDS).unwrap() {
        let path = seed.unwrap().path();
        let program = assemble(&std::fs::read_to_string(&path).unwrap()).unwrap();
        if !program.operations.iter().any(|it| it.name().contains("bitmap")) {
            continue;
        }
        assert_eq!(judged(&mut target, &program), Some(None), "{}", path.display());
        let made = target.pipeline().vm().requests();
        requests += made.iter().filter(|request| request.is_about_bitmaps()).count();
    }
    assert!(requests > 0);
}

/// Returns a generated program whose last layer has a data file.
fn with_data_file(number: u64) -> Program {
    let mut program = generate_writes(number, OPERATIONS);
    let data_in = if number.is_multiple_of(2) { DataIn::RawFile } else { DataIn::File };
    program.prologue.data_in = data_in;
    for operation in &mut program.operations {
        if let Operation::Overlay { data_in: of_overlay, .. } = operation {
            *of_overlay = data_in;
        }
    }
    program
}

#[test]
fn qemu_writes_data_files_without_a_fault() {
    let Some(()) = qemu::tools() else { return };
    let mut target = TargetKind::Writes.judging(QemuEngine::default());
    let mut files = 0;
    for number in 0..DATA_FILES {
        let Some(found) = judged(&mut target, &with_data_file(number)) else { continue };
        assert_eq!(found, None, "program {number}");
        let pipeline = target.pipeline();
        let is_written = !pipeline.vm().requests().is_empty();
        files += u64::from(is_written && pipeline.images().top().has_data_file);
    }
    assert!(files >= DATA_FILES / 2, "{files} data files");
}

/// The number of programs in which QEMU and another writer take turns.
const IN_TURN: u64 = 24;

#[test]
fn qemu_and_another_writer_take_turns() {
    let Some(()) = qemu::tools() else { return };
    let [qemu, small] = [QemuEngine::under_test(), small_writer::implementation(None)];
    for both in [small.clone().in_turn_with(qemu.clone()), qemu.in_turn_with(small)] {
        let mut target = TargetKind::Writes.create(&both, FileNames::default(), no_observer());
        for number in 0..IN_TURN {
            let text = format!(
                "image version=3 cluster_bits=12 refcount_order=4 features=none size=40<<12+0 rng_seed=0 \
                 blocks=append table=append tolerance=0\nwrite_at at=start+0 inside=9 length=20<<9\n\
                 sync kind=flush choice=0\nzero_at at=start+2 inside=0 length=8<<9\n\
                 crash kind={} choice={number}\ndiscard at=start+1 clusters=3\n\
                 write_at at=start+5 inside=1 length=9<<9\ncheckpoint\n\
                 write_at at=start+3 inside=7 length=30<<9\ncheckpoint\nresize size=80<<12+0\n\
                 write at=start+2 clusters=1",
                ["process", "power"][(number % 2) as usize]
            );
            assert_eq!(judged(&mut target, &assemble(&text).unwrap()), Some(None), "{number}");
        }
    }
}

/// QEMU, which says that it has flushed, and has not.
#[derive(Clone)]
struct WithoutFlush;

impl Change for WithoutFlush {
    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        match request {
            Request::Write { .. } => disk.request(request),
            Request::Flush => Ok(()),
            _ => Err(EngineError::NoAnswer),
        }
    }
}

#[test]
fn a_flush_that_qemu_does_not_make_is_found() {
    let Some(()) = qemu::tools() else { return };
    let program = |data_in: &str, choice: u16| {
        let text = format!(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=9<<12+0 rng_seed=0 \
             blocks=append table=append tolerance=0 data_in={data_in}\n\
             write at=start+0 clusters=2\nwrite_at at=start+0 inside=0 length=4<<9\n\
             sync kind=flush choice=0\nsync kind=cut choice={choice}"
        );
        assemble(&text).unwrap()
    };
    let mut sound = TargetKind::Writes.judging(QemuEngine::default());
    let engine = Changed { change: WithoutFlush, engine: QemuEngine::default() };
    let mut planted = TargetKind::Writes.judging(engine);
    for data_in in ["image", "file", "raw_file"] {
        let mut lost = 0;
        for choice in 0..12 {
            let program = program(data_in, choice);
            assert_eq!(judged(&mut sound, &program), Some(None), "{data_in}: choice {choice}");
            let found = judged(&mut planted, &program).unwrap();
            let is_lost = |it: String| it.starts_with("power_cut: a flushed write, ");
            lost += usize::from(found.is_some_and(is_lost));
        }
        assert!(lost > 0, "{data_in}");
    }
}

/// The excuse of QEMU's adapter. If this fails, QEMU has mended it, and the adapter can resize all disks.
#[test]
fn qemu_shows_old_bytes_of_a_cluster_that_was_cut() {
    let Some(()) = qemu::tools() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let create = ["create", "-q", "-f", "qcow2"];
    let created = Command::new("qemu-img").args(create).arg(file.path()).arg("128K").status();
    assert!(created.unwrap().success());
    let commands = ["write -P 170 0 64k", "truncate 32k", "truncate 64k", "read -P 170 32k 32k"];
    let arguments = commands.iter().flat_map(|command| ["-c", *command]);
    let done = Command::new("qemu-io").args(arguments).arg(file.path()).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(out.contains("read 32768/32768") && !out.contains("verification failed"), "{out}");
}
