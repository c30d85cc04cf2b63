//! Takes a range of another file to the same place of a file.

use crate::fuzzing::mutators::file_context::FileContext;

pub(in crate::fuzzing::mutators) fn change(file: &mut Vec<u8>, context: &mut FileContext) -> bool {
    let range = context.range(context.other.len().min(context.max_bytes));
    let taken = &context.other[range.clone()];
    if file.get(range.clone()) == Some(taken) {
        return false;
    }
    file.resize(file.len().max(range.end), 0);
    file[range].copy_from_slice(taken);
    true
}
