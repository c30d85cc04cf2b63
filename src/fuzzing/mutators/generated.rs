//! New operations, for the mutations that put some in.

use crate::programs::operation::OPERATION_BYTES;
use crate::programs::{Operation, generate};

use super::context::Context;

impl Context<'_> {
    /// An operation: half of the time one of those that random bytes mean, else any; where the target has
    /// attacks, one in three is one.
    pub(super) fn operation(&mut self) -> Operation {
        let attack = self.limits.attacks > 0 && self.entropy.one_in(3);
        let usual = !attack && self.entropy.one_in(2);
        loop {
            let made = match usual {
                true => generate::operation(&mut self.entropy),
                false => self.of_any_opcode().filter(|made| made.is_attack() == attack),
            };
            if let Some(operation) = made {
                return operation;
            }
        }
    }

    /// An operation with any opcode. Its operands are small half of the time.
    fn of_any_opcode(&mut self) -> Option<Operation> {
        let (code, _) = Operation::OPCODES[self.index(Operation::OPCODES.len())];
        let bound = if self.entropy.one_in(2) { 16 } else { 256 };
        let mut record = [0; OPERATION_BYTES];
        record.fill_with(|| self.entropy.below(bound) as u8);
        record[0] = code;
        Operation::decode(&record)
    }
}
