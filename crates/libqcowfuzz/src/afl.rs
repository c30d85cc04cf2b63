//! AFL++: the functions of a custom mutator, by which `AFL_CUSTOM_MUTATOR_LIBRARY=libqcowfuzz.so` makes AFL++ mutate
//! programs. The environment variable `QCOWFUZZ_TARGET` names the fuzz target, by default `map_extents`. The code under
//! test is another process, so the mutator knows no claims: the harness there leaves out what the code does not claim.

use std::ffi::{c_uint, c_void};
use std::ptr;

use harness::harness::targets::TargetKind;
use harness::internal::images::entropy::Entropy;
use harness::prelude::Facts;

use crate::errors::guarded;
use crate::handle::{bytes, target_named};
use crate::programs::Inputs;

/// The environment variable with the name of the fuzz target.
const TARGET: &str = "QCOWFUZZ_TARGET";

/// The mutator of an AFL++ process.
pub struct AflMutator {
    target: TargetKind,
    facts: Facts,
    entropy: Entropy,
    /// The child, which AFL++ copies.
    child: Vec<u8>,
}

/// Creates the mutator of an AFL++ process. Returns null if `QCOWFUZZ_TARGET` names no target: AFL++ then ends.
#[unsafe(no_mangle)]
pub extern "C" fn afl_custom_init(_afl: *mut c_void, seed: c_uint) -> *mut AflMutator {
    let name = std::env::var(TARGET).unwrap_or_else(|_| "map_extents".into());
    match target_named(&name) {
        Ok(target) => {
            let (facts, entropy) = (Facts::new("AFL++"), Entropy::new(u64::from(seed)));
            Box::into_raw(Box::new(AflMutator { target, facts, entropy, child: Vec::new() }))
        }
        Err(what) => {
            eprintln!("{TARGET}: {what}");
            ptr::null_mut()
        }
    }
}

/// Mutates an input, with parts of another one.
///
/// # Safety
/// `mutator` is that of `afl_custom_init`; the inputs have as many bytes as their sizes say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn afl_custom_fuzz(
    mutator: *mut AflMutator,
    data: *mut u8,
    size: usize,
    into: *mut *const u8,
    other: *const u8,
    other_size: usize,
    max_size: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let (Some(mutator), Some(into)) = (unsafe { mutator.as_mut() }, unsafe { into.as_mut() })
    else {
        return 0;
    };
    // SAFETY: the caller's promise.
    let (parent, other) = unsafe { (bytes(data, size), bytes(other, other_size)) };
    let other = Some(other).filter(|other| !other.is_empty());
    let inputs = Inputs { target: mutator.target, facts: &mutator.facts };
    let seed = mutator.entropy.next_u64();
    let child = guarded("afl_custom_fuzz", || inputs.child(parent, other, max_size, seed));
    mutator.child = child.unwrap_or_default();
    *into = mutator.child.as_ptr();
    mutator.child.len()
}

/// Frees the mutator.
///
/// # Safety
/// `mutator` is null, or that of `afl_custom_init`, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn afl_custom_deinit(mutator: *mut AflMutator) {
    if !mutator.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(mutator) });
    }
}
