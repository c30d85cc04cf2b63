//! Compares docs/bytecode.md with the encoding of the code.

use test_support::prelude::*;

use qcowfuzz::internal::programs::operation::OPERATION_BYTES;
use qcowfuzz::internal::programs::prologue::PROLOGUE_BYTES;
use qcowfuzz::programs::text;

use crate::{quoted, root, rows, text_of};

/// Returns the range of bytes that a cell such as `3` or `1–3` denotes.
fn byte_range(text: &str) -> BTreeSet<usize> {
    let (first, last) = text.split_once('–').unwrap_or((text, text));
    (first.parse().unwrap()..=last.parse().unwrap()).collect()
}

/// Returns the fields of a line of text, each with the bytes of the record that change it. A field that is not printed
/// has its default.
fn bytes_by_field<const N: usize>(
    fixed: &[u8],
    print: impl Fn(&[u8; N]) -> String,
) -> BTreeMap<String, BTreeSet<usize>> {
    let fields = |record: &[u8; N]| -> BTreeMap<String, String> {
        let line = print(record);
        let words = line.split_whitespace().skip(1);
        words
            .map(|word| word.split_once('=').unwrap())
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    };
    let mut found = BTreeMap::new();
    for base in [0, 1] {
        let mut record = [base; N];
        record[..fixed.len()].copy_from_slice(fixed);
        let before = fields(&record);
        for name in before.keys() {
            found.entry(name.clone()).or_insert_with(BTreeSet::new);
        }
        for at in fixed.len()..N {
            for value in 0..=255 {
                let mut changed = record;
                changed[at] = value;
                let after = fields(&changed);
                for name in before.keys().chain(after.keys()) {
                    if before.get(name) != after.get(name) {
                        found.entry(name.clone()).or_default().insert(at);
                    }
                }
            }
        }
    }
    found
}

#[test]
fn the_table_of_operations_matches_the_code() {
    let document = text_of("docs/bytecode.md");
    let rows = rows(&document, "## Operations");
    let listed = rows.iter().map(|row| row[1].trim_matches('`')).collect::<Vec<_>>();
    let there = Operation::OPCODES.iter().map(|(_, name)| *name).collect::<Vec<_>>();
    assert_eq!(listed, there, "the table of operations in docs/bytecode.md");
    for (row, (code, name)) in rows.iter().zip(Operation::OPCODES) {
        // An opcode of the second table takes two bytes.
        let head = Operation::with_opcode(*code, [0; OPERATION_BYTES]);
        let head = &head[..if *code < 256 { 1 } else { 2 }];
        let opcode: Vec<_> = head.iter().map(u8::to_string).collect();
        assert_eq!(row[0], opcode.join(" "));
        assert_eq!(row[1], format!("`{name}`"));
        let documented: BTreeMap<_, _> = row[2]
            .split(", ")
            .filter(|operand| !operand.is_empty())
            .map(|operand| operand.split_once(' ').unwrap())
            .map(|(name, bytes)| (name.trim_matches('`').to_string(), byte_range(bytes)))
            .collect();
        let print = |record: &[u8; OPERATION_BYTES]| Operation::decode(record).unwrap().to_string();
        assert_eq!(documented, bytes_by_field(head, print), "{name}");
    }
}

#[test]
fn the_opcode_slots_match_the_code() {
    let document = text_of("docs/bytecode.md");
    let name = |byte: u8| {
        let mut record = [0; OPERATION_BYTES];
        record[0] = byte;
        Operation::decode(&record).map(|operation| operation.name())
    };
    let mut slots = Vec::new();
    for row in rows(&document, "## Operations") {
        let count: usize = row[3].parse().unwrap();
        slots.extend(std::iter::repeat_n(row[1].trim_matches('`').to_string(), count));
    }
    assert_eq!(slots.len(), 32);
    for byte in 40..=255u8 {
        let slot = &slots[usize::from(byte - 40) % slots.len()];
        assert_eq!(name(byte), Some(slot.as_str()), "opcode byte {byte}");
    }
    // Opcode 33 leads to the second table.
    let assigned = (0..40).filter(|byte| *byte != 33 && name(*byte).is_some()).map(u16::from);
    let second = (0..=255u8).filter(|byte| {
        let record = [33, *byte, 0, 0, 0, 0, 0, 0];
        Operation::decode(&record).is_some()
    });
    let assigned: Vec<u16> = assigned.chain(second.map(|byte| 256 + u16::from(byte))).collect();
    assert_eq!(assigned, Operation::OPCODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}

#[test]
fn the_table_of_the_prologue_matches_the_code() {
    let rows = rows(&text_of("docs/bytecode.md"), "## Prologue");
    let mut documented: BTreeMap<_, _> = rows
        .iter()
        .filter(|row| row[1].starts_with('`'))
        .map(|row| (row[1].trim_matches('`').to_string(), byte_range(&row[0])))
        .collect();
    let print = |bytes: &[u8; PROLOGUE_BYTES]| Program::decode(bytes).prologue.to_string();
    assert_eq!(documented, bytes_by_field(&[0], print));
    // The table describes each byte once.
    let rest = rows.iter().filter(|row| !row[1].starts_with('`'));
    documented.extend(rest.map(|row| (row[1].clone(), byte_range(&row[0]))));
    let bytes: Vec<usize> = rows.iter().flat_map(|row| byte_range(&row[0])).collect();
    assert_eq!(bytes, (0..PROLOGUE_BYTES).collect::<Vec<_>>());
    for byte in 0..=255 {
        let mut bytes = [1; PROLOGUE_BYTES + OPERATION_BYTES];
        bytes[0] = byte;
        assert_eq!(Program::decode(&bytes).operations.is_empty(), byte >= 240);
    }
}

#[test]
fn every_operand_is_documented() {
    let rows = rows(&text_of("docs/bytecode.md"), "### Operands");
    let documented: BTreeSet<&str> = rows.iter().map(|row| quoted(&row[0])[0]).collect();
    let mut names = BTreeSet::new();
    for (code, _) in Operation::OPCODES {
        let record = Operation::with_opcode(*code, [0; OPERATION_BYTES]);
        let line = Operation::decode(&record).unwrap().to_string();
        let words = line.split_whitespace().skip(1);
        names.extend(words.map(|word| word.split('=').next().unwrap().to_string()));
    }
    assert_eq!(documented, names.iter().map(String::as_str).collect());
}

/// Returns the place of an operand: the number of the first operation that has it (for `flags`, of `header`), and the
/// number of the operand in that operation.
fn place_of(operand: &str) -> (usize, usize) {
    let names = quoted(operand);
    let operands = |code: u16| {
        let record = Operation::with_opcode(code, [0; OPERATION_BYTES]);
        let line = Operation::decode(&record).unwrap().to_string();
        line.split_whitespace().skip(1).map(str::to_string).collect::<Vec<_>>()
    };
    let all = Operation::OPCODES.iter().enumerate();
    let of = |name: &str| names.get(1).is_none_or(|wanted| *wanted == name);
    let mut places = all.filter(|(_, (_, name))| of(name)).filter_map(|(at, (code, _))| {
        let operands = operands(*code);
        let place = operands.iter().position(|it| it.split('=').next() == Some(names[0]))?;
        Some((at, place))
    });
    places.next().unwrap_or_else(|| panic!("{operand}"))
}

#[test]
fn operands_are_in_the_order_of_the_operations() {
    let rows = rows(&text_of("docs/bytecode.md"), "### Operands");
    let operands: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    assert!(operands.is_sorted_by_key(|operand| place_of(operand)), "{operands:#?}");
}

#[test]
fn the_bits_of_headers_match_the_code() {
    let rows = rows(&text_of("docs/bytecode.md"), "### Operands");
    let row = rows.iter().find(|row| row[0] == "`flags` of `header`").unwrap();
    let bits = row[1].split_once("bits: ").unwrap().1.split(", ");
    let mut all = 0u16;
    for (bit, word) in bits.map(|documented| documented.split_once(' ').unwrap()) {
        let bit: u16 = bit.parse().unwrap();
        let [low, high] = bit.to_le_bytes();
        let header = Operation::decode(&[15, 0, 0, 0, 0, 0, low, high]).unwrap();
        let word = word.trim_matches('`');
        assert!(header.to_string().ends_with(&format!(" flags={word}")), "{header}");
        all |= bit;
    }
    let highest = Operation::decode(&[15, 0, 0, 0, 0, 0, 255, 255]).unwrap().encode();
    assert_eq!(all.to_le_bytes(), highest[6..]);
    assert_eq!(row[3], format!("the lowest {} bits", all.count_ones()));
}

/// Returns the first fenced block of a language.
fn block<'a>(document: &'a str, language: &str) -> &'a str {
    let after = document.split(&format!("```{language}\n")).nth(1).expect(language);
    after.split("```").next().unwrap()
}

#[test]
fn the_example_is_the_seed_and_its_bytes() {
    let document = text_of("docs/bytecode.md");
    let program = text::assemble(block(&document, "text")).unwrap();
    let bytes: Vec<u8> = block(&document, "hex")
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    assert_eq!(program.encode(), bytes);
    assert_eq!(program.to_string(), block(&document, "text"));
    assert_eq!(fs::read(root().join("corpus/map_extents/zero_kinds")).unwrap(), bytes);
}
