//! New operations, for the mutations that put some in.

use crate::vm::operation::OPERATION_BYTES;
use crate::vm::{Operation, generate};

use super::Context;

/// Opcodes of attacks, which mean nothing where the target has none.
const ATTACKS: std::ops::RangeInclusive<u8> = 27..=30;

impl Context {
    /// An operation: half of the time one of those that random bytes mean, else any.
    pub(super) fn operation(&mut self) -> Operation {
        loop {
            let attacks = self.limits.attacks > 0 && self.entropy.one_in(3);
            let made = match attacks {
                true => self.of_opcode(|code| ATTACKS.contains(&code)),
                false if self.entropy.one_in(2) => generate::operation(&mut self.entropy),
                false => self.of_opcode(|code| !ATTACKS.contains(&code)),
            };
            if let Some(operation) = made {
                return operation;
            }
        }
    }

    /// Any operation with one of the opcodes that are `wanted`. Its operands are small now and then.
    fn of_opcode(&mut self, wanted: impl Fn(u8) -> bool) -> Option<Operation> {
        let codes = || Operation::OPCODES.iter().filter(|(code, _)| wanted(*code));
        let chosen = self.entropy.below(codes().count() as u64) as usize;
        let mut record = [0; OPERATION_BYTES];
        let small = self.entropy.one_in(2);
        let bound = if small { 16 } else { 256 };
        record.fill_with(|| self.entropy.below(bound) as u8);
        record[0] = codes().nth(chosen)?.0;
        Operation::decode(&record)
    }
}
