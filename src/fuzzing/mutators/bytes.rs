//! Changes a few bytes anywhere, as a fuzzer does that does not know the encoding of programs.

use crate::programs::Program;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let mut bytes = program.encode();
    for _ in 0..1 + context.index(4) {
        // The first byte is excluded: it is the version of the encoding.
        let at = 1 + context.index(bytes.len() - 1);
        bytes[at] = match context.entropy.below(3) {
            0 => bytes[at] ^ 1 << context.entropy.below(8),
            1 => bytes[context.index(bytes.len())],
            _ => context.entropy.next_u64() as u8,
        };
    }
    let before = std::mem::take(program);
    program.decode_from(&bytes);
    *program != before
}
