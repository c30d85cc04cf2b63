use super::*;
use crate::images::entropy::Entropy;
use crate::programs::Program;
use crate::programs::operand::BytesKind;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::text::assemble;

const IMAGE: &str = "image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";

fn bytes(length: usize) -> Operation {
    Operation::Bytes { kind: BytesKind::Name, length: Length::at_most(length) }
}

/// Returns operations in which lengths and data do not fit together.
fn unframed(entropy: &mut Entropy) -> Vec<Operation> {
    let one = |entropy: &mut Entropy| match entropy.below(4) {
        0 => bytes(entropy.below(40) as usize),
        1 => Operation::Snapshot {},
        _ => Operation::Data(entropy.next_u64().to_le_bytes()),
    };
    (0..entropy.below(30)).map(|_| one(entropy)).collect()
}

#[test]
fn bytes_take_the_records_behind_them() {
    let text = format!("{IMAGE}bytes kind=name data=00010203040506070809\nsnapshot\n");
    let program = assemble(&text).unwrap();
    assert_eq!(program.to_string(), text);
    let encoded = program.encode();
    assert_eq!(
        encoded[PROLOGUE_BYTES..],
        [
            37, 1, 10, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0,
            0, 0, 0, 0
        ]
    );
    // Their own opcode and others among them mean nothing.
    let mut other = encoded.clone();
    (other[PROLOGUE_BYTES + 8], other[PROLOGUE_BYTES + 16]) = (37, 7);
    let decoded = Program::decode(&other);
    let name = "bytes kind=name data=25010203040506070709\nsnapshot\n";
    assert_eq!(decoded.to_string(), format!("{IMAGE}{name}"));
    // The rest of the last record has no meaning.
    other[PROLOGUE_BYTES + 20] = 99;
    assert_eq!(Program::decode(&other), decoded);
}

#[test]
fn bytes_end_with_the_program() {
    let text = format!("{IMAGE}bytes kind=payload data={}\nsnapshot\n", "ab".repeat(20));
    let encoded = assemble(&text).unwrap().encode();
    for (length, there) in [(52, 20), (51, 16), (44, 16), (43, 8), (35, 0), (28, 0)] {
        let program = Program::decode(&encoded[..length]);
        let line = format!("bytes kind=payload data={}\n", "ab".repeat(there));
        assert_eq!(program.to_string(), format!("{IMAGE}{line}"), "{length}");
        assert_eq!(Program::decode(&program.encode()), program);
    }
    // So they do if the program is as long as it may be.
    let mut long = Program {
        operations: vec![Operation::Snapshot {}; MAX_OPERATIONS - 2],
        ..Program::default()
    };
    long.operations.push(bytes(64));
    let decoded = Program::decode(&long.encode());
    assert_eq!(decoded.operations.len(), MAX_OPERATIONS);
    assert_eq!(decoded.operations[MAX_OPERATIONS - 2], bytes(8));
    assert_eq!(Program::decode(&decoded.encode()), decoded);
}

#[test]
fn all_lists_of_operations_become_framed() {
    let mut entropy = Entropy::new(1);
    for _ in 0..3000 {
        let operations = unframed(&mut entropy);
        let mut program = Program { operations: operations.clone(), ..Program::default() };
        // The encoding of any list is canonical.
        let encoded = program.encode();
        let decoded = Program::decode(&encoded);
        assert_eq!(decoded.encode(), encoded);
        assert_eq!(decoded.to_string(), program.to_string());
        // Reframing changes no program that is framed, and keeps all other operations in their order.
        reframe(&mut program.operations);
        assert_eq!(Program::decode(&program.encode()), program);
        let mut again = program.clone();
        reframe(&mut again.operations);
        assert_eq!(again, program);
        let others = |all: &[Operation]| {
            let is_data = |one: &&Operation| matches!(one, Operation::Data(_));
            all.iter().filter(|one| !is_data(one)).map(Operation::name).collect::<Vec<_>>()
        };
        assert_eq!(others(&program.operations), others(&operations));
    }
}

#[test]
fn lengths_follow_data_and_data_follow_lengths() {
    let data = |byte| Operation::Data([byte; 8]);
    let mut operations = vec![data(1), bytes(3), data(2), data(3), Operation::Snapshot {}, data(4)];
    reframe(&mut operations);
    assert_eq!(operations, [bytes(16), data(2), data(3), Operation::Snapshot {}]);
    operations[0] = bytes(21);
    fit_data(&mut operations, 0);
    assert_eq!(operations[1..], [data(2), data(3), data(0), Operation::Snapshot {}]);
    operations[0] = bytes(7);
    fit_data(&mut operations, 0);
    reframe(&mut operations);
    let seven = Operation::Data([2, 2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(operations, [bytes(7), seven, Operation::Snapshot {}]);
    assert_eq!([0, 1, 2].map(|at| gap_from(&operations, at)), [0, 2, 2]);
    let mut none = vec![bytes(5)];
    reframe(&mut none);
    assert_eq!(none, [bytes(0)]);
}

#[test]
fn wrong_digits_are_refused() {
    let message = |line: &str| assemble(&format!("{IMAGE}{line}")).unwrap_err().to_string();
    let expected = "expected hexadecimal digits of at most 4095 bytes";
    for digits in ["0", "0g", "+1", "é1"] {
        let message = message(&format!("bytes kind=name data={digits}"));
        assert_eq!(message, format!("line 2: operand data is '{digits}', {expected}"));
    }
    assert!(message(&format!("bytes kind=id data={}", "00".repeat(4096))).ends_with(expected));
    assert!(message("bytes kind=id").ends_with("operand data=... is missing"));
    assert!(assemble(&format!("{IMAGE}bytes kind=id data=")).is_ok());
}
