//! The classes of operations.

use crate::disk::observer::Event;

/// What an operation is for. The event is the one that an observer sees when the operation has an effect; operations
/// that do the same to an image share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It changes the image that is being built.
    Builds(Event),
    /// It decides where things will go, or how they will be written.
    Arranges,
    /// It begins another layer.
    Overlays,
    /// It asks a question of the image that the program built.
    Asks(Event),
    /// It has the image built and verified.
    Checkpoints,
    /// It damages what was built, in targets that have attacks.
    Attacks,
}

impl Class {
    /// The event of an operation with an effect.
    pub fn event(self) -> Event {
        match self {
            Self::Builds(event) | Self::Asks(event) => event,
            Self::Arranges => Event::Arranged,
            Self::Overlays => Event::Overlay,
            Self::Checkpoints => Event::Checkpoint,
            Self::Attacks => Event::Attacked,
        }
    }
}
