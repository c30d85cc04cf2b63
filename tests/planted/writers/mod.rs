//! The target `writes` can fail: the small writer with one planted fault each writes to the images of generated
//! programs. Without a fault, it passes.

mod altered;
mod contents;
mod failing;
mod hostile;
mod in_flight;
mod in_turn;
mod meddling;
mod not_given;

use qcowfuzz::harness::engine::questions::QuestionKind;
use qcowfuzz::harness::files::chain::ChainFolder;
use qcowfuzz::internal::programs::operand::{DataIn, SyncKind};
use qcowfuzz::programs::generate::generate_writes;
use small_writer::WriterFault;
use test_support::prelude::*;

/// The number of generated programs: each cluster size with each width of refcounts, several times.
const PROGRAMS: u64 = 91 * 6;
/// The number of operations before the first request.
const OPERATIONS: usize = 12;
/// The number of programs with a long write, behind the others.
const LONG_WRITES: u64 = 4;
/// The number of programs with cuts while a snapshot is taken.
const CUT_SNAPSHOTS: u64 = 16;
/// The number of programs that write a disk again and again.
const REWRITTEN: u64 = 2;
/// The number of generated programs with a data file, half of which are raw images of the disk.
const DATA_FILES: u64 = 91;
/// The number of programs whose images qemu-img checks.
const QEMU_PROGRAMS: u64 = 120;
/// The number of those with a data file.
const QEMU_DATA_FILES: u64 = 60;
/// The most bytes of the files that qemu-img checks.
const MAX_FOLDER_BYTES: u64 = 64 << 20;
/// The number of cuts after a change that is not flushed.
const LOST_CHANGES: u64 = 16;
/// The number of programs in which an operation on a file fails.
const FILE_ERRORS: u64 = 60;
/// The number of programs whose image lies on a device.
const DEVICES: u64 = 9;
/// The number of programs in which the engine crashes.
const CRASHES: u64 = 16;
/// The number of programs with a cut after a discard.
const DISCARDS: u64 = 16;
/// The opcode of an overlay.
const OVERLAY: u8 = 14;

/// Returns the program with a number. Every third one has an overlay before its requests. The last ones write more than
/// an image with the smallest clusters and the widest counts can hold in its first refcount table.
fn program(number: u64) -> Program {
    if number >= PROGRAMS {
        let image = format!("cluster_bits=9 refcount_order=6 size=8<<20+0 rng_seed={number}");
        let operations = "reserve gap=250<<4\nwrite at=start+9 clusters=9\n\
                          write_at at=start+0 inside=0 length=20<<14";
        return lines::program(&image, operations);
    }
    let mut program = generate_writes(number, OPERATIONS);
    if number.is_multiple_of(3) && program.operations.len() >= OPERATIONS {
        let mut record = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        record[0] = OVERLAY;
        program
            .operations
            .splice(OPERATIONS * 2 / 3..OPERATIONS * 2 / 3, Operation::decode(&record));
    }
    program
}

/// Returns the same program, whose last layer has a data file.
fn with_data_file(number: u64) -> Program {
    let mut program = program(number);
    let data_in = if number.is_multiple_of(2) { DataIn::RawFile } else { DataIn::File };
    program.prologue.data_in = data_in;
    for operation in &mut program.operations {
        if let Operation::Overlay { data_in: of_overlay, .. } = operation {
            *of_overlay = data_in;
        }
    }
    program
}

/// Returns a program with four cuts of the power after a snapshot that is not flushed.
fn cut_snapshot(number: u64) -> Program {
    let cuts =
        (4 * number..4 * number + 4).map(|choice| format!("sync kind=cut choice={choice}\n"));
    let operations = format!(
        "write at=start+0 clusters=1\nsync kind=flush choice=0\nsnapshot\n{}",
        cuts.collect::<String>()
    );
    lines::program("cluster_bits=9 size=9<<9+0", &operations)
}

/// Returns a program with a cut of the power after a discard that is not flushed.
fn cut_discard(number: u64) -> Program {
    let operations = format!(
        "write at=start+0 clusters=4\nsync kind=flush choice=0\ndiscard at=start+1 clusters=2\n\
         sync kind=cut choice={number}\n"
    );
    lines::program("cluster_bits=9 size=9<<9+0", &operations)
}

/// Returns a program that writes a small disk and discards it again and again.
fn rewritten(number: u64) -> Program {
    let again = "write_at at=start+0 inside=0 length=4<<9\ndiscard at=start+0 clusters=4\n";
    let image = format!("cluster_bits=9 size=4<<9+0 rng_seed={number}");
    lines::program(&image, &again.repeat(12))
}

/// Returns a program that makes a disk with a raw data file larger, or smaller.
fn resized_data_file(clusters: u64) -> Program {
    let operations = format!(
        "write at=start+0 clusters=9\nwrite_at at=start+0 inside=0 length=0<<0\nresize size={clusters}<<12+0\n"
    );
    lines::program("cluster_bits=12 size=9<<12+0 data_in=raw_file", &operations)
}

/// Returns all programs: those that resize a raw data file, those with a number, those with a data file, those with a
/// cut snapshot, those that write a disk again and again, then the seeds.
fn programs() -> Vec<Program> {
    let mut programs: Vec<Program> = [5, 14].map(resized_data_file).into();
    programs.extend((0..PROGRAMS + LONG_WRITES).map(program));
    programs.extend((0..DATA_FILES).map(with_data_file));
    programs.extend((0..CUT_SNAPSHOTS).map(cut_snapshot));
    programs.extend((0..REWRITTEN).map(rewritten));
    // The target's seeds, which follow: requests that are rare in generated programs.
    programs.extend(corpus::inputs("writes").iter().map(|seed| Program::decode(seed)));
    programs
}

/// Creates the target with an engine under test whose known findings are others than its own.
fn knowing(engine: impl Into<Implementation>, known: KnownFindings) -> Harness {
    let implementation = engine.into().knowing(known);
    TargetKind::Writes.create(&implementation, FileNames::default(), no_observer())
}

/// Runs the program with a number. Returns the fingerprint of the violation.
fn found(target: &mut Harness, number: u64) -> Option<String> {
    found_in(target, &program(number))
}

/// Runs a program. Returns the fingerprint of the violation.
fn found_in(target: &mut Harness, program: &Program) -> Option<String> {
    let run = target.run(&program.encode(), Checks::AtCheckpoints);
    run.err().map(|failure| failure.violation.fingerprint())
}

#[test]
fn a_writer_without_a_fault_passes() {
    let mut target = TargetKind::Writes.judging(WritingWalker::default());
    for (number, program) in programs().iter().enumerate() {
        assert_eq!(found_in(&mut target, program), None, "program {number}");
    }
}

/// The beginnings of the fingerprints by which a fault is found.
fn found_by(fault: WriterFault) -> &'static [&'static str] {
    use WriterFault::*;
    match fault {
        CopiedIgnored => &["written: a snapshot, ", "written: the rest, "],
        SharedInside => &["written: a snapshot, the bytes of the guest → "],
        SharedTable | CompressedNeighbour | SnapshotKeepsCopied => &["refcounts: ", "written: "],
        CountNotRaised | CountNotLowered | TableNotStored => &["refcounts: "],
        FreedNotUsed => &["written: length of the file, bounded → longer"],
        CopiedNotSet => &["refcounts: data, copied → not copied"],
        HeadLost | TailLost | BelowLost => &["written: the rest, the bytes of the guest → zeros"],
        ZerosPastEnd => &["written: the rest, ", "written: a write, "],
        DiscardIgnored | GrownTail => &["written: zeros, the bytes of the guest → other bytes"],
        DiscardShowsBelow => &["written: zeros, ", "raw_data_file: zeros in the file, "],
        ZeroFlagStays => &["written: a write, the bytes of the guest → zeros"],
        AssumedNeighbours | DataFileAtEnd => &["written: "],
        SizeNotStored => &["written: ", "model: virtual size, "],
        DirtyStays => &["written: dirty bit, clear → set"],
        DirtyWhileOpen => &["power_cut: dirty bit, clear → set", "killed: dirty bit, clear → set"],
        CorruptStays => &["written: corrupt bit, clear → set"],
        LazyBitLost => &["written: lazy refcounts, kept → changed"],
        OpenWrites => &[
            "written: file without a request, unchanged → changed",
            "written: lazy refcounts, kept → changed",
        ],
        MiddleWrong => &["written: a write, the bytes of the guest → other bytes"],
        MiddleMissing => &["written: a write, ", "written: extent of a write, "],
        EndMissing => &["written: a write, "],
        BlockNotCounted => &["refcounts: refcount block, the references → fewer"],
        EntryBeforeData | FreedEarly => &["power_cut: ", "killed: "],
        CountedLate => &["killed: data, the references → fewer", "power_cut: "],
        // A cluster that a snapshot shares is freed, and used again.
        SnapshotNotCounted => &["refcounts: ", "written: "],
        SnapshotTableLate => &["power_cut: "],
        AppliedTableShared => &["refcounts: L1 table, a cluster of its own → an overlap"],
        AppliedSizeIgnored => &["model: virtual size, ", "written: "],
        DeletedEarly => &["power_cut: ", "killed: "],
        CopiedStaysCleared => &["refcounts: "],
        CreatedNotCounted => &["refcounts: L1 table, the references → fewer"],
        CloseTorn => &["killed: ", "power_cut: "],
        BitmapMissesZeros | BitmapMissesEnd => &["bitmaps: the bits of a change, ones → zeros"],
        BitmapLate => &["bitmaps: the bits of a change, ", "bitmaps: other bits, "],
        BitmapAlwaysEnabled | BitmapNotCleared => &["bitmaps: other bits, zeros → ones"],
        BitmapNotResized => &["refcounts: image, readable → an error", "bitmaps: "],
        // Bits that are new in the session have clusters of their own.
        BitmapsDropped => {
            &["bitmaps: bitmaps, kept → dropped", "refcounts: unreferenced cluster, free → counted"]
        }
        DataFileNotCleared => &["written: the rest, ", "written: zeros, "],
        DataFileNotFlushed => &["power_cut: "],
        RawDataFileStale => &["raw_data_file: zeros in the file, "],
        RawDataFileNotResized => &["raw_data_file: length, "],
        NeighbourStored => &["written: kind, ", "written: depth, "],
        SnapshotNotDeleted => &["written: snapshots, those of the requests → more"],
        SnapshotRenamed => &["written: snapshot's "],
        BackingFormatLost => &["written: backing file's format, kept → changed"],
        DataFileGrows => &["written: data file without a request, ", "raw_data_file: length, "],
        BitmapNotAdded => &["bitmaps: ", "written: change_bitmap, "],
        BitmapTooFine => &["bitmaps: granularity and flags, "],
        BitmapStaysInUse => &["bitmaps: bitmaps, kept → in use"],
        BitmapNotRemoved => &["bitmaps: directory, "],
        BitmapStaysDisabled => &["bitmaps: "],
        BitmapForgets => &["bitmaps: bits from before, ", "bitmaps: the bits of a change, "],
        FlushIgnored => &["power_cut: a flushed write, ", "power_cut: flushed zeros, "],
        OldBytesStay => &["written: ", "refcounts: ", "file_error: "],
        LeakFreedTooFar => &["refcounts: ", "power_cut: ", "killed: ", "written: "],
        _ => found_in_new_image(fault),
    }
}

/// Returns the same for a fault in the properties of a new image.
fn found_in_new_image(fault: WriterFault) -> &'static [&'static str] {
    use WriterFault::*;
    match fault {
        CreatedSizeRounded => &["written: size of a new image, as asked → otherwise"],
        CreatedWidthIgnored => &["written: refcount width of a new image, as asked → otherwise"],
        CreatedVersionIgnored => &["written: version of a new image, as asked → otherwise"],
        CreatedClusterIgnored => &["written: cluster size of a new image, as asked → otherwise"],
        CreatedCompressionIgnored => {
            &["written: compression type of a new image, as asked → otherwise"]
        }
        CreatedEntriesExtended => &["written: L2 entries of a new image, as asked → otherwise"],
        CreatedBacked => &["written: backing file of a new image, as asked → otherwise"],
        _ => failing::found_by(fault),
    }
}

/// The lowest number of programs in which a fault is found. A single one could be chance.
const LEAST: usize = 2;

#[test]
fn each_planted_fault_is_found() {
    let mut with_cuts = programs();
    let on_devices: Vec<_> = (0..DEVICES).map(failing::on_device).collect();
    let in_flight = in_flight::programs();
    let mut with_errors = with_cuts.clone();
    with_cuts.extend((0..CRASHES).map(failing::with_crash).chain((0..DISCARDS).map(cut_discard)));
    with_errors.extend((0..FILE_ERRORS).map(failing::with_file_error));
    with_errors.extend((0..FILE_ERRORS).map(failing::with_failing_read));
    with_errors.extend((0..FILE_ERRORS).map(failing::with_shared_table));
    let without = |programs: &mut [Program], is_one: fn(&Operation) -> bool| {
        programs.iter_mut().for_each(|program| program.operations.retain(|it| !is_one(it)));
    };
    let mut with_both = with_errors.clone();
    with_both.extend((0..LOST_CHANGES).map(failing::flushed_again));
    without(&mut with_errors, is_cut);
    without(&mut with_cuts, is_error);
    let mut without_cuts = with_cuts.clone();
    without(&mut without_cuts, is_cut);
    for fault in WriterFault::ALL {
        let by = found_by(*fault);
        // A cut also shows most faults that an oracle finds in the closed file, and hides that this oracle finds them.
        // The same holds for an error of the file.
        let programs = match by.first() {
            _ if matches!(
                fault,
                WriterFault::FlushErrorIgnored | WriterFault::FailedFlushForgotten
            ) =>
            {
                &with_both
            }
            _ if *fault == WriterFault::OldBytesStay => &on_devices,
            _ if !in_flight::found_by(*fault).is_empty() => &in_flight,
            Some(name) if name.starts_with("file_error: ") => &with_errors,
            _ if by.iter().any(|name| is_of_cut(name)) => &with_cuts,
            _ => &without_cuts,
        };
        let mut target = TargetKind::Writes.judging(WritingWalker::default().with_fault(*fault));
        let found = programs.iter().rev().filter_map(|program| found_in(&mut target, program));
        let found: Vec<String> = found.take(LEAST).collect();
        assert!(found.len() >= LEAST, "{}: {found:?}", fault.name());
        let is_expected = |name: &&String| by.iter().any(|start| name.starts_with(start));
        assert_eq!(found.iter().find(|name| !is_expected(name)), None, "{}", fault.name());
    }
}

fn is_error(operation: &Operation) -> bool {
    matches!(operation, Operation::FailFile { .. } | Operation::Device { .. })
}

fn is_cut(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Crash { .. } | Operation::Sync { kind: SyncKind::Cut | SyncKind::Kill, .. }
    )
}

/// Reports whether a fingerprint begins with the name of an oracle on files of cuts.
fn is_of_cut(name: &str) -> bool {
    name.starts_with("power_cut: ") || name.starts_with("killed: ")
}

/// A writer that cannot change the size of a disk.
#[derive(Clone)]
struct WithoutResize;

impl Change for WithoutResize {
    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        let (guest, length_bytes) = match *request {
            Request::Write { guest, bytes } => (guest, bytes.len() as u64),
            Request::WriteZeroes { guest, length_bytes }
            | Request::Discard { guest, length_bytes } => (guest, length_bytes),
            _ => return Err(EngineError::NoAnswer),
        };
        assert!(guest.get() + length_bytes <= disk.virtual_size_bytes());
        disk.request(request)
    }
}

#[test]
fn an_engine_that_lacks_a_request_gets_only_those_that_fit_its_disk() {
    let mut target = TargetKind::Writes.judging(Changed::writer(WithoutResize));
    let mut unanswered = 0;
    for number in 0..PROGRAMS {
        let run = target.run(&program(number).encode(), Checks::AtCheckpoints);
        let outcome = run.unwrap_or_else(|failure| panic!("{number}: {}", failure.violation));
        unanswered += u32::from(outcome.unanswered.has(QuestionKind::Resize));
    }
    assert!(unanswered > 10, "{unanswered}");
}

/// A later write over the whole disk hides the bits that a bitmap should have lost.
#[test]
fn a_check_after_each_request_finds_what_later_requests_hide() {
    let operations = "bitmap granularity=16 flags=auto name=4\n\
                      fill_bitmap index=0 entry=0 entries=1 fill=ones\nsync kind=flush choice=0\n\
                      fill_bitmap index=0 entry=0 entries=1 fill=zeroes\nwrite at=start+0 clusters=4\n";
    let program = lines::encoded("size=4<<16+0", operations);
    let walker = WritingWalker::default().with_fault(WriterFault::BitmapNotCleared);
    let mut target = TargetKind::Writes.judging(walker);
    for (checks, expected) in [
        (Checks::AtCheckpoints, None),
        (Checks::AfterEach, Some("bitmaps: other bits, zeros → ones")),
    ] {
        let found = target.run(&program, checks).err().map(|it| it.violation.fingerprint());
        assert_eq!(found.as_deref(), expected, "{checks:?}");
    }
}

/// After a cut, a raw data file has the zeros that were flushed before.
#[test]
fn stale_bytes_of_a_raw_data_file_are_found_after_a_cut() {
    let operations = "write at=start+0 clusters=4\nsync kind=flush choice=0\n\
                      zero at=start+0 clusters=2 keep=no\nsync kind=flush choice=0\nsync kind=cut choice=0\n";
    let program = lines::program("cluster_bits=9 size=9<<9+0 data_in=raw_file", operations);
    let walker = WritingWalker::default().with_fault(WriterFault::RawDataFileStale);
    let found = found_in(&mut TargetKind::Writes.judging(walker), &program);
    let expected = "power_cut: flushed zeros, the bytes of the guest → other bytes";
    assert_eq!(found.as_deref(), Some(expected));
}

/// Bits that reach the file when the image is closed are missing after a cut before.
#[test]
fn late_bits_of_bitmaps_are_found_after_a_cut() {
    let walker = WritingWalker::default().with_fault(WriterFault::BitmapLate);
    let mut target = TargetKind::Writes.judging(walker);
    let expected = [
        "power_cut: the bits of a change, ones → zeros",
        "killed: the bits of a change, ones → zeros",
    ];
    let found: Vec<_> =
        programs().iter().rev().filter_map(|program| found_in(&mut target, program)).collect();
    assert!(found.iter().any(|name| expected.contains(&name.as_str())), "{found:?}");
}

/// A later change of the same range that a cut loses takes no bit away that a flushed change has set.
#[test]
fn late_bits_of_a_flushed_change_are_found_behind_a_lost_change() {
    let walker = WritingWalker::default().with_fault(WriterFault::BitmapLate);
    let mut target = TargetKind::Writes.judging(walker);
    for choice in 0..LOST_CHANGES {
        let operations = format!(
            "bitmap granularity=9 flags=auto name=5\nsync kind=flush choice=0\nwrite at=start+0 clusters=4\n\
             sync kind=flush choice=0\nwrite at=start+0 clusters=4\nsync kind=cut choice={choice}\n"
        );
        let program = lines::program("cluster_bits=9 size=64<<9+0", &operations);
        let found = found_in(&mut target, &program);
        let expected = Some("power_cut: the bits of a change, ones → zeros");
        assert_eq!(found.as_deref(), expected, "choice {choice}");
    }
}

#[test]
fn known_findings_of_a_writer_are_set_aside() {
    let known = known(&["*: *"]);
    for fault in [WriterFault::CountNotRaised, WriterFault::HeadLost, WriterFault::SizeNotStored] {
        let walker = WritingWalker::default().with_fault(fault);
        let mut target = knowing(walker, known.clone());
        let mut met = 0;
        for number in 0..PROGRAMS / 3 {
            assert_eq!(found(&mut target, number), None, "{}: {number}", fault.name());
            met += target.met().len();
        }
        assert!(met > 0, "{}", fault.name());
    }
}

/// A writer that treats shared clusters as its own overwrites a snapshot: the flags of the closed file are wrong, and
/// so are the bytes of the snapshot.
#[test]
fn known_flags_of_a_closed_file_do_not_hide_what_its_snapshot_lacks() {
    let walker = WritingWalker::default().with_fault(WriterFault::SnapshotKeepsCopied);
    let mut target = knowing(walker, known(&["refcounts: *"]));
    let lost = (0..PROGRAMS).filter_map(|number| {
        let found = found(&mut target, number)?;
        (!target.met().is_empty() && found.starts_with("written: a snapshot, ")).then_some(found)
    });
    assert_eq!(lost.take(LEAST).count(), LEAST);
}

/// A known size of a file is no reason for findings of oracles that need the right one: the disk of the open image has
/// the right size, or shows a fault itself.
#[test]
fn a_known_size_of_a_file_has_no_other_findings_there() {
    for (fault, size) in [
        (WriterFault::SizeNotStored, "model: virtual size, *"),
        (WriterFault::CreatedSizeRounded, "written: size of a new image, *"),
    ] {
        let walker = WritingWalker::default().with_fault(fault);
        let mut target = knowing(walker, known(&[size]));
        let mut met = 0;
        for (number, program) in programs().iter().enumerate() {
            let found = found_in(&mut target, program).unwrap_or_default();
            met += target.met().len();
            assert!(
                target.met().is_empty() || found.is_empty(),
                "{}, {number}: {found}",
                fault.name()
            );
        }
        assert!(met >= LEAST, "{}", fault.name());
    }
}

#[test]
fn qemu_finds_no_fault_in_written_images() {
    let Some(()) = qemu::tools() else { return };
    let mut target = TargetKind::Writes.judging(WritingWalker::default());
    let dir = tempfile::tempdir().unwrap();
    let mut folder = ChainFolder::new(dir.path(), MAX_FOLDER_BYTES);
    let mut checked = 0;
    let with_data_file = (0..QEMU_DATA_FILES).map(with_data_file);
    for (number, program) in (0..).zip((0..QEMU_PROGRAMS).map(program).chain(with_data_file)) {
        assert_eq!(found_in(&mut target, &program), None);
        let written = target.written().unwrap();
        // Some lower layers are longer than a file system allows.
        let Ok(path) = written.write_to(&mut folder) else { continue };
        let words = ["check", "-f", "qcow2"].map(OsStr::new);
        let output = qemu::run("qemu-img", &[&words[..], &[path.as_ref()]].concat()).unwrap();
        // Only a crash, or an error of the file, excuses leaks, for which the exit code is 3.
        let leaks = |it: &Operation| matches!(it, Operation::Crash { .. }) || is_error(it);
        let may_leak = program.operations.iter().any(leaks);
        let is_sound = output.status.success() || may_leak && output.status.code() == Some(3);
        assert!(is_sound, "program {number}: {output:?}");
        checked += 1;
    }
    let programs = QEMU_PROGRAMS + QEMU_DATA_FILES;
    assert!(checked >= programs * 9 / 10, "{checked} images");
}
