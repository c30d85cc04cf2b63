//! What an operation is to an observer.

use crate::disk::observer::{Event, Observer, State};

use super::operand::Keep;
use super::{Effect, Operation, Vm};

impl Vm {
    /// Runs one operation, and tells `observer` what came of it.
    pub fn step_observed<O: Observer>(&mut self, operation: Operation, observer: &O) -> Effect {
        if !O::OBSERVES {
            return self.step(operation);
        }
        let before = self.builder().census();
        let effect = self.step(operation);
        let event = if effect == Effect::None { Event::NoEffect } else { event(&operation) };
        observer.event(State::Build, event);
        let built = !matches!(event, Event::Arranged | Event::Attacked | Event::Overlay);
        if effect == Effect::Changed && built {
            self.builder().census().tell(&before, observer);
        }
        effect
    }
}

/// What an operation with an effect is. Those that do the same to an image are the same.
fn event(operation: &Operation) -> Event {
    match operation {
        Operation::Write { .. } | Operation::Preallocate { .. } => Event::Normal,
        Operation::Compress { .. } | Operation::CompressAs { .. } => Event::Compressed,
        Operation::Zero { keep: Keep::Yes, .. } => Event::ZeroAllocated,
        Operation::Zero { keep: Keep::No, .. } => Event::ZeroPlain,
        Operation::Discard { .. } => Event::Unallocated,
        Operation::Subclusters { .. } => Event::Subclusters,
        Operation::Place { .. }
        | Operation::Reserve { .. }
        | Operation::Header { .. }
        | Operation::EndFile { .. }
        | Operation::Spare { .. } => Event::Arranged,
        Operation::Patch { .. }
        | Operation::Trap { .. }
        | Operation::FailRead { .. }
        | Operation::Truncate { .. } => Event::Attacked,
        Operation::Snapshot {} | Operation::SnapshotWith { .. } => Event::Snapshot,
        Operation::DeleteSnapshot { .. } => Event::SnapshotDeleted,
        Operation::ApplySnapshot { .. } => Event::SnapshotApplied,
        Operation::Resize { .. } => Event::Resized,
        Operation::Bitmap { .. }
        | Operation::FillBitmap { .. }
        | Operation::DeleteBitmap { .. } => Event::Bitmap,
        Operation::Overlay { .. } => Event::Overlay,
        Operation::Beyond { .. } => Event::PastEnd,
        Operation::Walk { .. } => Event::Walk,
        Operation::Lookup { .. } => Event::Lookup,
        Operation::Read { .. } => Event::Read,
        Operation::Checkpoint {} => Event::Checkpoint,
    }
}
