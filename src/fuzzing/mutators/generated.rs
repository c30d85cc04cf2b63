//! New operations, for the mutations that insert some.

use crate::programs::operation::Class;
use crate::programs::{Operation, Program, generate};

use super::context::MutationContext;

impl MutationContext<'_> {
    /// Returns a random operation for `program`. If the target has attacks, one in three is an attack, on a part that
    /// the format of its layer has. Half of the others come from the generator of programs; the rest have any opcode.
    pub(super) fn operation(&mut self, program: &Program) -> Operation {
        let attack = self.limits.attacks > 0 && self.entropy.one_in(3);
        let usual = !attack && self.entropy.one_in(2);
        loop {
            let made = match usual {
                true => generate::operation(&mut self.entropy),
                false => generate::any_operation(&mut self.entropy)
                    .filter(|made| (made.class() == Class::Attacks) == attack),
            };
            if let Some(operation) = made {
                return self.aimed(operation, program);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::images::entropy::Entropy;
    use crate::images::limits::Limits;

    /// Returns the names of the operations that are made for a target with these limits.
    fn made(limits: Limits) -> BTreeSet<&'static str> {
        let entropy = Entropy::new(1);
        let mut context = MutationContext { entropy, limits, most: 64, other: None, sound: true };
        let program = Program::default();
        (0..10_000).map(|_| context.operation(&program).name()).collect()
    }

    #[test]
    fn each_operation_is_made_and_attacks_only_if_the_target_has_them() {
        let all: BTreeSet<_> = Operation::OPCODES.iter().map(|(_, name)| *name).collect();
        assert_eq!(made(Limits::HOSTILE), all);
        let is_attack = |code: u8| {
            let record = [code, 0, 0, 0, 0, 0, 0, 0];
            Operation::decode(&record).is_some_and(|made| made.class() == Class::Attacks)
        };
        let others = Operation::OPCODES.iter().filter(|(code, _)| !is_attack(*code));
        assert_eq!(made(Limits::WALKED), others.map(|(_, name)| *name).collect());
    }
}
