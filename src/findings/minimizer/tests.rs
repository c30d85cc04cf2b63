//! Minimizations with a known result. Each test defines the bug by an effect of the program.

use std::collections::BTreeSet;
use std::convert::Infallible;

use crate::formats::qcow2::geometry::Version;
use crate::images::content::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::generate::{GenerateSettings, generate};
use crate::programs::operand::BytesKind;
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::text::assemble;
use crate::programs::{JournalRecord, Operation, Program, Vm};

use super::*;

const SETTINGS: MinimizeSettings = MinimizeSettings {
    inputs: Inputs::Programs,
    limits: Limits::WALKED,
    tries: 100_000,
    rerolls: 0,
    runs_here: true,
};

/// Reports whether `shows` accepts the virtual machine after the program has run.
fn journal_shows(input: &[u8], limits: Limits, shows: impl Fn(&Vm) -> bool) -> bool {
    let program = Program::decode(input);
    let mut vm = Vm::new();
    vm.begin(&program.prologue, limits);
    for operation in &program.operations {
        vm.step(*operation);
    }
    shows(&vm)
}

fn keeps_zeros(vm: &Vm) -> bool {
    let kept =
        |record: &JournalRecord| matches!(record, JournalRecord::Zeroed { kept: Some(_), .. });
    vm.journals().any(|journal| journal.records.iter().any(kept))
}

/// Minimizes an input, and checks the properties of every minimization.
fn minimized(input: &[u8], settings: MinimizeSettings, shows: impl Fn(&[u8]) -> bool) -> Minimized {
    assert!(shows(input));
    let mut last = Measure::of(&Program::decode(input));
    let judge = &mut |candidate: &[u8]| {
        assert_eq!(Program::decode(candidate).encode(), candidate, "canonical inputs only");
        let shown = shows(candidate);
        let measure = Measure::of(&Program::decode(candidate));
        // The canonical form of the input is no step, even with another seed.
        if shown && candidate != Program::decode(input).encode() {
            assert!(measure < last, "{measure:?} after {last:?}");
            last = measure;
        }
        Ok::<_, Infallible>(shown)
    };
    let Ok(minimized) = minimize(input, settings, judge, &mut |_| ControlFlow::Continue(()));
    assert!(shows(&minimized.input), "what is left still shows it");
    minimized
}

fn text(minimized: &Minimized) -> Vec<String> {
    Program::decode(&minimized.input).to_string().lines().map(str::to_string).collect()
}

#[test]
fn what_is_not_needed_goes_and_the_rest_is_plain() {
    let shows = |input: &[u8]| journal_shows(input, Limits::WALKED, keeps_zeros);
    for rng_seed in 0..16 {
        let mut program =
            generate(rng_seed, GenerateSettings { operations: 120, compressed: true });
        // The last operation of the generated program then zeroes clusters and keeps them.
        let end =
            "image version=3 cluster_bits=9 refcount_order=0 features=none size=0<<0+0 rng_seed=0 \
                   blocks=append table=append tolerance=0
                   resize size=77<<16+5
                   write at=last-7 clusters=3
                   zero at=last-2 clusters=2 keep=yes";
        program.prologue.version = Version::V3;
        program.operations.extend(assemble(end).unwrap().operations);
        if !shows(&program.encode()) {
            continue;
        }
        let minimized = minimized(&program.encode(), SETTINGS, shows);
        assert!(minimized.complete && minimized.tries < 2000, "{}", minimized.tries);
        let text = text(&minimized);
        assert!(text[0].starts_with("image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 rng_seed=0 blocks=append table=append tolerance=0"), "{text:?}");
        let plain = ["write at=start+0 clusters=1", "zero at=start+0 clusters=1 keep=yes"];
        assert_eq!(text[1..], plain, "seed {rng_seed}");
        // A second minimization finds nothing to do, and returns the same input.
        let again = self::minimized(&minimized.input, SETTINGS, shows);
        assert_eq!((again.input, again.kept), (minimized.input, 0));
    }
}

#[test]
fn the_same_input_comes_to_the_same() {
    let shows = |input: &[u8]| Program::decode(input).operations.len() > 5;
    let input = generate(3, GenerateSettings { operations: 60, compressed: true }).encode();
    let [one, other] = [0, 1].map(|_| minimized(&input, SETTINGS, shows));
    assert_eq!(one, other);
    assert_eq!(Program::decode(&one.input).operations.len(), 6);
}

#[test]
fn data_become_shorter_and_zeros() {
    let program = assemble(
        "image version=3 cluster_bits=9 refcount_order=0 features=none size=100<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0
         bytes kind=id data=00112233445566778899aabbccddeeff0011
         bytes kind=payload data=0f0e0d0c0b0a0908070705040302017e44556677
         write at=start+3 clusters=9
         bytes kind=name data=",
    );
    // The bug needs a payload whose tenth byte has its lowest bit set, and one byte behind that.
    let shows = |input: &[u8]| {
        let program = Program::decode(input);
        let mut operations = program.operations.iter();
        let is_payload = |one: &&Operation| matches!(one, Operation::Bytes { kind: BytesKind::Payload, length } if length.get() > 10);
        let found = operations.find(is_payload).and_then(|_| operations.nth(1));
        matches!(found, Some(Operation::Data([_, byte, ..])) if byte & 1 == 1)
    };
    let minimized = minimized(&program.unwrap().encode(), SETTINGS, shows);
    assert!(minimized.complete);
    assert_eq!(text(&minimized)[1..], ["bytes kind=payload data=0000000000000000000100"]);
}

#[test]
fn layers_go_where_only_the_one_on_top_matters() {
    let program = assemble(
        "image version=3 cluster_bits=9 refcount_order=0 features=none size=100<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0
         write at=start+3 clusters=9
         overlay version=2 cluster_bits=12 refcount_order=4 features=none data_in=image size=+5<<12
         write at=end-0 clusters=1
         checkpoint
         discard at=end-0 clusters=1",
    );
    // In a small disk, the write in this layer would be at another place.
    let shows = |vm: &Vm| {
        let plan = vm.builder().plan();
        let large = plan.size_bytes > 60_000 && plan.geometry.version == Version::V2;
        let gone = |record: &JournalRecord| matches!(record, JournalRecord::Discarded { .. });
        large && vm.journal().records.iter().any(gone)
    };
    let shows = |input: &[u8]| journal_shows(input, Limits::WALKED, shows);
    let minimized = minimized(&program.unwrap().encode(), SETTINGS, shows);
    let text = text(&minimized);
    assert_eq!(text[1..], ["write at=start+0 clusters=1", "discard at=start+0 clusters=1"]);
    assert!(text[0].starts_with("image version=2 cluster_bits=16"), "{text:?}");
}

#[test]
fn attacks_become_flipped_bits_of_early_elements() {
    use crate::images::damage::Attack;
    let program = assemble(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0
         write at=start+1 clusters=1
         trap part=header depth=3 nth=1234 transform=misalign value=200 reads=9
         truncate depth=0 cut=1<<4
         patch part=l1 depth=0 nth=65000 transform=boundary value=999",
    );
    let on = |attack: &Attack| matches!(attack, Attack::Patch { .. });
    let shows = |vm: &Vm| vm.attacks().iter().filter(|attack| on(attack)).count() == 1;
    let shows = |input: &[u8]| journal_shows(input, Limits::HOSTILE, shows);
    let settings = MinimizeSettings { limits: Limits::HOSTILE, ..SETTINGS };
    let minimized = minimized(&program.unwrap().encode(), settings, shows);
    let text = text(&minimized);
    assert_eq!(text[1..], ["patch part=l2 depth=0 nth=0 transform=flip value=0"]);
}

#[test]
fn pairs_go_that_need_each_other() {
    let program = assemble(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0
         snapshot
         write at=start+1 clusters=1
         delete_snapshot index=0",
    );
    // The bug needs as many deletions as snapshots, so the minimizer has to drop a pair.
    let shows = |vm: &Vm| {
        let records = &vm.journal().records;
        let count = |of: fn(&JournalRecord) -> bool| records.iter().filter(|it| of(it)).count();
        let taken = count(|it| matches!(it, JournalRecord::SnapshotTaken));
        let deleted = count(|it| matches!(it, JournalRecord::SnapshotDeleted { .. }));
        count(|it| matches!(it, JournalRecord::Written { .. })) > 0 && taken == deleted
    };
    let shows = |input: &[u8]| {
        let count = Program::decode(input).operations.len();
        count % 2 == 1 && journal_shows(input, Limits::WALKED, shows)
    };
    let minimized = minimized(&program.unwrap().encode(), SETTINGS, shows);
    assert_eq!(text(&minimized)[1..], ["write at=start+0 clusters=1"]);
}

#[test]
fn a_checksum_that_decides_is_drawn_again() {
    let shows = |input: &[u8]| {
        crc32fast::hash(input).is_multiple_of(5)
            && journal_shows(input, Limits::WALKED, keeps_zeros)
    };
    let (mut alone, mut again, mut seen) = (0, 0, 0);
    for rng_seed in 0..200 {
        let input =
            generate(rng_seed, GenerateSettings { operations: 40, compressed: false }).encode();
        if !shows(&input) {
            continue;
        }
        let length = |rerolls| {
            let minimized = minimized(&input, MinimizeSettings { rerolls, ..SETTINGS }, shows);
            Program::decode(&minimized.input).operations.len()
        };
        (alone, again, seen) = (alone + length(0), again + length(12), seen + 1);
    }
    assert!(seen > 10 && again <= seen * 5 / 2 && alone > again, "{alone}, {again} of {seen}");
}

#[test]
fn noise_around_a_program_goes() {
    let mut input = generate(5, GenerateSettings { operations: 1, compressed: false }).encode();
    // An alias of the opcode, and a record that is cut short.
    input[20] = 40;
    input.extend([7; OPERATION_BYTES - 1]);
    let shows = |input: &[u8]| !Program::decode(input).operations.is_empty();
    let minimized = minimized(&input, SETTINGS, shows);
    assert_eq!(Program::decode(&minimized.input).encode(), minimized.input);
}

#[test]
fn what_cannot_be_shown_again_is_left_as_it_is() {
    let input = generate(5, GenerateSettings { operations: 9, compressed: false }).encode();
    let nothing = &mut |_: &[u8]| Ok::<_, Infallible>(false);
    let Ok(minimized) = minimize(&input, SETTINGS, nothing, &mut |_| ControlFlow::Continue(()));
    assert_eq!((minimized.input, minimized.kept), (input, 0));
}

#[test]
fn what_the_table_calls_plainer_is_plainer() {
    let mut entropy = Entropy::new(1);
    let measure = |operation: Operation| {
        Measure::of(&Program { operations: vec![operation], ..Program::default() })
    };
    let mut with_plainer = BTreeSet::new();
    for (code, name) in Operation::OPCODES {
        for _ in 0..200 {
            let mut record = [0; OPERATION_BYTES];
            record.fill_with(|| entropy.next_u64() as u8);
            let operation = Operation::decode(&Operation::with_opcode(*code, record)).unwrap();
            for plainer in operation.plainer() {
                assert!(
                    measure(plainer) < measure(operation),
                    "{plainer} is tried for {operation}"
                );
                with_plainer.insert(*name);
            }
        }
    }
    assert!(with_plainer.contains("zero") && with_plainer.contains("trap"), "{with_plainer:?}");
}

#[test]
fn an_error_of_the_judge_ends_the_minimization() {
    let input = generate(5, GenerateSettings { operations: 50, compressed: false }).encode();
    let mut judged = 0;
    let judge = &mut |_: &[u8]| {
        judged += 1;
        if judged == 3 { Err("no judge") } else { Ok(true) }
    };
    let ended = minimize(&input, SETTINGS, judge, &mut |_| ControlFlow::Continue(()));
    assert_eq!((ended.unwrap_err(), judged), ("no judge", 3));
}
