//! The functions that libFuzzer's targets call: one for each target, on buffers that each thread keeps, with feedback in
//! libFuzzer's extra counters; and the end of a process that found a violation.

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::rc::Rc;

use crate::findings::crash_state::CrashState;
use crate::findings::panics;
use crate::findings::panics::PanicNote;
use crate::fuzzing::feedback::{Recorder, extra};
use crate::harness::oracles::Violation;
use crate::harness::oracles::raw::RawOutcome;
use crate::harness::{Checks, Failure, Harness, Outcome, Walker};

use crate::harness::targets::{Hostile, RawImage, Refcounts};

/// Who observes the targets of a thread.
type Observed = Rc<Recorder>;

/// Valid images, and all that is known of them: the input is a program, our walker is the engine.
///
/// # Errors
/// A violation.
pub fn map_extents(input: &[u8]) -> Result<Outcome, Box<Failure>> {
    thread_local! {
        static HARNESS: RefCell<Harness<Walker<Observed>, Observed>> = RefCell::new({
            let walker = Walker::observed(RECORDER.with(Rc::clone));
            Harness::observed(walker, RECORDER.with(Rc::clone))
        });
    }
    recorded(|| HARNESS.with_borrow_mut(|harness| harness.run(input, Checks::AtCheckpoints)))
}

/// The allocator alone, in geometries that no walk could afford: the input is a program, and only the
/// refcounts of its images are judged.
///
/// # Errors
/// A violation.
pub fn refcounts(input: &[u8]) -> Result<Outcome, Box<Failure>> {
    thread_local! {
        static REFCOUNTS: RefCell<Refcounts<Observed>> =
            RefCell::new(Refcounts::observed(RECORDER.with(Rc::clone)));
    }
    recorded(|| REFCOUNTS.with_borrow_mut(|target| target.run(input, Checks::AtCheckpoints)))
}

/// Damaged images: the input is a program that builds an image and then attacks it.
///
/// # Errors
/// A violation.
pub fn hostile(input: &[u8]) -> Result<Outcome, Box<Failure>> {
    thread_local! {
        static HOSTILE: RefCell<Hostile<Walker<Observed>, Observed>> = RefCell::new({
            let walker = Walker::observed(RECORDER.with(Rc::clone));
            Hostile::observed(walker, RECORDER.with(Rc::clone))
        });
    }
    recorded(|| HOSTILE.with_borrow_mut(|target| target.run(input, Checks::AtCheckpoints)))
}

/// Any bytes: the input is the file.
///
/// # Errors
/// A violation.
pub fn raw_image(input: &[u8]) -> Result<RawOutcome, Box<Violation>> {
    thread_local! {
        static RAW_IMAGE: RefCell<RawImage<Observed>> =
            RefCell::new(RawImage::observed(RECORDER.with(Rc::clone)));
    }
    recorded(|| RAW_IMAGE.with_borrow_mut(|target| target.run(input)))
}

thread_local! {
    /// What the targets of a thread are observed by.
    static RECORDER: Observed = Rc::default();
}

/// Counts what a run does, and nothing of the one before, and gives libFuzzer the counters.
fn recorded<T>(run: impl FnOnce() -> T) -> T {
    RECORDER.with(|recorder| {
        recorder.begin_run();
        let result = run();
        extra::publish(recorder);
        result
    })
}

/// Ends the process over a violation, as libFuzzer wants it: the fingerprint comes first.
///
/// # Panics
/// Where there is one.
pub fn report<T>(result: Result<T, Box<impl AsRef<Violation>>>) {
    if let Err(found) = result {
        panic!("{}", (*found).as_ref());
    }
}

/// Has every panic end the process, print its fingerprint first, as a violation does, and its [`CrashState`] last. To
/// be called once, before the first run.
pub fn name_panics() {
    // That of the engine, which ends the process as soon as it has printed; and behind it the standard library's.
    drop(std::panic::take_hook());
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let state = match reported(panic) {
            Some(fingerprint) => CrashState::of_violation(fingerprint),
            None => {
                let note = PanicNote::of(panic);
                eprintln!("{}", note.fingerprint());
                CrashState::of_panic(&note)
            }
        };
        print(panic);
        eprint!("{state}");
        std::process::abort();
    }));
}

/// The fingerprint of the violation that a panic of [`report`] is about: the first line of its message.
fn reported<'p>(panic: &'p PanicHookInfo) -> Option<&'p str> {
    let of_report = panic.location().is_some_and(|location| location.file() == file!());
    panics::message(panic).filter(|_| of_report)?.lines().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::entropy::Entropy;
    use crate::programs::generate::{Wanted, generate};

    fn random_bytes(entropy: &mut Entropy) -> Vec<u8> {
        let length = entropy.below(512) as usize;
        (0..length).map(|_| entropy.next_u64() as u8).collect()
    }

    #[test]
    fn map_extents_finds_nothing() {
        let mut entropy = Entropy::new(1);
        for rng_seed in 0..1000 {
            let wanted = Wanted { operations: 24, compressed: rng_seed % 2 == 0 };
            report(map_extents(&generate(rng_seed, wanted).encode()));
            report(map_extents(&random_bytes(&mut entropy)));
        }
    }

    #[test]
    fn refcounts_finds_nothing() {
        let mut entropy = Entropy::new(2);
        for rng_seed in 0..200 {
            let wanted = Wanted { operations: 24, compressed: true };
            report(refcounts(&generate(rng_seed, wanted).encode()));
            report(refcounts(&random_bytes(&mut entropy)));
        }
    }

    #[test]
    fn hostile_finds_nothing() {
        let mut entropy = Entropy::new(4);
        for rng_seed in 0..2000 {
            let wanted = Wanted { operations: 16, compressed: true };
            let mut program = generate(rng_seed, wanted).encode();
            for _ in 0..1 + entropy.below(6) {
                program.extend([27 + (entropy.below(8) as u8 % 7 % 4), entropy.next_u64() as u8]);
                program.extend([0, entropy.below(40) as u8, 0]);
                program.extend([entropy.next_u64() as u8, entropy.next_u64() as u8, 0]);
            }
            report(hostile(&program));
            report(hostile(&random_bytes(&mut entropy)));
        }
    }

    #[test]
    fn raw_image_finds_nothing_and_gets_somewhere() {
        let mut entropy = Entropy::new(3);
        let mut harness = Harness::new(Walker::default());
        let mut outcomes = [0; 3];
        for rng_seed in 0..500 {
            let program = generate(rng_seed, Wanted { operations: 12, compressed: true });
            let mut file = flat(harness.build(&program.encode()));
            // Damage where something is.
            let there = (0..file.len()).filter(|at| file[*at] != 0).collect::<Vec<_>>();
            for _ in 0..entropy.below(8) {
                let at = there[entropy.below(there.len() as u64) as usize];
                file[at] = entropy.next_u64() as u8;
            }
            match raw_image(&file) {
                Ok(outcome) => outcomes[outcome as usize] += 1,
                Err(violation) => panic!("seed {rng_seed}: {violation}"),
            }
        }
        assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
    }

    /// The first 64 KiB of an image.
    fn flat(image: &crate::images::image::Image) -> Vec<u8> {
        use crate::disk::storage::Storage;
        let mut bytes = vec![0; image.length_bytes().min(1 << 16) as usize];
        image.read_at(crate::disk::offsets::HostOffset::ZERO, &mut bytes).unwrap();
        bytes
    }
}
