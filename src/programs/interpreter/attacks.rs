//! Operations that attack the files. The attacks take effect each time the files are built.

use crate::formats::anatomy::Part;
use crate::images::damage::{Attack, Spot};
use crate::programs::operand::{BytesKind, Number};

use super::{Effect, Vm, effect};

impl Vm {
    /// Returns the attacks. They are applied each time the files are built from now on.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Returns the element that an attack names. If that is a payload, the bytes that wait select a byte of it.
    pub(super) fn spot(&mut self, part: Part, depth: Number<0, 3>, nth: u16) -> Spot {
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
    pub(super) fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}
