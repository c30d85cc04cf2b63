//! Changes a few bytes anywhere, as a fuzzer does that does not know the encoding of programs. It never changes which
//! records are data.

use crate::programs::operation::OPERATION_BYTES;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let mut bytes = program.encode();
    for _ in 0..1 + context.index(4) {
        // The first byte is excluded: it is the version of the encoding.
        let at = 1 + context.index(bytes.len() - 1);
        let changed = match context.entropy.below(3) {
            0 => bytes[at] ^ 1 << context.entropy.below(8),
            1 => bytes[context.index(bytes.len())],
            _ => context.entropy.next_u64() as u8,
        };
        if keeps_frames(program, at, changed) {
            bytes[at] = changed;
        }
    }
    let before = std::mem::take(program);
    program.decode_from(&bytes);
    *program != before
}

/// Reports whether all records of data stay what they are if the byte at `at` of a framed program becomes `byte`.
fn keeps_frames(program: &Program, at: usize, byte: u8) -> bool {
    let Some(behind) = at.checked_sub(PROLOGUE_BYTES) else { return true };
    let inside = behind % OPERATION_BYTES;
    match program.operations.get(behind / OPERATION_BYTES) {
        Some(Operation::Data(_)) | None => true,
        // The opcode and the length.
        Some(Operation::Bytes { .. }) => !matches!(inside, 0 | 2 | 3),
        Some(_) => inside > 0 || byte != BYTES_OPCODE,
    }
}

/// The opcode of the operation `bytes`.
const BYTES_OPCODE: u8 = 37;
