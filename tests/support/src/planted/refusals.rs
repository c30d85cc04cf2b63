//! An engine that reads through damage.

use crate::prelude::*;

/// An engine that does not see the damage: it answers as if the image were sound.
pub struct AsIfSound {
    walker: Walker,
    sound: Chain,
}

impl AsIfSound {
    /// Creates the engine for the image that a program builds.
    pub fn new(sound: &Program) -> Self {
        let mut harness = Harness::new(Walker::default());
        harness.build(&sound.encode());
        Self { walker: Walker::default(), sound: Chain::new(harness.images()) }
    }
}

impl Engine for AsIfSound {
    fn facts(&self) -> Facts {
        Facts { claims: Claims::ALL, ..Facts::new("as if sound") }
    }

    fn open<'s>(&'s mut self, _: &'s Chain) -> Opened<'s> {
        self.walker.open(&self.sound)
    }
}
