//! Inserts operations of another program.

use crate::base::limits::MAX_OPERATIONS;
use crate::images::entropy::Entropy;
use crate::programs::framing::{gap_from, reframe};
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let Some(other) = context.other else { return false };
    let before = program.operations.clone();
    mix(program, other, context.most, &mut context.entropy);
    program.operations != before
}

/// Writes a program with operations of both programs into `out` and returns its length. Returns 0 half of the time, and
/// if `out` is too small; then libFuzzer mutates instead.
pub fn crossover(one: &[u8], other: &[u8], out: &mut [u8], rng_seed: u32) -> usize {
    let mut entropy = Entropy::new(u64::from(rng_seed));
    if out.len() < PROLOGUE_BYTES || entropy.one_in(2) {
        return 0;
    }
    let (mut program, other) = (Program::decode(one), Program::decode(other));
    let most = ((out.len() - PROLOGUE_BYTES) / OPERATION_BYTES).min(MAX_OPERATIONS);
    mix(&mut program, &other, most, &mut entropy);
    let encoded = program.encode();
    out[..encoded.len()].copy_from_slice(&encoded);
    encoded.len()
}

/// Joins the first operations of `program` to operations of `other`, or replaces operations in the middle of `program`
/// by operations of `other`.
fn mix(program: &mut Program, other: &Program, most: usize, entropy: &mut Entropy) {
    let mut place = |all: &[Operation]| gap_from(all, entropy.below(all.len() as u64 + 1) as usize);
    let (first, end) = (place(&program.operations), place(&program.operations));
    let (from, until) = (place(&other.operations), place(&other.operations));
    let taken = &other.operations[from.min(until)..from.max(until)];
    let replaced = match entropy.below(2) {
        0 => first..program.operations.len(),
        _ => first..first.max(gap_from(&program.operations, end.min(first + taken.len()))),
    };
    program.operations.splice(replaced, taken.iter().copied());
    program.operations.truncate(most);
    reframe(&mut program.operations);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::generate::{GenerateSettings, generate};

    #[test]
    fn children_have_operations_of_both_parents() {
        let wanted = GenerateSettings { operations: 20, compressed: true };
        let (one, other) = (generate(1, wanted), generate(2, wanted));
        let mut out = [0; 400];
        let (mut declined, mut mixed) = (0, 0);
        for rng_seed in 0..400 {
            let length = crossover(&one.encode(), &other.encode(), &mut out, rng_seed);
            let child = Program::decode(&out[..length]);
            let of = |parent: &Program| {
                child.operations.iter().any(|operation| parent.operations.contains(operation))
            };
            declined += u32::from(length == 0);
            mixed += u32::from(length > 0 && of(&one) && of(&other));
            assert!(length == 0 || child.prologue == one.prologue);
        }
        assert!((120..280).contains(&declined) && mixed > 100, "{declined} {mixed}");
        assert_eq!(crossover(&one.encode(), &other.encode(), &mut [0; 10], 1), 0);
    }
}
