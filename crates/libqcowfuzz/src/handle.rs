//! The harness of a caller: one input becomes questions, and the answers become a verdict. A run goes step by step, or
//! by callbacks, which is a loop over the same steps.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::harness::targets::TargetKind;
use harness::harness::{Checks, Failure, Harness, Outcome};
use harness::internal::findings::crash_state::CrashState;
use harness::internal::harness::engine::failure;
use harness::internal::harness::model::Model;
use harness::prelude::Facts;

use crate::answer::{Answer, Reply, copied};
use crate::engine::{AskingEngine, EngineTable, Questions};
use crate::errors::{c_text, misuse};
use crate::programs::{Inputs, Minimizing};
use crate::question::Question;
use crate::stage::{Ended, Stage, Step};

/// The run goes on: the next question waits for its answer.
pub const QCOWFUZZ_ASKS: c_int = 2;
/// The run has ended, and an oracle has found a violation: `qcowfuzz_fingerprint` names it.
pub const QCOWFUZZ_FINDING: c_int = 1;
/// The run has ended without a finding.
pub const QCOWFUZZ_NOTHING: c_int = 0;
/// The library could not do what was asked: `qcowfuzz_last_error` says why. No input is to blame.
pub const QCOWFUZZ_ERROR: c_int = -1;

/// The result of a run on the stage.
type Ran = Result<Outcome, Box<Failure>>;

/// A harness with code under test. Different threads may use different harnesses at the same time, and one after the
/// other the same. The thread that begins a run ends it.
pub struct Handle {
    /// A call of the library uses the fields below.
    is_busy: AtomicBool,
    pub(crate) target: TargetKind,
    pub(crate) facts: Facts,
    pub(crate) table: EngineTable,
    questions: Questions,
    stage: Stage<Question, Reply, Ran>,
    /// The target, with its buffers, which the stage uses while it runs.
    harness: *mut Harness,
    /// Counts the runs: the callbacks of an earlier run answer no question of this one.
    runs: u64,
    pub(crate) minimizing: Minimizing,
    /// The disk of the image that was exported last.
    pub(crate) model: Option<Box<Model>>,
    pub(crate) fingerprint: CString,
    report: CString,
    outcome: Outcome,
}

/// The numbers of the last run without a finding.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeCounts {
    /// The number of operations of the program.
    pub operations: usize,
    /// The number of images that were built and judged.
    pub images: usize,
    /// The number of images that the code refused, as it may.
    pub refused: usize,
    /// The number of damaged images that the code opened, and did not walk to the end.
    pub failed: usize,
    /// 1 if the harness did not ask about some image: it has a feature that the code does not claim, or its files are
    /// too large.
    pub unsupported: c_int,
}

impl Handle {
    fn new(target: TargetKind, facts: Facts, table: EngineTable) -> Self {
        let questions = Questions::default();
        let harness = created(target, &facts, &questions);
        Self {
            is_busy: AtomicBool::new(false),
            target,
            facts,
            table,
            stage: Stage::new(Rc::clone(&questions.exchange)),
            questions,
            harness,
            runs: 0,
            minimizing: Minimizing::default(),
            model: None,
            fingerprint: CString::default(),
            report: CString::default(),
            outcome: Outcome::default(),
        }
    }

    /// Replaces the harness, which a panic has left in an unknown state. No code runs on the stage.
    fn renew(&mut self) {
        // SAFETY: `created` made it, and the stage, which alone uses it, runs no code.
        drop(unsafe { Box::from_raw(self.harness) });
        self.harness = created(self.target, &self.facts, &self.questions);
    }

    fn begin(&mut self, input: &[u8]) -> c_int {
        self.stage.abandon();
        self.runs += 1;
        (self.fingerprint, self.report, self.outcome) = Default::default();
        let (harness, input) = (self.harness, input.to_vec());
        let begun = self.stage.begin(move || {
            // SAFETY: the handle frees the harness only when no code runs on the stage, and nothing else uses it.
            let harness = unsafe { &mut *harness };
            harness.run(&input, Checks::default())
        });
        match begun {
            Ok(step) => self.took(step),
            Err(error) => misuse(format!("a stack: {error}")),
        }
    }

    /// Takes a step of the stage: its question, or its end.
    fn took(&mut self, step: Step<Ran>) -> c_int {
        match step {
            Step::Asks => QCOWFUZZ_ASKS,
            Step::Ends(ended) => self.ended(ended),
        }
    }

    fn ended(&mut self, ended: Ended<Ran>) -> c_int {
        match ended {
            Ok(Ok(outcome)) => {
                self.outcome = outcome;
                QCOWFUZZ_NOTHING
            }
            Ok(Err(failure)) => {
                self.fingerprint = c_text(&failure.violation.fingerprint());
                self.report = c_text(&failure.violation.to_string());
                QCOWFUZZ_FINDING
            }
            Err(panic) => {
                self.renew();
                misuse(failure::line_of(&*panic))
            }
        }
    }

    /// Returns what makes inputs for the target and the code under test.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs { target: self.target, facts: &self.facts }
    }

    fn answer(&mut self, reply: Reply) -> c_int {
        match self.stage.answer(reply) {
            Some(step) => self.took(step),
            None => misuse("expected a run that waits for an answer, found none"),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.minimizing.abandon();
        self.stage.abandon();
        // SAFETY: `created` made it, and no code runs on the stage.
        drop(unsafe { Box::from_raw(self.harness) });
    }
}

/// Creates a harness on the heap, where the stage finds it.
fn created(target: TargetKind, facts: &Facts, questions: &Questions) -> *mut Harness {
    let engine = AskingEngine::new(facts.clone(), questions.clone());
    Box::into_raw(Box::new(target.judging(engine)))
}

/// The use of a handle by one call of the library.
pub(crate) struct Use<'h>(pub(crate) &'h mut Handle);

impl<'h> Use<'h> {
    /// Begins to use a handle, unless another call does.
    ///
    /// # Safety
    /// `handle` is null, or was made by `qcowfuzz_new` and not freed.
    #[inline]
    pub(crate) unsafe fn begin(handle: *mut Handle, function: &str) -> Option<Self> {
        if handle.is_null() {
            misuse(format!("{function}: expected a harness, found a null pointer"));
            return None;
        }
        // SAFETY: the caller's promise. The flag is read before there is a reference to the rest.
        let is_busy = unsafe { &*ptr::addr_of!((*handle).is_busy) };
        if is_busy.swap(true, Ordering::Acquire) {
            misuse(format!(
                "{function}: expected one call at a time, found that another thread uses the harness"
            ));
            return None;
        }
        // SAFETY: the flag was not set, so no other call has a reference.
        let used = Self(unsafe { &mut *handle });
        if used.0.stage.is_of_other_thread() {
            misuse(format!("{function}: expected the thread that has begun the run"));
            return None;
        }
        Some(used)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

/// Borrows the bytes of a caller.
///
/// # Safety
/// `data` has `size` bytes, or is null if `size` is 0.
pub(crate) unsafe fn bytes<'b>(data: *const u8, size: usize) -> &'b [u8] {
    match data.is_null() || size == 0 {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data, size) },
    }
}

/// Creates a harness. `target` is the name of a fuzz target: "map_extents", "hostile", "raw_image", "refcounts",
/// "writes" or "hostile_writes". The library copies `engine` and its texts. Without callbacks (or with a null pointer:
/// then the code claims all features of qcow2), the caller answers step by step. Returns null on an error. The caller
/// frees the harness by `qcowfuzz_free`.
///
/// # Safety
/// `target` is a string that ends with a zero; `engine` is null or valid, and its texts are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_new(
    target: *const c_char,
    engine: *const EngineTable,
) -> *mut Handle {
    // SAFETY: the caller's promise.
    match unsafe { created_by(target, engine) } {
        Ok(handle) => Box::into_raw(Box::new(handle)),
        Err(what) => {
            misuse(format!("qcowfuzz_new: {what}"));
            ptr::null_mut()
        }
    }
}

/// # Safety
/// As for `qcowfuzz_new`.
unsafe fn created_by(target: *const c_char, engine: *const EngineTable) -> Result<Handle, String> {
    // SAFETY: the caller's promise.
    let name = unsafe { copied(target) }.ok_or("target: expected a name, found a null pointer")?;
    let target = target_named(&name)?;
    let table = match engine.is_null() {
        true => EngineTable::NONE,
        // SAFETY: the caller's promise.
        false => unsafe { EngineTable::copied_from(engine)? },
    };
    // SAFETY: the caller's promise.
    let mut facts = unsafe { table.facts()? };
    if table.open.is_some() || table.open_to_write.is_some() {
        facts.answers = table.answers();
        if table.size.is_none() {
            return Err("size: expected a callback, found none".into());
        }
    }
    Ok(Handle::new(target, facts, table.without_texts()))
}

/// Returns the target of that name.
///
/// # Errors
/// There is none for this library: one line for the user.
pub(crate) fn target_named(name: &str) -> Result<TargetKind, String> {
    TargetKind::of_libfuzzer().find(|kind| kind.name() == name).ok_or_else(|| {
        let names: Vec<_> = TargetKind::of_libfuzzer().map(TargetKind::name).collect();
        format!("target: expected one of {}, found '{name}'", names.join(", "))
    })
}

/// Frees a harness. A run that waits for an answer ends. Does nothing with a null pointer.
///
/// # Safety
/// `handle` is null, or was made by `qcowfuzz_new` and not freed; no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_free(handle: *mut Handle) {
    // SAFETY: the caller's promise.
    if let Some(used) = unsafe { Use::begin(handle, "qcowfuzz_free") } {
        drop(used);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Begins the run of an input: any bytes. A run that waits for an answer ends without a verdict. Returns
/// QCOWFUZZ_ASKS, QCOWFUZZ_NOTHING, QCOWFUZZ_FINDING or QCOWFUZZ_ERROR. If the harness asks, `question` becomes the
/// first question.
///
/// # Safety
/// `handle` is null or valid; `data` has `size` bytes; `question` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_begin(
    handle: *mut Handle,
    data: *const u8,
    size: usize,
    question: *mut Question,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_begin") }) else {
        return QCOWFUZZ_ERROR;
    };
    // SAFETY: the caller's promise.
    let end = used.0.begin(unsafe { bytes(data, size) });
    // SAFETY: the caller's promise.
    used.0.ask(unsafe { question.as_mut() }, end)
}

/// Answers the question of a run. Returns as `qcowfuzz_begin` does: if the harness asks again, `question` becomes its
/// next question. `answer` and `question` may be parts of one structure.
///
/// # Safety
/// `handle` is null or valid; `answer` is null or valid; `question` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_answer(
    handle: *mut Handle,
    answer: *const Answer,
    question: *mut Question,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(used) = (unsafe { Use::begin(handle, "qcowfuzz_answer") }) else {
        return QCOWFUZZ_ERROR;
    };
    // SAFETY: the caller's promise.
    let Some(answer) = (unsafe { answer.as_ref() }) else {
        return misuse("qcowfuzz_answer: expected an answer, found a null pointer");
    };
    // SAFETY: the caller's promise.
    let reply = unsafe { answer.taken(&used.0.questions.details) };
    let end = used.0.answer(reply);
    // SAFETY: the caller's promise.
    used.0.ask(unsafe { question.as_mut() }, end)
}

impl Handle {
    /// Stores the question that the harness has, if it asks.
    fn ask(&mut self, into: Option<&mut Question>, end: c_int) -> c_int {
        if end == QCOWFUZZ_ASKS
            && let Some(question) = self.questions.exchange.question()
            && let Some(into) = into
        {
            *into = question;
        }
        end
    }
}

/// Runs an input: any bytes. The callbacks of the code under test answer all questions. Returns QCOWFUZZ_NOTHING,
/// QCOWFUZZ_FINDING or QCOWFUZZ_ERROR. Calls of one harness do not nest: a callback may not run it.
///
/// # Safety
/// `handle` is null or valid; `data` has `size` bytes; the callbacks keep the rules of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn qcowfuzz_run(
    handle: *mut Handle,
    data: *const u8,
    size: usize,
) -> c_int {
    let mut question = Question::NONE;
    // SAFETY: the caller's promise.
    let mut end = unsafe { qcowfuzz_begin(handle, data, size, &mut question) };
    if end != QCOWFUZZ_ASKS {
        return end;
    }
    // SAFETY: the handle is valid, because it asks. The callbacks run between the calls that use it, and own nothing of
    // this frame.
    unsafe {
        let (table, run) = ((*handle).table, (*handle).runs);
        // The handle keeps the details as long as it lives.
        let extents =
            ptr::from_ref(&Rc::as_ref(&*ptr::addr_of!((*handle).questions.details)).extents);
        while end == QCOWFUZZ_ASKS {
            let answer = table.call(&question, extents);
            if (*handle).runs != run {
                return misuse(
                    "qcowfuzz_run: expected one run at a time, found that a callback began another one",
                );
            }
            end = qcowfuzz_answer(handle, &answer, &mut question);
        }
    }
    end
}

/// Returns the fingerprint of the last finding: a short description of the bug, which is the same for the same bug. It
/// is empty without a finding, and valid until the next run of the harness.
///
/// # Safety
/// `handle` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_fingerprint(handle: *mut Handle) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { Use::begin(handle, "qcowfuzz_fingerprint") }
        .map_or(c"".as_ptr(), |used| used.0.fingerprint.as_ptr())
}

/// Returns the last finding in words: the fingerprint, and lines with the offsets and values. It is empty without a
/// finding, and valid until the next run of the harness.
///
/// # Safety
/// `handle` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_report(handle: *mut Handle) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { Use::begin(handle, "qcowfuzz_report") }
        .map_or(c"".as_ptr(), |used| used.0.report.as_ptr())
}

/// Fills `into` with the numbers of the last run without a finding. Returns 0 or QCOWFUZZ_ERROR.
///
/// # Safety
/// `handle` is null or valid; `into` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_outcome(handle: *mut Handle, into: *mut OutcomeCounts) -> c_int {
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_outcome") };
    // SAFETY: the caller's promise.
    let (Some(used), Some(into)) = (used, unsafe { into.as_mut() }) else {
        return misuse(
            "qcowfuzz_outcome: expected a harness that is not in use, and a place for the result",
        );
    };
    let Outcome { operations, images, refused, failed, unsupported, .. } = used.0.outcome;
    *into = OutcomeCounts { operations, images, refused, failed, unsupported: unsupported.into() };
    0
}

/// Prints the last finding to standard error: the report, and the lines by which ClusterFuzz names the bug.
///
/// # Safety
/// `handle` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_print(handle: *mut Handle) {
    // SAFETY: the caller's promise.
    if let Some(used) = unsafe { Use::begin(handle, "qcowfuzz_print") } {
        let fingerprint = used.0.fingerprint.to_string_lossy();
        eprint!("{}\n{}", used.0.report.to_string_lossy(), CrashState::of_violation(&fingerprint));
    }
}
