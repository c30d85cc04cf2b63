//! `qemu-img check` judges a sample of the images that crates have written, if no oracle has met a finding. It must
//! find what our recount finds: nothing but the clusters of bitmaps that the crate has dropped.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

use qcowfuzz::base::features::{Feature, FeatureSet};
use qcowfuzz::disk::observer::{Event, Observer, State};
use qcowfuzz::harness::Checks;
use qcowfuzz::harness::Implementation;
use qcowfuzz::harness::files::chain::{ChainFile, ChainFolder};
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::harness::oracles::qcow2::recount::{Recount, RefcountFault, Role};
use qcowfuzz::prelude::Chain;
use qcowfuzz::programs::generate::generate_writes;
use qcowfuzz::programs::text::assemble;
use qcowfuzz::programs::{Operation, Program};
use qcowfuzz_engines::imago::Imago;
use qcowfuzz_engines::qcow2_rs::Qcow2Rs;
use test_support::qemu::{self, compare::counts};

/// The number of generated programs: each cluster size with each width of refcounts, twice.
const PROGRAMS: u64 = 91 * 2;
/// The number of operations before the first request.
const OPERATIONS: usize = 12;
/// The seeds of the target, which follow the generated programs.
const SEEDS: &str = "../corpus/text/writes";
/// The most bytes of the files that qemu-img checks.
const MAX_FOLDER_BYTES: u64 = 64 << 20;

/// The number of requests that an engine has carried out and that change the image.
#[derive(Clone, Default)]
struct Changes(Rc<Cell<u32>>);

impl Observer for Changes {
    fn event(&self, state: State, event: Event) {
        let is_change = state == State::Write
            && !matches!(event, Event::Checkpoint | Event::Cut | Event::Flushed);
        self.0.set(self.0.get() + u32::from(is_change));
    }
}

/// The files of a run.
struct Files {
    built: Chain,
    written: Chain,
}

/// Runs a program. Returns the files if the engine has changed the image, and no oracle has met a finding, new or
/// known.
fn sound_run(implementation: &Implementation, program: &Program) -> Option<Files> {
    let changes = Changes::default();
    let observer = Rc::new(changes.clone());
    let mut target = TargetKind::Writes.create(implementation, FileNames::default(), observer);
    let outcome = target.run(&program.encode(), Checks::AtCheckpoints).ok()?;
    let is_judged = !outcome.unsupported && outcome.refused == 0;
    if !is_judged || changes.0.get() == 0 || !target.met().is_empty() {
        return None;
    }
    let built = Chain::new(target.images());
    Some(Files { built, written: target.written()?.clone() })
}

/// Returns the clusters of all bitmaps of an image.
fn bitmap_clusters(image: &ChainFile) -> BTreeSet<u64> {
    let mut recount = Recount::new();
    recount.recount(image).unwrap();
    let bitmaps = [Role::BitmapDirectory, Role::BitmapTable, Role::BitmapData].map(Some);
    let occupied = recount.occupied().into_iter().filter(|it| bitmaps.contains(&it.role));
    occupied.flat_map(|it| it.first..it.end).collect()
}

/// Returns the clusters that our recount of an image reports as leaked.
fn leaked_clusters(image: &ChainFile) -> BTreeSet<u64> {
    let mut recount = Recount::new();
    let reports = recount.recount(image).unwrap().iter();
    let leaks = reports.filter(|report| report.finding == RefcountFault::Leak);
    leaks.flat_map(|it| it.cluster.get()..it.cluster.get() + it.clusters).collect()
}

/// Reports whether a crash, or an error of a file, may leave leaks.
fn may_leak(program: &Program) -> bool {
    let leaks = |it: &Operation| {
        matches!(
            it,
            Operation::Crash { .. } | Operation::FailFile { .. } | Operation::Device { .. }
        )
    };
    program.operations.iter().any(leaks)
}

/// Has qemu-img check the image at `path`, the written one of `files`. Returns a description of a fault.
fn check(path: &Path, files: &Files, may_leak: bool) -> qemu::Checked<()> {
    let image = files.written.image();
    let (found, said) = counts(path, &[image])?;
    // An engine that does not support bitmaps may drop them: it clears their autoclear bit. Nothing but a repair frees
    // their clusters. QEMU reports these leaks, and the oracle `refcounts` tolerates them.
    let leaked = leaked_clusters(image);
    let is_excused = may_leak || leaked.is_subset(&bitmap_clusters(files.built.image()));
    match found.corruptions == 0 && is_excused {
        true => Ok(()),
        false => Err(format!("{found:?}\n{said}")),
    }
}

/// Has qemu-img check the images of all sound runs, without those of programs that end the process or never end:
/// `is_left_out` names them. Returns the number of these images.
fn check_sound_runs(implementation: &Implementation, is_left_out: fn(&Program) -> bool) -> u32 {
    let seeds = std::fs::read_dir(SEEDS).unwrap().map(|seed| seed.unwrap().path());
    let seeds = seeds.map(|path| assemble(&std::fs::read_to_string(path).unwrap()).unwrap());
    let programs = (0..PROGRAMS).map(|number| generate_writes(number, OPERATIONS)).chain(seeds);
    let programs = programs.filter(|program| !is_left_out(program));
    let dir = tempfile::tempdir().unwrap();
    let mut folder = ChainFolder::new(dir.path(), MAX_FOLDER_BYTES);
    let mut checked = 0;
    for program in programs {
        // A panic is a finding.
        let ran = catch_unwind(AssertUnwindSafe(|| sound_run(implementation, &program)));
        let Ok(Some(files)) = ran else { continue };
        // Some lower layers are longer than a file system allows.
        let Ok(path) = files.written.write_to(&mut folder) else { continue };
        check(&path, &files, may_leak(&program))
            .unwrap_or_else(|fault| panic!("{fault}\n{program}"));
        checked += 1;
    }
    checked
}

#[test]
fn qemu_finds_no_fault_in_images_of_imago() {
    let Some(()) = qemu::tools() else { return };
    let checked = check_sound_runs(&Imago.into(), |_| false);
    assert!(checked >= 80, "{checked} images");
}

#[test]
fn qemu_finds_no_fault_in_images_of_qcow2_rs() {
    let Some(()) = qemu::tools() else { return };
    // A write to a compressed cluster can end the process: `qcow2_rs/compressed_write_aborts` in `findings/`.
    let ends_process = FeatureSet::of(&[Feature::Compressed]);
    let implementation = Implementation::from(Qcow2Rs).without(ends_process);
    // A long run of clusters in use fills a slice of refcounts, after which a write may never end:
    // `qcow2_rs/allocation_hangs`.
    let fills_slice = |program: &Program| {
        program.operations.iter().any(|it| matches!(it, Operation::PreallocateRun { .. }))
    };
    let checked = check_sound_runs(&implementation, fills_slice);
    assert!(checked >= 50, "{checked} images");
}
