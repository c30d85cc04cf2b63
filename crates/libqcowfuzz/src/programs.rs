//! Inputs: generated, mutated, crossed over, minimized, and as text.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr;
use std::rc::Rc;

use harness::findings::minimizer::{self, MinimizeSettings, Minimized};
use harness::harness::targets::TargetKind;
use harness::internal::base::limits::MAX_OPERATIONS;
use harness::internal::fuzzing::mutators::{
    FileContext, MutationContext, WEIGHTS, mutate_file, mutate_program,
};
use harness::internal::images::entropy::Entropy;
use harness::internal::programs::operation::OPERATION_BYTES;
use harness::internal::programs::prologue::PROLOGUE_BYTES;
use harness::prelude::Facts;
use harness::programs::Program;
use harness::programs::generate::{generate_any, generate_writes};
use harness::programs::text::assemble;

use crate::answer::copied;
use crate::errors::{c_text, guarded, misuse};
use crate::handle::{Handle, QCOWFUZZ_FINDING, Use, bytes, qcowfuzz_run};
use crate::stage::{Exchange, Stage, Step};

/// The number of operations of a generated program.
const GENERATED_OPERATIONS: usize = 12;
/// The highest number of candidates of a minimization.
const MINIMIZE_TRIES: u64 = 100_000;
/// The number of other seeds that a minimization tries if a candidate does not show the finding.
const MINIMIZE_REROLLS: u16 = 16;

/// Makes inputs for a target and an implementation.
pub(crate) struct Inputs<'f> {
    pub(crate) target: TargetKind,
    pub(crate) facts: &'f Facts,
}

impl Inputs<'_> {
    /// Returns a child of `parent`, of at most `max_bytes`, which may have parts of `other`. Returns the parent if
    /// nothing else fits.
    pub(crate) fn child(
        &self,
        parent: &[u8],
        other: Option<&[u8]>,
        max_bytes: usize,
        rng_seed: u64,
    ) -> Vec<u8> {
        let (entropy, sound) = (Entropy::new(rng_seed), true);
        // The engine under test cannot be asked here.
        let trace = &mut || None;
        let mut child = match self.target.runs_programs() {
            true => {
                let room = max_bytes.saturating_sub(PROLOGUE_BYTES) / OPERATION_BYTES;
                let (limits, most) = (self.target.limits(), room.min(MAX_OPERATIONS));
                let (mut program, other) = (Program::decode(parent), other.map(Program::decode));
                let other = other.as_ref();
                let mut context = MutationContext { entropy, limits, most, other, sound, trace };
                mutate_program(&mut program, &mut context, &WEIGHTS);
                self.folded(program.encode())
            }
            false => {
                let (mut file, other) = (parent.to_vec(), other.unwrap_or_default());
                let mut context = FileContext { entropy, other, max_bytes, sound, trace };
                mutate_file(&mut file, &mut context, &WEIGHTS);
                file
            }
        };
        if child.len() > max_bytes {
            child = parent.to_vec();
            child.truncate(max_bytes);
        }
        child
    }

    /// Returns a generated program.
    fn generated(&self, rng_seed: u64) -> Vec<u8> {
        let program = match self.target.limits().requests {
            0 => generate_any(rng_seed, GENERATED_OPERATIONS),
            _ => generate_writes(rng_seed, GENERATED_OPERATIONS),
        };
        self.folded(program.encode())
    }

    /// Returns the input without the features that the implementation does not claim.
    fn folded(&self, input: Vec<u8>) -> Vec<u8> {
        self.target.judged(self.facts, &input).into_owned()
    }
}

/// Copies an input to a caller's buffer. Returns its length, or 0 if it has no room there.
///
/// # Safety
/// `into` is null, or has room for `capacity` bytes.
unsafe fn given(input: &[u8], into: *mut u8, capacity: usize, function: &str) -> usize {
    if into.is_null() || input.len() > capacity {
        let length = input.len();
        misuse(format!("{function}: expected room for {length} bytes, found {capacity}"));
        return 0;
    }
    // SAFETY: the caller's promise; the input is the library's own.
    unsafe { ptr::copy_nonoverlapping(input.as_ptr(), into, input.len()) };
    input.len()
}

/// Generates the program of `seed` into `into`. Returns its length in bytes, or 0 if `capacity` is too small (16 KiB
/// suffice) or inputs of the target are files.
///
/// # Safety
/// `handle` is null or valid; `into` has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_generate(
    handle: *mut Handle,
    seed: u64,
    into: *mut u8,
    capacity: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_generate") }) else { return 0 };
    if !used.0.target.runs_programs() {
        misuse("qcowfuzz_generate: expected a target whose inputs are programs");
        return 0;
    }
    let made = guarded("qcowfuzz_generate", || used.0.inputs().generated(seed));
    let made = made.unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe { given(&made, into, capacity, "qcowfuzz_generate") }
}

/// Mutates the input of `size` bytes in `data`, which has room for `capacity` bytes. The same seed gives the same
/// child. Returns its length.
///
/// # Safety
/// `handle` is null or valid; `data` has `size` bytes, and room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_mutate(
    handle: *mut Handle,
    data: *mut u8,
    size: usize,
    capacity: usize,
    seed: u64,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_mutate") }) else { return size };
    // SAFETY: the caller's promise.
    let parent = unsafe { bytes(data, size) };
    let made = || used.0.inputs().child(parent, None, capacity, seed);
    let Some(child) = guarded("qcowfuzz_mutate", made) else { return size.min(capacity) };
    // SAFETY: the caller's promise. The parent is not used any more.
    unsafe { given(&child, data, capacity, "qcowfuzz_mutate") }
}

/// Crosses two inputs over: makes a child of the first one with parts of the second one. Returns its length.
///
/// # Safety
/// `handle` is null or valid; the inputs have as many bytes as their sizes say; `into` has room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_cross_over(
    handle: *mut Handle,
    data: *const u8,
    size: usize,
    other: *const u8,
    other_size: usize,
    into: *mut u8,
    capacity: usize,
    seed: u64,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_cross_over") }) else { return 0 };
    // SAFETY: the caller's promise.
    let (parent, other) = unsafe { (bytes(data, size), bytes(other, other_size)) };
    let made = || used.0.inputs().child(parent, Some(other), capacity, seed);
    let child = guarded("qcowfuzz_cross_over", made).unwrap_or_default();
    // SAFETY: the caller's promise. The child is a copy.
    unsafe { given(&child, into, capacity, "qcowfuzz_cross_over") }
}

/// Returns the program of an input as text, which `qcowfuzz_assemble` reads. The caller frees it by
/// `qcowfuzz_free_text`. Returns null on an error of the library.
///
/// # Safety
/// `data` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_disassemble(data: *const u8, size: usize) -> *mut c_char {
    // SAFETY: the caller's promise.
    let input = unsafe { bytes(data, size) };
    let text = guarded("qcowfuzz_disassemble", || Program::decode(input).to_string());
    text.map_or(ptr::null_mut(), |text| c_text(&text).into_raw())
}

/// Frees a text of the library. Does nothing with a null pointer.
///
/// # Safety
/// `text` is null, or was returned by `qcowfuzz_disassemble` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Assembles the text of a program into `into`. Returns its length in bytes; 0 on an error, which names the line.
///
/// # Safety
/// `text` is null, or a string that ends with a zero; `into` has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_assemble(
    text: *const c_char,
    into: *mut u8,
    capacity: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(text) = (unsafe { copied(text) }) else {
        misuse("qcowfuzz_assemble: expected a text, found a null pointer");
        return 0;
    };
    match guarded("qcowfuzz_assemble", || assemble(&text).map(|program| program.encode())) {
        // SAFETY: the caller's promise.
        Some(Ok(input)) => unsafe { given(&input, into, capacity, "qcowfuzz_assemble") },
        Some(Err(error)) => {
            misuse(format!("qcowfuzz_assemble: {error}"));
            0
        }
        None => 0,
    }
}

/// Reports whether a candidate is interesting: not 0 if it is.
pub type IsInteresting = Option<
    unsafe extern "C-unwind" fn(context: *mut c_void, data: *const u8, size: usize) -> c_int,
>;

/// The candidates of a minimization, and the answers whether they are interesting.
pub(crate) type Candidates = Exchange<Vec<u8>, bool>;

/// The caller has ended a minimization.
struct Abandoned;

/// The end of a minimization.
type EndedMinimization = Result<Minimized, Abandoned>;

/// A minimization under way.
pub(crate) struct Minimizing {
    candidates: Rc<Candidates>,
    stage: Stage<Vec<u8>, bool, EndedMinimization>,
    /// The candidate that waits for an answer, or the result.
    input: Vec<u8>,
    /// The fingerprint of the finding, which a candidate must have.
    fingerprint: CString,
}

impl Default for Minimizing {
    fn default() -> Self {
        let candidates = Rc::<Candidates>::default();
        let stage = Stage::new(Rc::clone(&candidates));
        Self { candidates, stage, input: Vec::new(), fingerprint: CString::default() }
    }
}

impl Minimizing {
    /// Ends a minimization whose callback never returned.
    pub(crate) fn abandon(&mut self) {
        self.stage.abandon();
    }

    /// Begins. Returns 1 if a candidate waits, 0 at the end, -1 on an error.
    fn begin(&mut self, input: &[u8], inputs: &Inputs) -> c_int {
        let settings = MinimizeSettings {
            inputs: inputs.target.definition().inputs,
            limits: inputs.target.limits(),
            tries: MINIMIZE_TRIES,
            rerolls: MINIMIZE_REROLLS,
            runs_here: true,
        };
        let (target, facts) = (inputs.target, inputs.facts.clone());
        let (candidates, input) = (Rc::clone(&self.candidates), inputs.folded(input.to_vec()));
        let begun = self.stage.begin(move || {
            // A candidate that folding changes would run as another program.
            let judge = &mut |candidate: &[u8]| {
                let is_folded = target.judged(&facts, candidate) != candidate;
                match is_folded {
                    true => Ok(false),
                    false => candidates.ask(candidate.to_vec()).ok_or(Abandoned),
                }
            };
            let go_on = &mut |_: &_| ControlFlow::Continue(());
            minimizer::minimize(&input, settings, judge, go_on)
        });
        match begun {
            Ok(step) => self.took(step),
            Err(error) => misuse(format!("a stack: {error}")),
        }
    }

    fn took(&mut self, step: Step<EndedMinimization>) -> c_int {
        match step {
            Step::Asks => {
                self.input = self.candidates.question().unwrap_or_default();
                1
            }
            Step::Ends(Ok(Ok(minimized))) => {
                self.input = minimized.input;
                0
            }
            Step::Ends(Ok(Err(Abandoned))) => misuse("expected an answer about a candidate"),
            Step::Ends(Err(panic)) => {
                misuse(harness::internal::harness::engine::failure::line_of(&*panic))
            }
        }
    }

    fn answer(&mut self, is_interesting: bool) -> c_int {
        match self.stage.answer(is_interesting) {
            Some(step) => self.took(step),
            None => misuse("expected a minimization that waits for an answer, found none"),
        }
    }
}

/// Minimizes the input of `size` bytes in `data`, which has room for `capacity` bytes, to the smallest and plainest one
/// that is still interesting. Without a callback, an input is interesting if it has the same fingerprint, and the
/// harness runs each candidate. Returns the length of the smallest input; 0 if the input itself has no finding, or on
/// another error.
///
/// # Safety
/// `handle` is null or valid; `data` has `size` bytes, and room for `capacity`; the callbacks keep the rules of the
/// header.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn qcowfuzz_minimize(
    handle: *mut Handle,
    data: *mut u8,
    size: usize,
    capacity: usize,
    is_interesting: IsInteresting,
    context: *mut c_void,
) -> usize {
    // SAFETY: the caller's promise. The callbacks run between the calls that use the handle, and own nothing of this
    // frame.
    unsafe {
        if is_interesting.is_none() && !has_finding(handle, data, size) {
            return 0;
        }
        let mut step = begun(handle, data, size);
        while step == 1 {
            let (candidate, length) = candidate(handle);
            let shows = match is_interesting {
                Some(callback) => callback(context, candidate, length) != 0,
                None => shows_same(handle, candidate, length),
            };
            step = told(handle, shows);
        }
        match step {
            0 => minimized(handle, data, capacity),
            _ => 0,
        }
    }
}

/// Runs the input, and keeps the fingerprint of its finding.
///
/// # Safety
/// As for `qcowfuzz_run`.
unsafe fn has_finding(handle: *mut Handle, data: *const u8, size: usize) -> bool {
    // SAFETY: the caller's promise.
    if unsafe { qcowfuzz_run(handle, data, size) } != QCOWFUZZ_FINDING {
        misuse("qcowfuzz_minimize: expected an input with a finding, found none");
        return false;
    }
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_minimize") };
    used.map(|used| used.0.minimizing.fingerprint = used.0.fingerprint.clone()).is_some()
}

/// Runs a candidate, and reports whether it has the finding.
///
/// # Safety
/// As for `qcowfuzz_run`.
unsafe fn shows_same(handle: *mut Handle, data: *const u8, size: usize) -> bool {
    // SAFETY: the caller's promise.
    let end = unsafe { qcowfuzz_run(handle, data, size) };
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_minimize") };
    let is_same = |used: Use| used.0.minimizing.fingerprint == used.0.fingerprint;
    end == QCOWFUZZ_FINDING && used.is_some_and(is_same)
}

/// # Safety
/// `handle` is null or valid; `data` has `size` bytes.
unsafe fn begun(handle: *mut Handle, data: *const u8, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_minimize") }) else { return -1 };
    let Handle { minimizing, target, facts, .. } = &mut *used.0;
    // SAFETY: the caller's promise.
    minimizing.begin(unsafe { bytes(data, size) }, &Inputs { target: *target, facts })
}

/// # Safety
/// `handle` is valid.
unsafe fn candidate(handle: *mut Handle) -> (*const u8, usize) {
    // SAFETY: the caller's promise. The candidate stays as it is until the next step.
    let used = unsafe { Use::begin(handle, "qcowfuzz_minimize") };
    used.map_or((ptr::null(), 0), |used| {
        let input = &used.0.minimizing.input;
        (input.as_ptr(), input.len())
    })
}

/// # Safety
/// `handle` is valid.
unsafe fn told(handle: *mut Handle, is_interesting: bool) -> c_int {
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_minimize") };
    used.map_or(-1, |used| used.0.minimizing.answer(is_interesting))
}

/// # Safety
/// `handle` is valid; `data` has room for `capacity` bytes.
unsafe fn minimized(handle: *mut Handle, data: *mut u8, capacity: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Use::begin(handle, "qcowfuzz_minimize") }.map_or(0, |used| {
        // SAFETY: the caller's promise.
        unsafe { given(&used.0.minimizing.input, data, capacity, "qcowfuzz_minimize") }
    })
}
