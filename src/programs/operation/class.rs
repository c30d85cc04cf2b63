//! The classes of operations.

use crate::disk::observer::Event;

/// The purpose of an operation. The event is reported to an observer if the operation has an effect. Operations with
/// the same effect on an image share an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The operation changes the image.
    Builds(Event),
    /// The operation sets the placement or the form of later structures.
    Arranges,
    /// The operation begins another layer.
    Overlays,
    /// The operation asks a question of the image that the program built.
    Asks(Event),
    /// The operation has the image built and verified.
    Checkpoints,
    /// The operation asks the engine to change the disk, in the target that writes.
    Requests(Event),
    /// The operation damages the files, in targets that allow attacks.
    Attacks,
}

impl Class {
    /// Returns the event of an operation with an effect.
    pub fn event(self) -> Event {
        match self {
            Self::Builds(event) | Self::Asks(event) | Self::Requests(event) => event,
            Self::Arranges => Event::Arranged,
            Self::Overlays => Event::Overlay,
            Self::Checkpoints => Event::Checkpoint,
            Self::Attacks => Event::Attacked,
        }
    }
}
