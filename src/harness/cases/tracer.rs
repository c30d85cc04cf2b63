//! Runs an input once more, to find which bytes of the files the engine under test reads and writes. Mutations aim at
//! these bytes.
//!
//! Only inputs that were run before without a finding are traced: the run is the same one, so it neither hangs nor
//! panics. An engine whose accesses are no feedback is not run: they do not depend on the input alone, or other events
//! say more, or the engine reads copies of the files in another process.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use crate::disk::observer::Observer;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::cases::target::{Expectation, Inputs};
use crate::harness::engine::{AccessFeedback, failure};
use crate::harness::files::meter::MAX_ACCESSES;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Harness};
use crate::images::files::LayerFile;

/// A range of a file of a chain that an engine has accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessedRange {
    /// The layer, counted from the top.
    pub depth: usize,
    /// The file of the layer.
    pub file: LayerFile,
    /// The bytes. The file may end before them.
    pub bytes: Range<u64>,
}

/// Finds the bytes that the engine under test accesses in a run; `None` if nothing is known about them.
pub type TraceRun<'t> = dyn FnMut() -> Option<Vec<AccessedRange>> + 't;

/// Runs inputs of a target for their accesses. It reuses the buffers of the target.
#[derive(Debug)]
pub struct Tracer {
    implementation: Implementation,
    kind: TargetKind,
    /// There is none after a panic, which leaves the buffers in an unknown state.
    harness: Option<Harness>,
    feedback: AccessFeedback,
}

/// Wants to know the accesses, and no other event.
struct Listener;

impl Observer for Listener {}

impl Tracer {
    /// Creates a tracer for inputs of the target `kind`. If the accesses of `implementation` are no feedback there, the
    /// target asks engines nothing, or its inputs have no part in the files, it traces no run.
    pub fn new(implementation: &Implementation, kind: TargetKind) -> Self {
        let harness = harness(implementation, kind);
        let facts = harness.facts();
        let feedback = match kind.definition().expectation {
            // The engine reads files of QEMU, and no byte of the input.
            Expectation::NotWalked | Expectation::Bytes => AccessFeedback::None,
            Expectation::Written => facts.writes(),
            _ => facts.reads,
        };
        let implementation = implementation.clone();
        Self { implementation, kind, harness: Some(harness), feedback }
    }

    /// Runs `input` as it was run before, and returns what the engine accesses in the last image that it gets.
    pub fn trace(&mut self, input: &[u8], checks: Checks) -> Option<Vec<AccessedRange>> {
        if self.feedback == AccessFeedback::None {
            return None;
        }
        let Self { implementation, kind, harness, feedback } = self;
        let target = harness.get_or_insert_with(|| self::harness(implementation, *kind));
        target.forget_accesses();
        // The verdict does not matter: the run had one before.
        let ran = catch_unwind(AssertUnwindSafe(|| drop(target.run(input, checks))));
        if let Err(panic) = ran {
            *harness = None;
            failure::pass_on(&*panic);
            return None;
        }
        let accesses = target.last_accesses();
        // The first accesses of a longer trace depend on its order.
        let is_whole = accesses.len() < MAX_ACCESSES || *feedback == AccessFeedback::Ordered;
        let ranges = accesses.iter().filter(|it| it.length_bytes > 0).map(|it| {
            let start = it.offset.get();
            let bytes = start..start.saturating_add(it.length_bytes);
            AccessedRange { depth: it.depth, file: it.file, bytes }
        });
        let ranges: Vec<_> = ranges.collect();
        (is_whole && !ranges.is_empty()).then_some(ranges)
    }
}

/// Creates the target. An engine that reports events aims by them; files have no other way to be aimed at.
fn harness(implementation: &Implementation, kind: TargetKind) -> Harness {
    let listener: Rc<dyn Observer> = Rc::new(Listener);
    let engine = match kind.definition().inputs {
        Inputs::Programs => implementation.tested(&listener),
        Inputs::Files | Inputs::Recipes => implementation.tested(&no_observer()),
    };
    Harness::of(kind, engine, listener)
}
