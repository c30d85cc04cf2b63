//! Shrinks operands: to nothing, by halves, towards alignment bit by bit, by one.

use std::ops::Range;

use crate::programs::Operation;
use crate::programs::operation::Place;

use super::measure::{CLUSTER_BITS, REFCOUNT_ORDERS, is_signed, number, scalar_cost, scalars};
use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        let Some(operation) = search.best().operations.get(at).copied() else { break };
        let mut plain = operation.encode();
        plain.iter_mut().skip(1).for_each(|byte| *byte = 0);
        if let Some(plain) = Operation::decode(&plain) {
            search.propose_at(at, plain);
        }
        for place in operation.places() {
            let all = place.bytes.len();
            replace(search, at, place.bytes.start, &vec![0; all]);
            match place.name {
                "cluster_bits" => {
                    prefer(search, at, place.bytes.start, CLUSTER_BITS.map(|bits| bits - 9));
                }
                "refcount_order" => prefer(search, at, place.bytes.start, REFCOUNT_ORDERS),
                _ => {
                    for scalar in scalars(all) {
                        shrink(search, at, &place, scalar);
                    }
                }
            }
        }
    }
}

/// Has an operation judged with other bytes of its record.
fn replace(search: &mut Search, at: usize, from: usize, bytes: &[u8]) -> bool {
    let Some(operation) = search.best().operations.get(at) else { return false };
    let mut record = operation.encode();
    let Some(operand) = record.get_mut(from..from + bytes.len()) else { return false };
    operand.copy_from_slice(bytes);
    let plainer = Operation::decode(&record);
    plainer.is_some_and(|plainer| search.propose_at(at, plainer))
}

fn prefer<const N: usize>(search: &mut Search, at: usize, from: usize, values: [u8; N]) {
    let _ = values.into_iter().any(|value| replace(search, at, from, &[value]));
}

/// Shrinks a number of an operand, until nothing plainer shows the bug.
fn shrink(search: &mut Search, at: usize, place: &Place, scalar: Range<usize>) {
    let (from, length) = (place.bytes.start + scalar.start, scalar.len());
    loop {
        let Some(operation) = search.best().operations.get(at) else { return };
        let record = operation.encode();
        let operand = record.get(place.bytes.clone()).unwrap_or_default();
        let value = number(operand.get(scalar.clone()).unwrap_or_default());
        let smaller = candidates(value, is_signed(operand, &scalar));
        let set = |search: &mut Search, value: u16| {
            replace(search, at, from, value.to_le_bytes().get(..length).unwrap_or_default())
        };
        if !smaller.into_iter().any(|value| set(search, value)) {
            return;
        }
    }
}

/// Plainer numbers, the plainest first.
pub(super) fn candidates(value: u16, signed: bool) -> Vec<u16> {
    let cost = |value: u16| scalar_cost(value, signed);
    let negative = value.wrapping_neg();
    let halves = (1..u16::BITS).flat_map(|by| [value >> by, (negative >> by).wrapping_neg()]);
    let cleared = (0..u16::BITS).map(|bit| value & !(1 << bit));
    let ones = [1, u16::MAX, value.wrapping_sub(1), value.wrapping_add(1)];
    let mut all: Vec<u16> = halves.chain(cleared).chain(ones).chain([0]).collect();
    all.retain(|other| cost(*other) < cost(value));
    all.sort_unstable_by_key(|other| (cost(*other), *other));
    all.dedup();
    all
}
