//! Tests of all mutations.

use crate::harness::cases::tracer::AccessedRange;
use crate::images::files::LayerFile;
use crate::programs::Operation;
use crate::programs::generate::{GenerateSettings, generate};
use crate::programs::operand::{BytesKind, Length};
use crate::programs::program::framing::data_of;

use super::*;

fn context(rng_seed: u64, other: &Program) -> MutationContext<'_> {
    // Attacks and requests: each mutation has something to do.
    let limits = Limits { requests: Limits::WRITTEN.requests, ..Limits::HOSTILE };
    MutationContext::untraced(Entropy::new(rng_seed), limits, 64, Some(other))
}

#[test]
fn each_mutation_changes_most_programs_and_keeps_the_rest() {
    let other = generate(77, GenerateSettings { operations: 20, compressed: true });
    for mutation in MUTATIONS {
        let MutationChange::Program(change) = mutation.change else { continue };
        let (mut changed, mut claimed) = (0, 0);
        for rng_seed in 0..200 {
            let before = generate(rng_seed, GenerateSettings { operations: 20, compressed: true });
            let mut after = before.clone();
            claimed += u32::from(change(&mut after, &mut context(rng_seed, &other)));
            changed += u32::from(after != before);
            assert!(after.operations.len() <= 64);
            let mut again = before.clone();
            change(&mut again, &mut context(rng_seed, &other));
            assert_eq!(again, after, "{}", mutation.name);
        }
        assert!(changed > 60 && claimed >= changed, "{}: {changed} of {claimed}", mutation.name);
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
        for rng_seed in 0..400 {
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
            let adds = [
                "insert",
                "tail",
                "bytes",
                "flight",
                "fault",
                "rewrite",
                "accessed entry",
                "operand",
            ];
            if adds.contains(&mutation.name) {
                continue;
            }
            let mut known = [&before, &other].map(|it| it.operations.clone()).concat();
            known.retain(|it| !matches!(it, Operation::Data(_) | Operation::Bytes { .. }));
            for operation in &after.operations {
                let is_given = matches!(operation, Operation::Data(_) | Operation::Bytes { .. });
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
        operand::bytes(&mut after, &mut context(rng_seed, &other));
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
        let length =
            mutate(&mut data, size, max_size, rng_seed, Limits::WALKED, &mut || None, bytes);
        assert!((1..=max_size).contains(&length));
        assert_eq!(
            mutate(&mut again, size, max_size, rng_seed, Limits::WALKED, &mut || None, bytes),
            length
        );
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
        let length = mutate(
            &mut copy,
            size,
            size - 1,
            rng_seed,
            Limits::WALKED,
            &mut || None,
            |_, _, most| most,
        );
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

/// Returns the accesses of an engine that reads all of a file.
fn whole_file() -> Vec<AccessedRange> {
    vec![AccessedRange { depth: 0, file: LayerFile::Image, bytes: 0..u64::MAX }]
}

#[test]
fn each_mutation_changes_most_files_and_stays_within_bounds() {
    assert_eq!(of_files().count(), 6);
    for mutation in of_files() {
        let MutationChange::File(change) = mutation.change else { unreachable!() };
        let mut changed = 0;
        for rng_seed in 0..300 {
            let (before, other) = (some_file(rng_seed), some_file(!rng_seed));
            let max_bytes = before.len().max(2000);
            let change = |file: &mut Vec<u8>| {
                let (entropy, other) = (Entropy::new(rng_seed), &other[..]);
                let trace = &mut || Some(whole_file());
                change(file, &mut FileContext { entropy, other, max_bytes, sound: true, trace })
            };
            let (mut after, mut again) = (before.clone(), before.clone());
            let claimed = change(&mut after);
            change(&mut again);
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
            let (other, trace) = (&[1, 2, 3][..], &mut || Some(whole_file()));
            let mut context = FileContext { entropy, other, max_bytes: 9, sound: true, trace };
            change(&mut file, &mut context);
            assert!(file.len() <= 9, "{}", mutation.name);
        }
    }
    let mutated = |rng_seed| {
        let (entropy, other, max_bytes) = (Entropy::new(rng_seed), &[7; 600][..], 1000);
        let (mut file, trace) = (Vec::new(), &mut || Some(whole_file()));
        let mut context = FileContext { entropy, other, max_bytes, sound: true, trace };
        mutate_file(&mut file, &mut context, &WEIGHTS);
        file
    };
    assert!((0..50).any(|rng_seed| !mutated(rng_seed).is_empty()));
    assert!((0..50).all(|rng_seed| mutated(rng_seed) == mutated(rng_seed)));
}
