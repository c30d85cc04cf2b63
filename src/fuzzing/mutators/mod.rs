//! Mutations of programs and of files, one per file. Each is a pure function of the input and its entropy.
//!
//! libFuzzer's own mutations change bytes: mostly operands, seldom an opcode. The mutations of this module change whole
//! operations: they add, remove, reorder and aim them. One of them changes the entries that the walker reads. Data stay
//! data: after each mutation, the program is [framed](crate::programs::framing).

mod aim;
mod bytes;
mod context;
mod crossover;
mod delete;
mod file;
mod file_context;
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
use crate::harness::target::Inputs;
use crate::images::checksums;
use crate::images::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::Program;
use crate::programs::framing::reframe;
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::prologue::PROLOGUE_BYTES;

pub use crossover::crossover;

use context::MutationContext;
use file_context::FileContext;

/// A mutation.
#[derive(Clone, Copy)]
pub struct Mutation {
    /// The name.
    pub name: &'static str,
    /// The weight with which it is chosen.
    pub weight: u64,
    /// libFuzzer has an equivalent mutation, so [`mutate`] does not choose this one.
    libfuzzers: bool,
    /// Changes an input. Returns false if there is nothing to change.
    change: MutationChange,
}

/// The function of a mutation.
#[derive(Clone, Copy)]
enum MutationChange {
    Program(fn(&mut Program, &mut MutationContext) -> bool),
    File(fn(&mut Vec<u8>, &mut FileContext) -> bool),
}

impl MutationChange {
    fn is_of_files(self) -> bool {
        matches!(self, Self::File(_))
    }

    fn is_of_programs(self) -> bool {
        matches!(self, Self::Program(_))
    }
}

impl Mutation {
    /// Returns the kind of inputs that it changes.
    pub fn inputs(&self) -> Inputs {
        match self.change {
            MutationChange::Program(_) => Inputs::Programs,
            MutationChange::File(_) => Inputs::Files,
        }
    }

    const fn of_programs(
        (name, weight): (&'static str, u64),
        change: fn(&mut Program, &mut MutationContext) -> bool,
    ) -> Self {
        Self { name, weight, libfuzzers: false, change: MutationChange::Program(change) }
    }

    const fn of_files(
        (name, weight): (&'static str, u64),
        change: fn(&mut Vec<u8>, &mut FileContext) -> bool,
    ) -> Self {
        Self { name, weight, libfuzzers: true, change: MutationChange::File(change) }
    }

    const fn of_libfuzzer(self) -> Self {
        Self { libfuzzers: true, ..self }
    }
}

/// All mutations. Each weight is a guess. Their joint effect was measured (`docs/performance.md`).
pub const MUTATIONS: &[Mutation] = &[
    Mutation::of_programs(("insert", 4), insert::change),
    Mutation::of_programs(("delete", 2), delete::change),
    Mutation::of_programs(("repeat", 1), repeat::change),
    Mutation::of_programs(("swap", 1), swap::change),
    Mutation::of_programs(("splice", 1), splice::change),
    Mutation::of_programs(("payload", 1), payload::change),
    Mutation::of_programs(("operand", 6), operand::change),
    Mutation::of_programs(("geometry", 2), geometry::change),
    Mutation::of_programs(("tail", 1), tail::change),
    Mutation::of_programs(("sniper", 2), sniper::change),
    Mutation::of_programs(("bytes", 4), bytes::change).of_libfuzzer(),
    Mutation::of_programs(("crossover", 4), crossover::change).of_libfuzzer(),
    Mutation::of_files(("file bytes", 4), |file, context| file::bytes::change(file, context)),
    Mutation::of_files(("file word", 6), |file, context| file::word::change(file, context)),
    Mutation::of_files(("file range", 2), file::range::change),
    Mutation::of_files(("file length", 1), file::length::change),
    Mutation::of_files(("file mix", 2), file::mix::change),
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

    fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
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

/// One child of this many keeps the checksums that the mutations left wrong.
const WRONG_ONE_IN: u64 = 8;

/// The parameters of a child, except its parent.
#[derive(Clone, Copy)]
pub struct FileBreeding<'b> {
    /// A file from which the child may take bytes.
    pub other: &'b [u8],
    /// The weight of each mutation.
    pub weights: &'b Weights,
    /// The highest number of bytes of the child, at least that of its parent.
    pub max_bytes: usize,
}

/// Turns a file into a child of it, and returns the mutations that did so. The same `rng_seed` gives the same child.
pub fn breed_file(file: &mut Vec<u8>, breeding: &FileBreeding, rng_seed: u64) -> Used {
    let FileBreeding { other, weights, max_bytes } = *breeding;
    let mut context = FileContext { entropy: Entropy::new(rng_seed), other, max_bytes };
    let wanted = wanted(&mut context.entropy);
    let (mut changed, mut used) = (0, Used::default());
    for _ in 0..wanted * 8 {
        let Some(place) = choose(&mut context.entropy, weights, MutationChange::is_of_files) else {
            break;
        };
        if let MutationChange::File(change) = MUTATIONS[place].change
            && change(file, &mut context)
        {
            changed += 1;
            used.add(place);
        }
        if changed == wanted {
            break;
        }
    }
    if !context.entropy.one_in(WRONG_ONE_IN) {
        checksums::correct(file);
    }
    used
}

/// Returns the number of mutations of a child: one, two or four.
fn wanted(entropy: &mut Entropy) -> usize {
    1 << entropy.below(3).min(entropy.below(3))
}

/// Chooses one of the mutations that `wanted` accepts by its weight, and returns its place in [`MUTATIONS`].
fn choose(
    entropy: &mut Entropy,
    weights: &Weights,
    wanted: impl Fn(MutationChange) -> bool + Clone,
) -> Option<usize> {
    let all = weights.iter().zip(MUTATIONS);
    entropy.weighted(all.map(|(weight, it)| if wanted(it.change) { *weight } else { 0 }))
}

/// Applies one, two or four mutations to a program, and returns those that changed it.
fn change(program: &mut Program, context: &mut MutationContext, weights: &Weights) -> Used {
    if program.operations.len() > context.most {
        delete::to_length(program, context);
        context.sound = false;
    }
    let wanted = wanted(&mut context.entropy);
    let (mut changed, mut used) = (0, Used::default());
    // The bound suffices: some mutation changes any program (each has a geometry).
    for _ in 0..wanted * 8 {
        if let Some(place) = choose(&mut context.entropy, weights, MutationChange::is_of_programs)
            && let MutationChange::Program(change) = MUTATIONS[place].change
            && change(program, context)
        {
            reframe(&mut program.operations);
            changed += 1;
            used.add(place);
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
            let MutationChange::Program(change) = mutation.change else { continue };
            let (mut changed, mut claimed) = (0, 0);
            for rng_seed in 0..200 {
                let before =
                    generate(rng_seed, GenerateSettings { operations: 20, compressed: true });
                let mut after = before.clone();
                claimed += u32::from(change(&mut after, &mut context(rng_seed, &other)));
                changed += u32::from(after != before);
                assert!(after.operations.len() <= 64);
                let mut again = before.clone();
                change(&mut again, &mut context(rng_seed, &other));
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
                let MutationChange::Program(change) = mutation.change else { continue };
                change(&mut after, &mut context);
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
        assert!(shorter > 250 && longer > 250 && changed > 250, "{shorter} {longer} {changed}");
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

    fn of_files() -> impl Iterator<Item = &'static Mutation> {
        MUTATIONS.iter().filter(|mutation| mutation.change.is_of_files())
    }

    /// Returns a file with numbers between zeros.
    fn some_file(rng_seed: u64) -> Vec<u8> {
        let mut entropy = Entropy::new(rng_seed);
        let mut file = vec![0; 1 + entropy.below(3000) as usize];
        for _ in 0..20 {
            let at = entropy.below(file.len() as u64) as usize;
            file[at] = entropy.next_u64() as u8;
        }
        file
    }

    #[test]
    fn each_mutation_changes_most_files_and_stays_within_bounds() {
        assert_eq!(of_files().count(), 5);
        for mutation in of_files() {
            let MutationChange::File(change) = mutation.change else { unreachable!() };
            let mut changed = 0;
            for rng_seed in 0..300 {
                let (before, other) = (some_file(rng_seed), some_file(!rng_seed));
                let max_bytes = before.len().max(2000);
                let context =
                    || FileContext { entropy: Entropy::new(rng_seed), other: &other, max_bytes };
                let (mut after, mut again) = (before.clone(), before.clone());
                let claimed = change(&mut after, &mut context());
                change(&mut again, &mut context());
                assert_eq!(again, after, "{}", mutation.name);
                assert!((1..=max_bytes).contains(&after.len()), "{}", mutation.name);
                assert_eq!(claimed, after != before, "{}", mutation.name);
                changed += u32::from(claimed);
            }
            assert!(changed > 150, "{}: {changed}", mutation.name);
        }
    }

    #[test]
    fn an_empty_file_has_children() {
        for mutation in of_files() {
            let MutationChange::File(change) = mutation.change else { unreachable!() };
            for rng_seed in 0..50 {
                let entropy = Entropy::new(rng_seed);
                let mut file = Vec::new();
                change(&mut file, &mut FileContext { entropy, other: &[1, 2, 3], max_bytes: 9 });
                assert!(file.len() <= 9, "{}", mutation.name);
            }
        }
        let weights = [1; MUTATIONS.len()];
        let breeding = FileBreeding { other: &[7; 600], weights: &weights, max_bytes: 1000 };
        let bred = |rng_seed| {
            let mut file = Vec::new();
            let used = breed_file(&mut file, &breeding, rng_seed);
            (file, used)
        };
        assert!((0..50).any(|rng_seed| !bred(rng_seed).0.is_empty()));
        for rng_seed in 0..50 {
            assert_eq!(bred(rng_seed), bred(rng_seed));
            assert!(bred(rng_seed).1.iter().all(|place| MUTATIONS[place].change.is_of_files()));
        }
    }
}
