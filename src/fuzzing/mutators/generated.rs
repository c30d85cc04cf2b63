//! New operations, for the mutations that insert some.

use crate::programs::operation::Class;
use crate::programs::{Operation, Program, generate};

use super::context::MutationContext;

impl MutationContext<'_> {
    /// Returns a random operation for `program`. If the target has attacks, one in three is an attack, on a part that
    /// the format of its layer has. If the target writes, half are requests. Half of the others come from the
    /// generator of programs; the rest have any opcode.
    pub(super) fn operation(&mut self, program: &Program) -> Operation {
        if self.limits.requests > 0
            && self.entropy.one_in(2)
            && let Some(made) = generate::request(&mut self.entropy, &program.operations)
        {
            return made;
        }
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
        let mut context = MutationContext::untraced(entropy, limits, 64, None);
        let program = Program::default();
        (0..10_000).map(|_| context.operation(&program).name()).collect()
    }

    #[test]
    fn each_operation_is_made_in_the_targets_that_have_it() {
        let all_but = |unwanted: &dyn Fn(Class) -> bool| -> BTreeSet<&str> {
            let wanted = Operation::OPCODES.iter().filter(|(code, _)| {
                let operation = Operation::decode(&Operation::with_opcode(*code, [0; 8]));
                !unwanted(operation.unwrap().class())
            });
            wanted.map(|(_, name)| *name).collect()
        };
        let requests = |class| matches!(class, Class::Requests(_));
        let attacks = |class| class == Class::Attacks;
        assert_eq!(made(Limits::HOSTILE), all_but(&requests));
        assert_eq!(made(Limits::WRITTEN), all_but(&attacks));
        assert_eq!(made(Limits::WALKED), all_but(&|class| attacks(class) || requests(class)));
    }
}
