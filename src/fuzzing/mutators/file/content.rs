//! Mutations that know no format, as libFuzzer's own mutations.

use crate::fuzzing::mutators::file_context::FileContext;

/// Changes a few bytes of a file.
pub(in crate::fuzzing::mutators) fn bytes(file: &mut [u8], context: &mut FileContext) -> bool {
    if file.is_empty() {
        return false;
    }
    let mut has_changed = false;
    for _ in 0..1 + context.index(4) {
        let at = context.place(file.len());
        let byte = match context.entropy.below(3) {
            0 => file[at] ^ 1 << context.entropy.below(8),
            1 => file[context.index(file.len())],
            _ => context.entropy.next_u64() as u8,
        };
        has_changed |= file[at] != byte;
        file[at] = byte;
    }
    has_changed
}

/// The units to which lengths are rounded: a byte, a word, a sector, a page, the usual cluster of qcow2.
const UNITS_BYTES: [usize; 5] = [1, 8, 512, 4096, 65536];

/// Cuts a file, or appends zeros or bytes of another file.
pub(in crate::fuzzing::mutators) fn length(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let before = file.len();
    let unit_bytes = UNITS_BYTES[context.index(UNITS_BYTES.len())];
    if context.entropy.one_in(2) {
        let length = 1 + context.index(before);
        // A file that loses all its bytes says nothing.
        file.truncate(length.next_multiple_of(unit_bytes).min(before));
    } else {
        let grown = (before + 1 + context.index(2 * unit_bytes)).next_multiple_of(unit_bytes);
        let length = grown.min(context.max_bytes).max(before);
        if context.entropy.one_in(2) {
            let range = context.range(context.other.len());
            let room = length - before;
            file.extend(context.other[range].iter().take(room));
        }
        file.resize(length, 0);
    }
    file.len() != before
}

/// Takes a range of another file to the same place of a file.
pub(in crate::fuzzing::mutators) fn mix(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let range = context.range(context.other.len().min(context.max_bytes));
    let taken = &context.other[range.clone()];
    if file.get(range.clone()) == Some(taken) {
        return false;
    }
    file.resize(file.len().max(range.end), 0);
    file[range].copy_from_slice(taken);
    true
}

/// Copies a range of a file over another place or between two bytes, removes it, or fills it with zeros.
pub(in crate::fuzzing::mutators) fn range(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let range = context.range(file.len());
    if range.is_empty() {
        return false;
    }
    let length = range.len();
    match context.entropy.below(4) {
        0 => {
            // The place is as well aligned as the range.
            let unit_bytes = 1 << length.trailing_zeros();
            let to = context.index(file.len() - length + 1) & !(unit_bytes - 1);
            let has_changed = file[range.clone()] != file[to..to + length];
            file.copy_within(range, to);
            has_changed
        }
        1 => {
            if file.len() + length > context.max_bytes {
                return false;
            }
            let before = file.clone();
            let copy = file[range.clone()].to_vec();
            file.splice(range.start..range.start, copy);
            *file != before
        }
        2 => {
            if length == file.len() {
                return false;
            }
            file.drain(range);
            true
        }
        _ => {
            let has_changed = file[range.clone()].iter().any(|byte| *byte != 0);
            file[range].fill(0);
            has_changed
        }
    }
}
