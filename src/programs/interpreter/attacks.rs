//! Operations that attack what was built. They are carried out when it is.

use crate::formats::qcow2::anatomy::Part;
use crate::images::damage::{Attack, Spot, Transform};
use crate::programs::operand::{Gap, Number};

use super::{Effect, Vm, effect};

/// A part, the layers down, and the number of the element in the part.
type Aim = (Part, Number<0, 3>, u16);

impl Vm {
    /// What is done to the files once they are built, from now on each time.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Changes an element of what was built.
    pub(super) fn patch(&mut self, aim: Aim, transform: Transform, value: u16) -> Effect {
        self.attack(Attack::Patch { spot: spot(aim), transform, value })
    }

    /// Changes an element when it has been read so many times.
    pub(super) fn trap(&mut self, aim: Aim, transform: Transform, value: u8, reads: u8) -> Effect {
        self.attack(Attack::Trap { spot: spot(aim), transform, value: value.into(), reads })
    }

    /// Makes reads of a part fail.
    pub(super) fn fail_read(&mut self, part: Part, depth: Number<0, 3>, reads: u8) -> Effect {
        self.attack(Attack::FailRead { part, depth: depth.get(), reads })
    }

    /// Cuts bytes off the end of the file.
    pub(super) fn truncate(&mut self, depth: Number<0, 3>, cut: Gap) -> Effect {
        self.attack(Attack::Truncate { depth: depth.get(), bytes: cut.units() })
    }

    /// Notes an attack, where the target has any and there is room. What it hits is seen when it is done.
    fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}

fn spot((part, depth, nth): Aim) -> Spot {
    Spot { part, depth: depth.get(), nth }
}
