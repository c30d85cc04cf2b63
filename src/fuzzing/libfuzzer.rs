//! libFuzzer's entry points: the macro that defines a target, and the functions that it calls. One runs an input, with
//! feedback in libFuzzer's extra counters; the others mutate inputs, or end a process that found a violation.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::OsStr;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::rc::Rc;

use crate::findings::crash_state::CrashState;
use crate::findings::panics::{self, PanicNote};
use crate::harness::cases::implementation::Implementation;
use crate::harness::cases::tracer::{AccessedRange, Tracer};
use crate::harness::engine::claims::Claims;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Failure, Harness, KnownFindings, MetFinding, Outcome};
use crate::images::content::entropy::Entropy;
use crate::images::files::FileNames;
use crate::images::format::list;

use super::feedback::{self, Recorder};
use super::mutators;

pub use crate::fuzzing::mutators::{crossover, mutate};

thread_local! {
    /// The recorder that observes the targets of a thread.
    static RECORDER: Rc<Recorder> = Rc::default();
    /// The claims of the implementation under test.
    static CLAIMS: OnceCell<Claims> = const { OnceCell::new() };
    /// The targets that a thread has run, with their buffers.
    static TARGETS: RefCell<[Option<Harness>; TargetKind::ALL.len()]> = RefCell::default();
    /// The known findings of the implementation under test, for the panic hook.
    static KNOWN: RefCell<KnownFindings> = RefCell::default();
    /// The panic hook has met a known finding and has not ended the process.
    static KNOWN_PANIC: Cell<bool> = const { Cell::new(false) };
    /// The targets again, to trace runs for mutations.
    static TRACERS: RefCell<[Option<Tracer>; TargetKind::ALL.len()]> = RefCell::default();
    /// A mutation runs the code under test: a panic there ends only that run.
    static TRACING: Cell<bool> = const { Cell::new(false) };
    /// The known findings that the runs of this process met.
    static MET: RefCell<Vec<MetFinding>> = const { RefCell::new(Vec::new()) };
}

/// Runs an input of the target `kind`, with our walker under test. The walker does not write, so that inputs of the
/// target `writes` need [`run_with`].
///
/// # Errors
/// The first violation.
pub fn run(kind: TargetKind, input: &[u8]) -> Result<Outcome, Box<Failure>> {
    run_with(Implementation::our_walker, kind, input)
}

/// Runs an input of the target `kind`, with `implementation` under test: the same one in all calls. Each thread
/// creates it once, and keeps the buffers of its targets. A known panic ends the run, which then has an empty outcome,
/// and not the process; the next run of the target begins with fresh buffers. The file that the environment variable
/// `QCOWFUZZ_KNOWN` names adds known findings. The first run that meets a known finding prints it.
///
/// # Errors
/// The first violation.
pub fn run_with<I: Into<Implementation>>(
    implementation: impl FnOnce() -> I,
    kind: TargetKind,
    input: &[u8],
) -> Result<Outcome, Box<Failure>> {
    recorded(|| {
        TARGETS.with_borrow_mut(|targets| {
            let recorder = RECORDER.with(Rc::clone);
            let slot = &mut targets[kind as usize];
            let target = slot.get_or_insert_with(|| {
                let implementation = implementation().into();
                let known = known_findings(&implementation);
                KNOWN.set(known.clone());
                kind.create(&implementation.knowing(known), FileNames::default(), recorder)
            });
            let run = AssertUnwindSafe(|| {
                let result = target.run(input, Checks::default());
                for fingerprint in target.met().iter().flat_map(|met| &met.seen) {
                    print_if_known(fingerprint);
                }
                result
            });
            panic::catch_unwind(run).unwrap_or_else(|panic| {
                // The panic has left the buffers in an unknown state.
                *slot = None;
                if !KNOWN_PANIC.take() {
                    panic::resume_unwind(panic);
                }
                Ok(Outcome::default())
            })
        })
    })
}

/// Reports whether a finding is known. Prints its fingerprint if no earlier run of this process has met it.
fn print_if_known(fingerprint: &str) -> bool {
    KNOWN.with_borrow(|known| {
        let Some(known) = known.find(fingerprint) else { return false };
        if MET.with_borrow_mut(|met| MetFinding::add(met, known, fingerprint)) {
            eprintln!("known finding: {fingerprint}");
        }
        true
    })
}

/// One file of this many keeps the checksums that a mutation left wrong.
const WRONG_CHECKSUMS_ONE_IN: u64 = 8;
/// One mutation of a file of this many changes bytes that the implementation reads. It costs a run.
const READ_BYTES_ONE_IN: u64 = 8;

/// Mutates the file in `data[..size]` in place, and returns its length, at most `max_size`. Some mutations change bytes
/// that `implementation` reads: the same one in all calls, created once. `bytes` is libFuzzer's mutation of bytes,
/// which makes all others. Afterwards, the checksums of the file are corrected, mostly.
pub fn mutate_file<I: Into<Implementation>>(
    implementation: impl Fn() -> I,
    (data, size): (&mut [u8], usize),
    max_size: usize,
    rng_seed: u32,
    bytes: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut entropy = Entropy::new(u64::from(rng_seed));
    let keeps_checksums = entropy.one_in(WRONG_CHECKSUMS_ONE_IN);
    let is_aimed = size <= max_size
        && entropy.one_in(READ_BYTES_ONE_IN)
        && data.get_mut(..size).is_some_and(|file| {
            let input = file.to_vec();
            let trace = &mut || trace(&implementation, TargetKind::RawImage, &input);
            mutators::mutate_accessed_bytes(file, trace, rng_seed)
        });
    let size = if is_aimed { size } else { bytes(data, size, max_size) };
    if !keeps_checksums && let Some(file) = data.get_mut(..size) {
        list::correct_checksums(file);
    }
    size
}

/// Runs an input of the target `kind` once more, and returns the bytes of the files that `implementation` accesses. It
/// reports no events, and a panic ends only this run.
fn trace<I: Into<Implementation>>(
    implementation: impl Fn() -> I,
    kind: TargetKind,
    input: &[u8],
) -> Option<Vec<AccessedRange>> {
    TRACERS.with_borrow_mut(|tracers| {
        let tracer = tracers[kind as usize].get_or_insert_with(|| {
            let implementation = implementation().into();
            let known = known_findings(&implementation);
            Tracer::new(&implementation.knowing(known), kind)
        });
        TRACING.set(true);
        let accessed = tracer.trace(input, Checks::AtCheckpoints);
        TRACING.set(false);
        accessed
    })
}

/// Mutates the program in `data[..size]` as [`mutate`] does, and folds it into the features that `implementation`
/// claims: the same one in all calls, created once.
pub fn mutate_for<I: Into<Implementation>>(
    implementation: impl Fn() -> I,
    kind: TargetKind,
    (data, size): (&mut [u8], usize),
    max_size: usize,
    rng_seed: u32,
    bytes: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let input = data[..size].to_vec();
    let run = &mut || trace(&implementation, kind, &input);
    let size = mutate(data, size, max_size, rng_seed, kind.limits(), run, bytes);
    let claims = CLAIMS
        .with(|claims| *claims.get_or_init(|| kind.claims_of(&implementation().into().facts())));
    let mutated = &data[..size];
    match claims.fold(mutated) {
        // The canonical bytes of a short input are longer than it.
        Cow::Owned(folded) if folded.len() <= max_size => {
            data[..folded.len()].copy_from_slice(&folded);
            folded.len()
        }
        _ => size,
    }
}

/// Resets the recorder, calls `run`, and copies the counters to libFuzzer's extra counters.
fn recorded<T>(run: impl FnOnce() -> T) -> T {
    RECORDER.with(|recorder| {
        recorder.begin_run();
        let result = run();
        feedback::publish(recorder);
        result
    })
}

/// Panics if a run found a violation, so that libFuzzer reports a crash. The message begins with the fingerprint.
///
/// # Panics
/// If `result` is a violation.
pub fn report(result: Result<Outcome, Box<Failure>>) {
    if let Err(failure) = result {
        panic!("{}", failure.violation);
    }
}

/// Installs a panic hook that prints the fingerprint of the panic first and its `CrashState` last, and then ends the
/// process. If the finding is known, or a mutation runs the input, the hook does nothing, and the panic ends only the
/// run. The caller calls this function once, before the first run.
pub fn name_panics() {
    // The first call removes libFuzzer's hook, which ends the process as soon as it has printed; the second returns the
    // hook of the standard library.
    drop(std::panic::take_hook());
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if TRACING.get() {
            return;
        }
        let state = match reported(panic) {
            Some(fingerprint) => CrashState::of_violation(fingerprint),
            None => {
                let note = PanicNote::of(panic);
                let fingerprint = note.fingerprint();
                // The list of known findings is local to the thread of the run. In a thread that the implementation has
                // started, no finding is known, because the panic would not reach the run.
                if print_if_known(&fingerprint) {
                    KNOWN_PANIC.set(true);
                    return;
                }
                eprintln!("{fingerprint}");
                CrashState::of_panic(&note)
            }
        };
        print(panic);
        eprint!("{state}");
        std::process::abort();
    }));
}

/// Returns the fingerprint of the violation for which [`report`] panicked: the first line of the message. Returns
/// `None` for any other panic.
fn reported<'p>(panic: &'p PanicHookInfo) -> Option<&'p str> {
    let of_report = panic.location().is_some_and(|location| location.file() == file!());
    panics::message(panic).filter(|_| of_report)?.lines().next()
}

/// The environment variable that names a file of known findings, which are set aside beside those of the
/// implementation: libFuzzer's command line has no room for the option `--known`.
const KNOWN_FILE: &str = "QCOWFUZZ_KNOWN";

/// Returns the known findings of an implementation and those of the file that [`KNOWN_FILE`] names. If the file is
/// wrong, ends the process with one line and the exit code of the commands.
fn known_findings(implementation: &Implementation) -> KnownFindings {
    let known = implementation.facts().known;
    let Some(path) = std::env::var_os(KNOWN_FILE) else { return known };
    match known_file(&path) {
        Ok(added) => known.and(&added),
        Err(what) => {
            eprintln!("{KNOWN_FILE}: {}: {what}", path.display());
            std::process::exit(2);
        }
    }
}

/// Reads a file of known findings. An error names what is wrong, and what was expected.
fn known_file(path: &OsStr) -> Result<KnownFindings, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{error}, expected a file of known findings"))?;
    KnownFindings::parse(&text).map_err(|error| error.to_string())
}

/// Defines a `cargo fuzz` target for an implementation, in a file that begins with `#![no_main]`:
///
/// ```ignore
/// #![no_main]
/// qcowfuzz::fuzz_target!(MapExtents, MyEngine::default());
/// ```
///
/// The first operand is a [`TargetKind`]: `MapExtents` for valid images, `Hostile`
/// for damaged ones, `RawImage` for files of any content. The crate needs `libfuzzer-sys` among its dependencies.
#[macro_export]
macro_rules! fuzz_target {
    (RawImage, $implementation:expr) => {
        ::libfuzzer_sys::fuzz_target!(
            init: $crate::fuzzing::libfuzzer::name_panics(),
            |input: &[u8]| {
                let kind = $crate::harness::targets::TargetKind::RawImage;
                let ran = $crate::fuzzing::libfuzzer::run_with(|| $implementation, kind, input);
                $crate::fuzzing::libfuzzer::report(ran)
            }
        );

        ::libfuzzer_sys::fuzz_mutator!(
            |data: &mut [u8], size: usize, max_size: usize, seed: u32| {
                let bytes = ::libfuzzer_sys::fuzzer_mutate;
                $crate::fuzzing::libfuzzer::mutate_file(
                    || $implementation,
                    (data, size),
                    max_size,
                    seed,
                    bytes,
                )
            }
        );
    };
    ($kind:ident, $implementation:expr) => {
        ::libfuzzer_sys::fuzz_target!(
            init: $crate::fuzzing::libfuzzer::name_panics(),
            |input: $crate::programs::Input| {
                let kind = $crate::harness::targets::TargetKind::$kind;
                let ran = $crate::fuzzing::libfuzzer::run_with(|| $implementation, kind, input.0);
                $crate::fuzzing::libfuzzer::report(ran)
            }
        );

        ::libfuzzer_sys::fuzz_mutator!(
            |data: &mut [u8], size: usize, max_size: usize, seed: u32| {
                let kind = $crate::harness::targets::TargetKind::$kind;
                let bytes = ::libfuzzer_sys::fuzzer_mutate;
                $crate::fuzzing::libfuzzer::mutate_for(
                    || $implementation,
                    kind,
                    (data, size),
                    max_size,
                    seed,
                    bytes,
                )
            }
        );

        ::libfuzzer_sys::fuzz_crossover!(
            |data1: &[u8], data2: &[u8], out: &mut [u8], seed: u32| {
                $crate::fuzzing::libfuzzer::crossover(data1, data2, out, seed)
            }
        );
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::anatomy::Part;
    use crate::harness::Walker;
    use crate::images::damage::Transform;
    use crate::programs::Operation;
    use crate::programs::generate::{GenerateSettings, generate};
    use crate::programs::operand::{Gap, Number, Operand};

    fn random_bytes(entropy: &mut Entropy) -> Vec<u8> {
        let length = entropy.below(512) as usize;
        (0..length).map(|_| entropy.next_u64() as u8).collect()
    }

    #[test]
    fn programs_and_random_bytes_find_nothing() {
        let mut entropy = Entropy::new(1);
        for (kind, count) in [(TargetKind::MapExtents, 1000), (TargetKind::Refcounts, 200)] {
            for rng_seed in 0..count {
                let wanted = GenerateSettings { operations: 24, compressed: rng_seed % 2 == 0 };
                report(run(kind, &generate(rng_seed, wanted).encode()));
                report(run(kind, &random_bytes(&mut entropy)));
            }
        }
    }

    /// Returns a random attack on an element near the start of its part.
    fn attack(entropy: &mut Entropy) -> Operation {
        let part = Part::ALL[entropy.below(Part::ALL.len() as u64) as usize];
        let transform = Transform::ALL[entropy.below(Transform::ALL.len() as u64) as usize];
        let (depth, nth) = (Number::LOWEST, entropy.below(40) as u16);
        let value = entropy.below(256) as u16;
        match entropy.below(8) {
            0..3 => Operation::Patch { part, depth, nth, transform, value },
            3..5 => Operation::Trap { part, depth, nth, transform, value: value as u8, reads: 0 },
            5..7 => Operation::FailRead { part, depth, reads: entropy.below(40) as u8 },
            _ => {
                let cut = format!("{}<<{}", entropy.below(256), entropy.below(16));
                Operation::Truncate { depth, cut: Gap::parse(&cut).unwrap() }
            }
        }
    }

    #[test]
    fn hostile_finds_nothing_and_reaches_each_outcome() {
        let mut entropy = Entropy::new(4);
        let (mut images, mut refused, mut failed) = (0, 0, 0);
        for rng_seed in 0..2000 {
            let mut program =
                generate(rng_seed, GenerateSettings { operations: 16, compressed: true });
            let attacks = 1 + entropy.below(6);
            program.operations.extend((0..attacks).map(|_| attack(&mut entropy)));
            match run(TargetKind::Hostile, &program.encode()) {
                Ok(outcome) => {
                    images += outcome.images;
                    refused += outcome.refused;
                    failed += outcome.failed;
                }
                found => report(found),
            }
            report(run(TargetKind::Hostile, &random_bytes(&mut entropy)));
        }
        let walked = images - refused - failed;
        let all = format!("{images} images, {refused} refused, {failed} failed, {walked} walked");
        assert!(images >= 2000 && refused >= 100 && failed >= 100 && walked >= 500, "{all}");
    }

    #[test]
    fn raw_image_finds_nothing_and_reaches_each_outcome() {
        let mut entropy = Entropy::new(3);
        let mut harness = Harness::new(Walker::default());
        let mut outcomes = [0; 3];
        for rng_seed in 0..500 {
            let program = generate(rng_seed, GenerateSettings { operations: 12, compressed: true });
            let mut file = flat(harness.build(&program.encode()));
            // Damages bytes that are not zero.
            let there = (0..file.len()).filter(|at| file[*at] != 0).collect::<Vec<_>>();
            for _ in 0..entropy.below(8) {
                let at = there[entropy.below(there.len() as u64) as usize];
                file[at] = entropy.next_u64() as u8;
            }
            match run(TargetKind::RawImage, &file) {
                Ok(Outcome { refused, failed, .. }) => outcomes[refused * 2 + failed] += 1,
                Err(failure) => panic!("seed {rng_seed}: {}", failure.violation),
            }
        }
        assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
    }

    /// Returns the first 64 KiB of an image.
    fn flat(image: &crate::images::files::image::Image) -> Vec<u8> {
        use crate::disk::storage::Storage;
        let mut bytes = vec![0; image.length_bytes().min(1 << 16) as usize];
        image.read_at(crate::disk::offsets::HostOffset::ZERO, &mut bytes).unwrap();
        bytes
    }
}
