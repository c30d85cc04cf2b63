//! Changes a few bytes of a file.

use crate::fuzzing::mutators::file_context::FileContext;

pub(in crate::fuzzing::mutators) fn change(file: &mut [u8], context: &mut FileContext) -> bool {
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
