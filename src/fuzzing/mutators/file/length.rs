//! Cuts a file, or appends zeros or bytes of another file.

use crate::fuzzing::mutators::file_context::FileContext;

/// The units to which lengths are rounded: a byte, a word, a sector, a page, the usual cluster of qcow2.
const UNITS_BYTES: [usize; 5] = [1, 8, 512, 4096, 65536];

pub(in crate::fuzzing::mutators) fn change(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
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
