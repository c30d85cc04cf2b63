//! The bytes in a program: the operation `bytes`, and the records of data that follow it.
//!
//! In a program, each record of data is an operation of its own. A program is framed if each operation `bytes` has
//! exactly the data that its length asks for, and if there are no other data. All decoded programs are framed.

use std::fmt;

use crate::base::limits::MAX_OPERATIONS;
use crate::programs::operand::{Hex, Length, TextError, TextOperands, parse_hex, print_operand};
use crate::programs::operation::{OPERATION_BYTES, Operation};

/// Decodes the records of an input. Records of data are never decoded as operations. If the program ends before the
/// bytes of an operation, these end with the program.
#[derive(Clone, Debug)]
pub struct Decoder<'i> {
    records: &'i [[u8; OPERATION_BYTES]],
    /// The offset of the next record in the input.
    counter: usize,
    /// The number of bytes of data that follow.
    owed_bytes: usize,
    /// The number of operations so far.
    operations: usize,
}

impl<'i> Decoder<'i> {
    /// Decodes `records`, the first of which has the offset `counter` in the input.
    pub(in crate::programs) fn new(counter: usize, records: &'i [[u8; OPERATION_BYTES]]) -> Self {
        Self { records, counter, owed_bytes: 0, operations: 0 }
    }

    #[inline]
    fn decode(&mut self, record: &[u8; OPERATION_BYTES]) -> Option<Operation> {
        if self.operations == MAX_OPERATIONS {
            return None;
        }
        let operation = match self.owed_bytes {
            0 => Operation::decode(record)?,
            owed => Operation::Data(first_bytes(record, owed)),
        };
        self.operations += 1;
        Some(match operation {
            Operation::Bytes { kind, length } => {
                let room = self.records.len().min(MAX_OPERATIONS - self.operations);
                let there = usize::from(length.get()).min(room * OPERATION_BYTES);
                self.owed_bytes = there;
                Operation::Bytes { kind, length: Length::at_most(there) }
            }
            Operation::Data(_) => {
                // The last record may have fewer bytes.
                self.owed_bytes = self.owed_bytes.saturating_sub(OPERATION_BYTES);
                operation
            }
            _ => operation,
        })
    }
}

impl<'i> Iterator for Decoder<'i> {
    /// The program counter (the offset of the record in the input), the record, and the operation, unless the record
    /// has no meaning or the program is as long as it may be.
    type Item = (usize, &'i [u8; OPERATION_BYTES], Option<Operation>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (record, rest) = self.records.split_first()?;
        let counter = self.counter;
        self.records = rest;
        self.counter += OPERATION_BYTES;
        Some((counter, record, self.decode(record)))
    }
}

/// Returns the first `count` bytes of a record, followed by zeros.
fn first_bytes(record: &[u8; OPERATION_BYTES], count: usize) -> [u8; OPERATION_BYTES] {
    let mut bytes = *record;
    bytes.iter_mut().skip(count).for_each(|byte| *byte = 0);
    bytes
}

/// Returns the number of records that `length` bytes take.
pub fn data_records(length: Length) -> usize {
    usize::from(length.get()).div_ceil(OPERATION_BYTES)
}

/// Returns the records of data for `bytes`.
pub fn data_of(bytes: &[u8]) -> impl Iterator<Item = Operation> {
    bytes.chunks(OPERATION_BYTES).map(|chunk| {
        let mut record = [0; OPERATION_BYTES];
        record.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        Operation::Data(record)
    })
}

/// Returns the operations as they are encoded. As many data follow each operation `bytes` as its length says: zeros
/// replace missing data, and all other data are left out.
pub(in crate::programs) fn framed(operations: &[Operation]) -> impl Iterator<Item = Operation> {
    let mut operations = operations.iter().copied().peekable();
    let mut owed_bytes = 0;
    std::iter::from_fn(move || {
        if owed_bytes > 0 {
            let next = operations.next_if(|next| matches!(next, Operation::Data(_)));
            let bytes = next.map_or([0; OPERATION_BYTES], |data| data.encode());
            let data = Operation::Data(first_bytes(&bytes, owed_bytes));
            // The last record may have fewer bytes.
            owed_bytes = owed_bytes.saturating_sub(OPERATION_BYTES);
            return Some(data);
        }
        let next = operations.find(|next| !matches!(next, Operation::Data(_)))?;
        if let Operation::Bytes { length, .. } = next {
            owed_bytes = usize::from(length.get());
        }
        Some(next)
    })
}

/// Frames operations after a change of their list. If the number of records of data behind an operation `bytes` does
/// not fit its length, the length changes to that of these data. Other data are removed.
pub fn reframe(operations: &mut Vec<Operation>) {
    if !operations.iter().any(|one| matches!(one, Operation::Data(_) | Operation::Bytes { .. })) {
        return;
    }
    for at in 0..operations.len() {
        let there = data_behind(operations, at + 1);
        if let Some(Operation::Bytes { length, .. }) = operations.get_mut(at)
            && data_records(*length) != there
        {
            *length = Length::at_most(there * OPERATION_BYTES);
        }
    }
    let all = std::mem::take(operations);
    operations.extend(framed(&all));
}

/// Fits the data behind the operation `bytes` at index `at` to its length: removes surplus records, or adds records of
/// zeros. If another operation is at `at`, changes nothing.
pub fn fit_data(operations: &mut Vec<Operation>, at: usize) {
    let Some(&Operation::Bytes { length, .. }) = operations.get(at) else { return };
    let (start, needed) = (at + 1, data_records(length));
    let there = data_behind(operations, start);
    let kept = needed.min(there);
    let more = std::iter::repeat_n(Operation::Data([0; OPERATION_BYTES]), needed - kept);
    operations.splice(start + kept..start + there, more);
}

/// Returns the number of records of data from index `at` on.
fn data_behind(operations: &[Operation], at: usize) -> usize {
    let behind = operations.get(at..).unwrap_or_default();
    behind.iter().take_while(|one| matches!(one, Operation::Data(_))).count()
}

/// Returns the first index from `at` on at which operations can be inserted, so that no data lose their operation.
pub fn gap_from(operations: &[Operation], at: usize) -> usize {
    at + data_behind(operations, at)
}

/// Writes framed operations, one on each line. The data of an operation `bytes` are digits on its line.
pub(in crate::programs) fn write_lines(
    f: &mut fmt::Formatter<'_>,
    mut operations: impl Iterator<Item = Operation>,
) -> fmt::Result {
    while let Some(operation) = operations.next() {
        let Operation::Bytes { kind, length } = operation else {
            writeln!(f, "{operation}")?;
            continue;
        };
        f.write_str(operation.name())?;
        print_operand(f, "kind", kind)?;
        f.write_str(" data=")?;
        let mut left = usize::from(length.get());
        for data in operations.by_ref().take(data_records(length)) {
            let bytes = data.encode();
            write!(f, "{}", Hex(bytes.get(..left).unwrap_or(&bytes)))?;
            // The last record may have fewer bytes.
            left = left.saturating_sub(OPERATION_BYTES);
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Parses the operands of an operation `bytes` in a text, and appends it with its data.
pub(in crate::programs) fn parse_bytes(
    mut operands: TextOperands,
    operations: &mut Vec<Operation>,
) -> Result<(), TextError> {
    let kind = operands.take("kind")?;
    let bytes =
        operands.take_with("data", "hexadecimal digits of at most 4095 bytes", |digits| {
            parse_hex(digits).filter(|bytes| bytes.len() <= usize::from(Length::HIGHEST.get()))
        })?;
    operands.finish()?;
    operations.push(Operation::Bytes { kind, length: Length::at_most(bytes.len()) });
    operations.extend(data_of(&bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::images::content::entropy::Entropy;
    use crate::programs::Program;
    use crate::programs::operand::BytesKind;
    use crate::programs::prologue::PROLOGUE_BYTES;
    use crate::programs::text::assemble;

    use super::*;

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
                37, 1, 10, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 7, 0, 0,
                0, 0, 0, 0, 0
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
            // Reframing does not change a framed program. In any program, it keeps the order of all operations but
            // data.
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
        let mut operations =
            vec![data(1), bytes(3), data(2), data(3), Operation::Snapshot {}, data(4)];
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
}
