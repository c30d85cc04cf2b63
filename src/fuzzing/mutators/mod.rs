//! Mutations of programs and of files. Each is a pure function of the input and its entropy.
//!
//! libFuzzer's own mutations change bytes: mostly operands, seldom an opcode. The mutations of this module change whole
//! operations: they add, remove, reorder and aim them. One of them changes the entries that the engine under test
//! reads, and one the bytes of a file that it reads. Data stay data: after each mutation, the program is
//! [framed](crate::programs::program::framing).

mod accessed;
mod context;
mod file;
mod groups;
mod operand;
mod operations;
mod refused;

use crate::base::limits::MAX_OPERATIONS;
use crate::harness::cases::tracer::TraceRun;
use crate::images::content::entropy::Entropy;
use crate::images::format::list;
use crate::images::limits::Limits;
use crate::programs::Program;
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::program::framing::reframe;
use crate::programs::prologue::PROLOGUE_BYTES;

pub use context::MutationContext;
pub use file::FileContext;
pub use operations::crossover;

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

/// All mutations. Each weight is a guess. Their joint effect was measured (`docs/architecture.md`).
pub const MUTATIONS: &[Mutation] = &[
    Mutation::of_programs(("insert", 4), operations::insert),
    Mutation::of_programs(("delete", 2), operations::delete),
    Mutation::of_programs(("repeat", 1), operations::repeat),
    Mutation::of_programs(("swap", 1), operations::swap),
    Mutation::of_programs(("splice", 1), operations::splice),
    Mutation::of_programs(("payload", 1), operand::payload),
    Mutation::of_programs(("operand", 6), operand::change),
    Mutation::of_programs(("geometry", 2), operand::geometry),
    Mutation::of_programs(("tail", 1), operations::tail),
    Mutation::of_programs(("flight", 3), groups::flight),
    Mutation::of_programs(("fault", 2), groups::fault),
    Mutation::of_programs(("rewrite", 1), groups::rewrite),
    Mutation::of_programs(("accessed entry", 2), accessed::change),
    Mutation::of_programs(("bytes", 4), operand::bytes).of_libfuzzer(),
    Mutation::of_programs(("crossover", 4), operations::from_other).of_libfuzzer(),
    Mutation::of_files(("file bytes", 4), |file, context| file::bytes(file, context)),
    Mutation::of_files(("file word", 6), |file, context| file::word(file, context)),
    Mutation::of_files(("file range", 2), file::range),
    Mutation::of_files(("file length", 1), file::length),
    Mutation::of_files(("file mix", 2), file::mix),
    Mutation::of_files(("file accessed", 2), |file, context| file::accessed(file, context)),
];

/// The weight of each of [`MUTATIONS`].
pub type Weights = [u64; MUTATIONS.len()];

/// The weights of all mutations.
pub const WEIGHTS: Weights = weights(true);

/// Returns the weights of all mutations, with or without those that libFuzzer has.
const fn weights(has_those_of_libfuzzer: bool) -> Weights {
    let (mut weights, mut at) = ([0; MUTATIONS.len()], 0);
    while at < MUTATIONS.len() {
        if has_those_of_libfuzzer || !MUTATIONS[at].libfuzzers {
            weights[at] = MUTATIONS[at].weight;
        }
        at += 1;
    }
    weights
}

/// The average number of calls of [`mutate`] for one call of libFuzzer's own mutation of bytes.
const BYTES_ONE_IN: u64 = 4;

/// Mutates the program in `data[..size]` in place to a program of at most `max_size` bytes, and returns its length,
/// which is not 0. The same `rng_seed` gives the same program. `limits` are the limits of the target. `bytes` is
/// libFuzzer's mutation of bytes. `trace` runs the program in `data` with the engine under test, if a mutation needs
/// that.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    rng_seed: u32,
    limits: Limits,
    trace: &mut TraceRun,
    bytes: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut entropy = Entropy::new(u64::from(rng_seed));
    let room = max_size.saturating_sub(PROLOGUE_BYTES) / OPERATION_BYTES;
    if max_size < PROLOGUE_BYTES || entropy.one_in(BYTES_ONE_IN) {
        return bytes(data, size, max_size);
    }
    let mut program = Program::decode(&data[..size]);
    let most = room.min(MAX_OPERATIONS);
    // libFuzzer runs each input before it mutates it, and ends the process that finds something. Other drivers of this
    // function may not: the caller's `trace` survives a panic.
    let mut context = MutationContext { entropy, limits, most, other: None, sound: true, trace };
    mutate_program(&mut program, &mut context, &weights(false));
    let encoded = program.encode();
    let length = encoded.len().min(max_size);
    data[..length].copy_from_slice(&encoded[..length]);
    length
}

/// One child of this many keeps the checksums that the mutations left wrong.
const WRONG_ONE_IN: u64 = 8;

/// Changes bytes of the file `data` that the engine under test has read, in a run of `trace`. Returns false
/// if none are known.
pub fn mutate_accessed_bytes(data: &mut [u8], trace: &mut TraceRun, rng_seed: u32) -> bool {
    let entropy = Entropy::new(u64::from(rng_seed));
    let max_bytes = data.len();
    let mut context = FileContext { entropy, other: &[], max_bytes, sound: true, trace };
    file::accessed(data, &mut context)
}

/// Turns a file into a child of it, by one, two or four mutations. The same context gives the same child for the same
/// engine under test.
pub fn mutate_file(file: &mut Vec<u8>, context: &mut FileContext, weights: &Weights) {
    let mut left = wanted(&mut context.entropy);
    for _ in 0..left * 8 {
        let chosen = choose(&mut context.entropy, weights, MutationChange::is_of_files);
        if let Some(MutationChange::File(change)) = chosen
            && change(file, context)
        {
            context.sound = false;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    if !context.entropy.one_in(WRONG_ONE_IN) {
        list::correct_checksums(file);
    }
}

/// Returns the number of mutations of a child: one, two or four.
fn wanted(entropy: &mut Entropy) -> usize {
    1 << entropy.below(3).min(entropy.below(3))
}

/// Chooses one of the mutations that `wanted` accepts by its weight.
fn choose(
    entropy: &mut Entropy,
    weights: &Weights,
    wanted: impl Fn(MutationChange) -> bool + Clone,
) -> Option<MutationChange> {
    let all = weights.iter().zip(MUTATIONS);
    let place =
        entropy.weighted(all.map(|(weight, it)| if wanted(it.change) { *weight } else { 0 }));
    place.map(|place| MUTATIONS[place].change)
}

/// Turns a program into a child of it, by one, two or four mutations. The same context gives the same child for the
/// same engine under test.
pub fn mutate_program(program: &mut Program, context: &mut MutationContext, weights: &Weights) {
    if program.operations.len() > context.most {
        operations::to_length(program, context);
        context.sound = false;
    }
    let mut left = wanted(&mut context.entropy);
    // The bound suffices: some mutation changes any program (each has a geometry).
    for _ in 0..left * 8 {
        let chosen = choose(&mut context.entropy, weights, MutationChange::is_of_programs);
        if let Some(MutationChange::Program(change)) = chosen
            && change(program, context)
        {
            reframe(&mut program.operations);
            context.sound = false;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    program.operations.truncate(context.most);
    reframe(&mut program.operations);
}

#[cfg(test)]
mod tests;
