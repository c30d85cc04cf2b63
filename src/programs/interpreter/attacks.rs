//! Operations that attack what was built. They are carried out when it is.

use crate::images::damage::{Attack, Spot};
use crate::programs::operation::Operation;

use super::{Effect, Vm, effect};

impl Vm {
    /// What is done to the files once they are built, from now on each time.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Notes an attack, where the target has any and there is room. What it hits is seen when it is done.
    pub(super) fn attack(&mut self, operation: Operation) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        let attack = attack_of(operation).filter(|_| room);
        self.attacks.extend(attack);
        effect(attack.is_some())
    }
}

/// The attack that an operation is.
fn attack_of(operation: Operation) -> Option<Attack> {
    match operation {
        Operation::Patch { part, depth, nth, transform, value } => {
            let spot = Spot { part, depth: depth.get(), nth };
            Some(Attack::Patch { spot, transform, value })
        }
        Operation::Trap { part, depth, nth, transform, value, reads } => {
            let spot = Spot { part, depth: depth.get(), nth };
            Some(Attack::Trap { spot, transform, value: value.into(), reads })
        }
        Operation::FailRead { part, depth, reads } => {
            Some(Attack::FailRead { part, depth: depth.get(), reads })
        }
        Operation::Truncate { depth, cut } => {
            Some(Attack::Truncate { depth: depth.get(), bytes: cut.units() })
        }
        _ => None,
    }
}
