//! Operations that attack what was built. They are carried out when it is.

use crate::images::damage::Attack;

use super::{Effect, Vm, effect};

impl Vm {
    /// What is done to the files once they are built, from now on each time.
    pub fn attacks(&self) -> &[Attack] {
        &self.attacks
    }

    /// Notes an attack, where the target has any and there is room. What it hits is seen when it is done.
    pub(super) fn attack(&mut self, attack: Attack) -> Effect {
        let room = self.attacks.len() < self.limits.attacks;
        self.attacks.extend(room.then_some(attack));
        effect(room)
    }
}
