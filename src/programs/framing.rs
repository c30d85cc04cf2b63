//! The bytes in a program: the operation `bytes`, and the records of data that follow it.
//!
//! In a program, each record of data is an operation of its own. A program is framed if each operation `bytes` has
//! exactly the data that its length asks for, and if there are no other data. All decoded programs are framed.

use std::fmt;

use crate::base::limits::MAX_OPERATIONS;

use super::operand::Length;
use super::operation::{OPERATION_BYTES, Operation};
use super::text::{Hex, TextError, TextOperands, parse_hex, print_operand};

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
    pub(super) fn new(counter: usize, records: &'i [[u8; OPERATION_BYTES]]) -> Self {
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

/// Returns the operations as they are encoded: each operation `bytes` with the data that its length asks for, zeros in
/// place of missing data, and no other data.
pub(super) fn framed(operations: &[Operation]) -> impl Iterator<Item = Operation> {
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

/// Frames operations after a change of their list. The data decide: the length of an operation `bytes` becomes that of
/// the data behind it, if these are more or fewer records than it asks for. Other data are removed.
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

/// Gives the operation `bytes` at index `at` as many data as its length asks for: zeros behind those that it has. Other
/// operations stay as they are.
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
pub(super) fn write_lines(
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
pub(super) fn parse_bytes(
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
mod tests;
