//! Copies a range of a file over another place or between two bytes, removes it, or fills it with zeros.

use crate::fuzzing::mutators::file_context::FileContext;

pub(in crate::fuzzing::mutators) fn change(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
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
