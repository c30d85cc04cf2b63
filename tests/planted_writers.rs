//! The oracles of writers can fail: a small writer with one planted fault each writes to the images of generated
//! programs. Without a fault, it passes.

#[allow(dead_code)]
mod qemu;
mod writers;

use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::harness::chain::ChainFolder;
use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::{Checks, Pipeline, Walker};
use qcowfuzz::images::Limits;
use qcowfuzz::internal::harness::writing::{WriteRequest, WriterJudge};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::programs::generate::generate_any;
use qcowfuzz::programs::text::assemble;
use qcowfuzz::programs::{Operation, Program};
use writers::{FAULTS, requests};

/// The number of programs whose images qemu-img checks.
const QEMU_PROGRAMS: u64 = 120;
/// The most bytes of the files that qemu-img checks.
const MAX_FOLDER_BYTES: u64 = 64 << 20;
/// The opcode of an overlay.
const OVERLAY: u8 = 14;
/// The number of programs.
const PROGRAMS: u64 = 91 * 12;

/// Writes of this length outgrow the refcount table of an image with the smallest clusters and the widest counts.
const LONG_WRITE_BYTES: u32 = 3 << 20;
/// The number of programs with such a write, behind the others.
const LONG_WRITES: u64 = 4;

/// Returns a program whose image is written to the end of its refcount table.
fn program_before_a_long_write(rng_seed: u64) -> Program {
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=6 features=none size=8<<20+0 \
         rng_seed={rng_seed} blocks=append table=append tolerance=0\nwrite at=start+{rng_seed} clusters=9"
    );
    assemble(&text).unwrap()
}

/// Generates a program. The writer appends to its file, which must not be as long as possible. Every third program has
/// an overlay before its last operations.
fn program(rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 12);
    program.operations.retain(|operation| !matches!(operation, Operation::ReserveFar { .. }));
    if rng_seed.is_multiple_of(3) {
        let mut record = Entropy::new(rng_seed).next_u64().to_le_bytes();
        record[0] = OVERLAY;
        let at = program.operations.len() * 2 / 3;
        program.operations.splice(at..at, Operation::decode(&record));
    }
    program
}

/// Has a writer change the last image of a program. Returns the fingerprint of the violation.
fn judge(judge: &mut WriterJudge, writer: &mut Walker, rng_seed: u64) -> Option<String> {
    let is_long = rng_seed >= PROGRAMS;
    let program = if is_long { program_before_a_long_write(rng_seed) } else { program(rng_seed) };
    let mut pipeline = Pipeline::default();
    pipeline.load(&program.encode(), &writer.write_claims());
    let mut entropy = Entropy::new(rng_seed);
    let run = pipeline.run(Limits::WALKED, Checks::AtCheckpoints, &(), |case| {
        if !case.in_full {
            return Ok(());
        }
        let long = WriteRequest::Write { guest: GuestOffset::ZERO, length_bytes: LONG_WRITE_BYTES };
        let drawn = requests(case, &mut entropy);
        let requests = if is_long { vec![long] } else { drawn };
        judge.judge(writer, case, &requests)
    });
    run.err().map(|failure| failure.violation.fingerprint())
}

#[test]
fn a_writer_without_a_fault_passes() {
    let (mut writer_judge, mut writer) = (WriterJudge::default(), Walker::default());
    for rng_seed in 0..PROGRAMS + LONG_WRITES {
        let found = judge(&mut writer_judge, &mut writer, rng_seed);
        assert_eq!(found, None, "program {rng_seed}");
    }
}

/// The lowest number of programs in which a fault is found. A single one could be chance.
const LEAST: usize = 3;
/// The number of violations after which a fault counts as found.
const ENOUGH: usize = 8;

#[test]
fn each_planted_fault_is_found() {
    let mut writer_judge = WriterJudge::default();
    for planted in FAULTS {
        let mut writer = Walker::default().with_fault(planted.fault);
        let seeds = (0..PROGRAMS + LONG_WRITES).rev();
        let found = seeds.filter_map(|rng_seed| judge(&mut writer_judge, &mut writer, rng_seed));
        let found: Vec<String> = found.take(ENOUGH).collect();
        assert!(found.len() >= LEAST, "{}: {found:?}", planted.fault.name());
        let is_expected =
            |name: &&String| planted.found_by.iter().any(|start| name.starts_with(start));
        assert_eq!(found.iter().find(|name| !is_expected(name)), None, "{}", planted.fault.name());
    }
}

#[test]
fn qemu_finds_no_fault_in_written_images() {
    if !qemu::tools_are_there("qemu_finds_no_fault_in_written_images") {
        return;
    }
    let (mut writer_judge, mut writer) = (WriterJudge::default(), Walker::default());
    let dir = tempfile::tempdir().unwrap();
    let mut folder = ChainFolder::new(dir.path(), MAX_FOLDER_BYTES);
    let mut checked = 0;
    for rng_seed in 0..QEMU_PROGRAMS {
        assert_eq!(judge(&mut writer_judge, &mut writer, rng_seed), None);
        let written = writer_judge.written().unwrap();
        // Some lower layers are longer than a file system allows.
        let Ok(path) = written.write_to(&mut folder) else { continue };
        let output = qemu::run(
            "qemu-img",
            &["check".as_ref(), "-f".as_ref(), "qcow2".as_ref(), path.as_ref()],
        );
        let output = output.unwrap();
        assert!(output.status.success(), "program {rng_seed}: {output:?}");
        checked += 1;
    }
    assert!(checked >= QEMU_PROGRAMS * 9 / 10, "{checked} images");
}
