//! Changes one field of the prologue: the geometry, where things go, the size of the disk.

use bytes::BufMut;

use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Program, Prologue};

use super::context::Context;
use super::operand::interesting_size;

/// Where the fields of the prologue begin, and how many bytes each has; see `docs/bytecode.md`. The size is
/// not among them.
const FIELDS: [(usize, usize); 10] =
    [(1, 1), (2, 1), (3, 1), (4, 1), (10, 2), (12, 1), (13, 1), (14, 1), (15, 1), (16, 1)];
const SIZE_AT: usize = 5;

pub(super) fn change(program: &mut Program, context: &mut Context) -> bool {
    let mut bytes = [0; PROLOGUE_BYTES];
    bytes[1..].copy_from_slice(&program.prologue.encode());
    if context.entropy.one_in(3) {
        let size = interesting_size(&program.prologue.plan().geometry, &mut context.entropy);
        (&mut bytes[SIZE_AT..]).put_slice(&size);
    } else {
        let (at, count) = FIELDS[context.index(FIELDS.len())];
        bytes[at..at + count].fill_with(|| context.entropy.next_u64() as u8);
    }
    let mut rest = [0; PROLOGUE_BYTES - 1];
    rest.copy_from_slice(&bytes[1..]);
    let before = std::mem::replace(&mut program.prologue, Prologue::decode(&rest));
    program.prologue != before
}
