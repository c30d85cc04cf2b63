//! Operations that attack the files. The attacks take effect each time the files are built.

use crate::images::damage::Attack;

use super::{Effect, Vm, effect};

impl Vm {
    /// Returns the attacks. They are applied each time the files are built from now on.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Records an attack, if the target allows attacks and their number is below the limit. The attack finds its
    /// element only when it is applied.
    pub(super) fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}
