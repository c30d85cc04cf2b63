//! The alias table: the meaning of the opcode bytes above the canonical ones.

/// Opcode bytes below this are canonical: each operation has a number of its own. The decoder skips numbers that no
/// operation has, and the encoder never emits them.
pub(super) const CANONICAL_OPCODES: u8 = 40;

/// The number of slots of the alias table, which is repeated up to byte 255.
const SLOTS: usize = 32;

/// Returns the opcode of each slot, from pairs of an opcode and its number of slots.
///
/// # Panics
/// At compile time, if the numbers of slots do not add up to the length of the table.
pub(super) const fn aliases(slots: &[(u16, usize)]) -> [u8; SLOTS] {
    let (mut table, mut filled, mut at) = ([0; SLOTS], 0, 0);
    while at < slots.len() {
        let (opcode, count) = slots[at];
        let end = filled + count;
        while filled < end {
            // Only operations of the first table have slots.
            assert!(opcode < CANONICAL_OPCODES as u16);
            table[filled] = opcode as u8;
            filled += 1;
        }
        at += 1;
    }
    assert!(filled == SLOTS, "the alias table is frozen: new operations have no slots");
    table
}
