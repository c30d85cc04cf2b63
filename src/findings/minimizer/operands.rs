//! Shrinks the numbers of operands: to zero, by halves, by clearing one bit, by one. Does the same with each byte of
//! data.

use crate::programs::Operation;
use crate::programs::operand::{Length, OperandKind, OperandPlace};
use crate::programs::operation::OPERATION_BYTES;

use super::numbers::{plainer, scalars};
use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        let Some(operation) = search.best().operations.get(at).copied() else { break };
        if matches!(operation, Operation::Data(_)) {
            shrink_data(search, at);
            continue;
        }
        let mut plain = operation.encode();
        plain.iter_mut().skip(1).for_each(|byte| *byte = 0);
        if let Some(plain) = Operation::decode(&plain) {
            search.propose_at(at, plain);
        }
        shorten(search, at);
        for place in operation.places() {
            replace(search, at, place.start, &vec![0; place.length_bytes]);
            if let OperandKind::Ranked(values) = place.kind {
                let _ = values.iter().any(|value| replace(search, at, place.start, &[*value]));
            } else {
                shrink(search, at, place);
            }
        }
    }
}

/// Judges the program with other bytes in one operation's record.
fn replace(search: &mut Search, at: usize, from: usize, bytes: &[u8]) -> bool {
    let Some(operation) = search.best().operations.get(at) else { return false };
    let mut record = operation.encode();
    let Some(operand) = record.get_mut(from..from + bytes.len()) else { return false };
    operand.copy_from_slice(bytes);
    let plainer = Operation::decode(&record);
    plainer.is_some_and(|plainer| search.propose_at(at, plainer))
}

/// Shrinks the numbers of an operand one by one, each until no plainer value shows the bug.
fn shrink(search: &mut Search, at: usize, place: &OperandPlace) {
    let mut nth = 0;
    loop {
        let Some(operation) = search.best().operations.get(at) else { return };
        let record = operation.encode();
        let operand = record.get(place.bytes()).unwrap_or_default();
        let Some(scalar) = scalars(place.kind, operand).into_iter().nth(nth) else { return };
        let (from, length) = (place.start + scalar.bytes.start, scalar.bytes.len());
        let set = |search: &mut Search, value: u16| {
            replace(search, at, from, value.to_le_bytes().get(..length).unwrap_or_default())
        };
        if !scalar.plainer(operand).into_iter().any(|value| set(search, value)) {
            nth += 1;
        }
    }
}

/// Shortens the data of an operation: by halves, then by one byte at a time.
fn shorten(search: &mut Search, at: usize) {
    let mut by_half = true;
    while let Some(&Operation::Bytes { kind, length }) = search.best().operations.get(at) {
        let length = usize::from(length.get());
        let shorter = if by_half { length / 2 } else { length.saturating_sub(1) };
        let shorter = Operation::Bytes { kind, length: Length::at_most(shorter) };
        if search.propose_at(at, shorter) {
            continue;
        }
        if !by_half {
            return;
        }
        by_half = false;
    }
}

/// Shrinks the bytes of a record of data: all at once, then one by one.
fn shrink_data(search: &mut Search, at: usize) {
    search.propose_at(at, Operation::Data([0; OPERATION_BYTES]));
    for place in 0..OPERATION_BYTES {
        loop {
            let Some(&Operation::Data(bytes)) = search.best().operations.get(at) else { return };
            let Some(byte) = bytes.get(place) else { break };
            let set = |search: &mut Search, value: u16| {
                let mut changed = bytes;
                let Ok(value) = u8::try_from(value) else { return false };
                changed.get_mut(place).into_iter().for_each(|byte| *byte = value);
                search.propose_at(at, Operation::Data(changed))
            };
            if !plainer(u16::from(*byte), false).into_iter().any(|value| set(search, value)) {
                break;
            }
        }
    }
}
