//! Mutations of programs, one per file. Each is a pure function of the program and its entropy.
//!
//! libFuzzer's own mutations change bytes: mostly operands, seldom an opcode. The mutations of this module change whole
//! operations: they add, remove, reorder and aim them. One of them changes the entries that the walker reads. Data stay
//! data: after each mutation, the program is [framed](crate::programs::framing).

mod aim;
mod bytes;
mod context;
mod crossover;
mod delete;
mod generated;
mod geometry;
mod insert;
mod operand;
mod payload;
mod refused;
mod refused_formats;
mod repeat;
mod sniper;
mod splice;
mod swap;
mod tail;

use crate::disk::limits::MAX_OPERATIONS;
use crate::images::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::Program;
use crate::programs::framing::reframe;
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::prologue::PROLOGUE_BYTES;

pub use crossover::crossover;

use context::MutationContext;

/// A mutation.
#[derive(Clone, Copy)]
pub struct Mutation {
    /// The name.
    pub name: &'static str,
    /// The weight with which it is chosen.
    pub weight: u64,
    /// libFuzzer has an equivalent mutation, so [`mutate`] does not choose this one.
    libfuzzers: bool,
    /// Changes a program. Returns false if there is nothing to change.
    change: fn(&mut Program, &mut MutationContext) -> bool,
}

/// All mutations. Each weight is a guess. Their joint effect was measured (`docs/performance.md`).
pub const MUTATIONS: &[Mutation] = &[
    Mutation { name: "insert", weight: 4, libfuzzers: false, change: insert::change },
    Mutation { name: "delete", weight: 2, libfuzzers: false, change: delete::change },
    Mutation { name: "repeat", weight: 1, libfuzzers: false, change: repeat::change },
    Mutation { name: "swap", weight: 1, libfuzzers: false, change: swap::change },
    Mutation { name: "splice", weight: 1, libfuzzers: false, change: splice::change },
    Mutation { name: "payload", weight: 1, libfuzzers: false, change: payload::change },
    Mutation { name: "operand", weight: 6, libfuzzers: false, change: operand::change },
    Mutation { name: "geometry", weight: 2, libfuzzers: false, change: geometry::change },
    Mutation { name: "tail", weight: 1, libfuzzers: false, change: tail::change },
    Mutation { name: "sniper", weight: 2, libfuzzers: false, change: sniper::change },
    Mutation { name: "bytes", weight: 4, libfuzzers: true, change: bytes::change },
    Mutation { name: "crossover", weight: 4, libfuzzers: true, change: crossover::change },
];

/// The weight of each of [`MUTATIONS`].
pub type Weights = [u64; MUTATIONS.len()];

/// The mutations that changed a program: a bit for each place in [`MUTATIONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used(u32);

impl Used {
    /// Returns their places in [`MUTATIONS`], in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MUTATIONS.len()).filter(move |place| self.0 & 1 << place != 0)
    }
}

/// The average number of calls of [`mutate`] for one call of libFuzzer's own mutation of bytes.
const BYTES_ONE_IN: u64 = 4;

/// Mutates the program in `data[..size]` in place to a program of at most `max_size` bytes, and returns its length,
/// which is not 0. The same `rng_seed` gives the same program. `limits` are the limits of the target. `bytes` is
/// libFuzzer's mutation of bytes.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    rng_seed: u32,
    limits: Limits,
    bytes: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    const WEIGHTS: Weights = {
        let (mut weights, mut at) = ([0; MUTATIONS.len()], 0);
        while at < MUTATIONS.len() {
            weights[at] = if MUTATIONS[at].libfuzzers { 0 } else { MUTATIONS[at].weight };
            at += 1;
        }
        weights
    };
    let mut entropy = Entropy::new(u64::from(rng_seed));
    let room = max_size.saturating_sub(PROLOGUE_BYTES) / OPERATION_BYTES;
    if max_size < PROLOGUE_BYTES || entropy.one_in(BYTES_ONE_IN) {
        return bytes(data, size, max_size);
    }
    let mut program = Program::decode(&data[..size]);
    let most = room.min(MAX_OPERATIONS);
    // libFuzzer may have mutated the program already without running it. There is no way to find out.
    let mut context = MutationContext { entropy, limits, most, other: None, sound: true };
    change(&mut program, &mut context, &WEIGHTS);
    let encoded = program.encode();
    let length = encoded.len().min(max_size);
    data[..length].copy_from_slice(&encoded[..length]);
    length
}

/// The parameters of a child, except its parent.
#[derive(Clone, Copy)]
pub struct Breeding<'b> {
    /// A program from which the child may take operations.
    pub other: &'b Program,
    /// The weight of each mutation.
    pub weights: &'b Weights,
    /// The limits of the target.
    pub limits: Limits,
    /// The highest number of operations of the child.
    pub max_operations: usize,
    /// The parent was run without a finding. Only then may a mutation run it again.
    pub sound: bool,
}

/// Turns a program into a child of it, and returns the mutations that did so. The same `rng_seed` gives the same child.
pub fn breed(program: &mut Program, breeding: &Breeding, rng_seed: u64) -> Used {
    let Breeding { other, weights, limits, max_operations, sound } = *breeding;
    let (entropy, most) = (Entropy::new(rng_seed), max_operations.min(MAX_OPERATIONS));
    change(
        program,
        &mut MutationContext { entropy, limits, most, other: Some(other), sound },
        weights,
    )
}

/// Applies one, two or four mutations to a program, and returns those that changed it.
fn change(program: &mut Program, context: &mut MutationContext, weights: &Weights) -> Used {
    if program.operations.len() > context.most {
        delete::to_length(program, context);
        context.sound = false;
    }
    let wanted = 1 << context.entropy.below(3).min(context.entropy.below(3));
    let (mut changed, mut used) = (0, Used::default());
    // The bound suffices: some mutation changes any program (each has a geometry).
    for _ in 0..wanted * 8 {
        if let Some(place) = context.entropy.weighted(weights.iter().copied())
            && (MUTATIONS[place].change)(program, context)
        {
            reframe(&mut program.operations);
            changed += 1;
            used.0 |= 1 << place;
            context.sound = false;
        }
        if changed == wanted {
            break;
        }
    }
    program.operations.truncate(context.most);
    reframe(&mut program.operations);
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Operation;
    use crate::programs::framing::data_of;
    use crate::programs::generate::{GenerateSettings, generate};
    use crate::programs::operand::{BytesKind, Length};

    fn context(rng_seed: u64, other: &Program) -> MutationContext<'_> {
        let entropy = Entropy::new(rng_seed);
        MutationContext {
            entropy,
            limits: Limits::HOSTILE,
            most: 64,
            other: Some(other),
            sound: true,
        }
    }

    #[test]
    fn each_mutation_changes_most_programs_and_keeps_the_rest() {
        let other = generate(77, GenerateSettings { operations: 20, compressed: true });
        for mutation in MUTATIONS {
            let (mut changed, mut claimed) = (0, 0);
            for rng_seed in 0..200 {
                let before =
                    generate(rng_seed, GenerateSettings { operations: 20, compressed: true });
                let mut after = before.clone();
                claimed += u32::from((mutation.change)(&mut after, &mut context(rng_seed, &other)));
                changed += u32::from(after != before);
                assert!(after.operations.len() <= 64);
                let mut again = before.clone();
                (mutation.change)(&mut again, &mut context(rng_seed, &other));
                assert_eq!(again, after, "{}", mutation.name);
            }
            assert!(
                changed > 60 && claimed >= changed,
                "{}: {changed} of {claimed}",
                mutation.name
            );
        }
    }

    /// Returns a program that has three operations with data between others. All its data have the lowest bit set.
    fn with_given_bytes(rng_seed: u64) -> Program {
        let mut program = generate(rng_seed, GenerateSettings { operations: 8, compressed: true });
        for (at, length) in [(6, 30), (3, 5), (0, 16)] {
            let bytes: Vec<u8> = (0..length).map(|byte| byte << 1 | 1).collect();
            let (kind, length) = (BytesKind::Payload, Length::at_most(bytes.len()));
            let given = std::iter::once(Operation::Bytes { kind, length });
            program.operations.splice(at..at, given.chain(data_of(&bytes)));
        }
        program
    }

    #[test]
    fn mutations_change_data_and_never_take_them_for_operations() {
        let other = with_given_bytes(99);
        let (mut shorter, mut longer, mut changed) = (0, 0, 0);
        for mutation in MUTATIONS {
            for rng_seed in 0..300 {
                let before = with_given_bytes(rng_seed % 7);
                assert_eq!(Program::decode(&before.encode()), before);
                let mut after = before.clone();
                let mut context = context(rng_seed, &other);
                (mutation.change)(&mut after, &mut context);
                reframe(&mut after.operations);
                assert!(after.operations.len() <= 64);
                assert_eq!(Program::decode(&after.encode()), after, "{}", mutation.name);
                let data = |program: &Program| {
                    let all = program.operations.iter();
                    all.filter(|it| matches!(it, Operation::Data(_))).copied().collect::<Vec<_>>()
                };
                let (old, new) = (data(&before), data(&after));
                shorter += usize::from(new.len() < old.len());
                longer += usize::from(new.len() > old.len());
                changed += usize::from(new.len() == old.len() && new != old);
                // These mutations add operations of random kinds, or change an opcode.
                if matches!(mutation.name, "insert" | "tail" | "bytes" | "sniper" | "operand") {
                    continue;
                }
                let mut known = [&before, &other].map(|it| it.operations.clone()).concat();
                known.retain(|it| !matches!(it, Operation::Data(_) | Operation::Bytes { .. }));
                for operation in &after.operations {
                    let is_given =
                        matches!(operation, Operation::Data(_) | Operation::Bytes { .. });
                    let is_new = mutation.name == "payload" || mutation.name == "geometry";
                    let is_known = known.contains(operation);
                    assert!(is_given || is_new || is_known, "{}: {operation}", mutation.name);
                }
            }
        }
        assert!(shorter > 300 && longer > 300 && changed > 300, "{shorter} {longer} {changed}");
    }

    #[test]
    fn bytes_in_a_row_stay_the_same_records() {
        let other = with_given_bytes(99);
        let frames = |program: &Program| {
            let record = |one: &Operation| match one {
                Operation::Bytes { length, .. } => usize::from(length.get()),
                Operation::Data(_) => 10_000,
                _ => 20_000,
            };
            program.operations.iter().map(record).collect::<Vec<_>>()
        };
        for rng_seed in 0..2000 {
            let before = with_given_bytes(rng_seed % 7);
            let mut after = before.clone();
            bytes::change(&mut after, &mut context(rng_seed, &other));
            // An operation may disappear, if its opcode gets no meaning. Its neighbours stay.
            let (mut old, new) = (frames(&before), frames(&after));
            old.retain(|record| *record < 20_000);
            assert_eq!(new.into_iter().filter(|it| *it < 20_000).collect::<Vec<_>>(), old);
        }
    }

    #[test]
    fn any_bytes_of_any_length_are_mutated_within_bounds() {
        let mut entropy = Entropy::new(2);
        for rng_seed in 0..5000 {
            let size = entropy.below(200) as usize;
            let max_size = 1 + entropy.below(200) as usize;
            let mut data = vec![0; size.max(max_size)];
            data.fill_with(|| entropy.next_u64() as u8);
            let mut again = data.clone();
            let bytes = |_: &mut [u8], size: usize, most: usize| size.clamp(1, most);
            let length = mutate(&mut data, size, max_size, rng_seed, Limits::WALKED, bytes);
            assert!((1..=max_size).contains(&length));
            assert_eq!(mutate(&mut again, size, max_size, rng_seed, Limits::WALKED, bytes), length);
            assert_eq!(data, again);
        }
    }

    #[test]
    fn shrinking_keeps_operations_whole() {
        let program = generate(5, GenerateSettings { operations: 30, compressed: true });
        let data = program.encode();
        let size = data.len();
        let mut shorter = 0;
        for rng_seed in 0..50 {
            let mut copy = data.clone();
            let length =
                mutate(&mut copy, size, size - 1, rng_seed, Limits::WALKED, |_, _, most| most);
            assert!(length < size);
            shorter += usize::from((length - PROLOGUE_BYTES).is_multiple_of(OPERATION_BYTES));
        }
        assert!(shorter > 25, "{shorter}");
    }
}
