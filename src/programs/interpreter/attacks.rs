//! Operations that attack the files. The attacks take effect each time the files are built.

use crate::formats::anatomy::Part;
use crate::images::damage::{Attack, Spot};
use crate::programs::operand::{BytesKind, Number};
use crate::programs::operation::Operation;

use super::{Effect, Vm, effect};

impl Vm {
    /// Returns the attacks. They are applied each time the files are built from now on.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Runs an operation that attacks the files.
    pub(super) fn step_attack(&mut self, operation: Operation) -> Effect {
        match operation {
            Operation::Patch { part, depth, nth, transform, value } => {
                let spot = self.spot(part, depth, nth);
                self.attack(Attack::Patch { spot, transform, value })
            }
            Operation::Trap { part, depth, nth, transform, value, reads } => {
                let (spot, value) = (self.spot(part, depth, nth), value.into());
                self.attack(Attack::Trap { spot, transform, value, reads })
            }
            Operation::FailRead { part, depth, reads } => {
                self.attack(Attack::FailRead { part, depth: depth.get(), reads })
            }
            Operation::Truncate { depth, cut } => {
                self.attack(Attack::Truncate { depth: depth.get(), bytes: cut.units() })
            }
            _ => Effect::None,
        }
    }

    /// Returns the element that an attack names. If that is a payload, the bytes that wait select a byte of it.
    fn spot(&mut self, part: Part, depth: Number<0, 3>, nth: u16) -> Spot {
        let mut inside = 0;
        if part == Part::Payload {
            let bytes = self.given.waiting(BytesKind::Inside).unwrap_or_default().iter();
            inside = bytes.take(4).rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
            self.given.use_up(BytesKind::Inside);
        }
        Spot { part, depth: depth.get(), nth, inside }
    }

    /// Records an attack, if the target allows attacks and their number is below the limit. The attack finds its
    /// element only when it is applied.
    fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}
