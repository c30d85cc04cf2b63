//! The questions of the self-test.

use std::fmt;

use crate::harness::engine::questions::{QuestionKind, QuestionKinds};

/// A question of the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTestQuestion {
    /// The image opens, and the disk has the right size.
    Size,
    /// The data at the edges of each part of the disk.
    Data,
    /// All bytes of the last 4 KiB of the disk.
    End,
    /// The status of bytes.
    Status,
    /// The extents.
    Map,
    /// The disk of a snapshot: all of the questions above.
    Snapshot,
}

impl SelfTestQuestion {
    /// The questions about each image, in their order.
    pub(super) const EACH: [Self; 5] = [Self::Size, Self::Data, Self::End, Self::Status, Self::Map];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Data => "data",
            Self::End => "end",
            Self::Status => "status",
            Self::Map => "map",
            Self::Snapshot => "snapshot",
        }
    }

    /// Returns the kind of the question in the interface; `None` if every engine answers it.
    pub(super) const fn kind(self) -> Option<QuestionKind> {
        match self {
            Self::Size => None,
            Self::Data | Self::End => Some(QuestionKind::Read),
            Self::Status => Some(QuestionKind::Status),
            Self::Map => Some(QuestionKind::Map),
            Self::Snapshot => Some(QuestionKind::Snapshots),
        }
    }
}

impl SelfTestQuestion {
    /// Returns the kinds of questions that reach the engine. All questions about a snapshot are one.
    pub(super) const fn kinds(self) -> QuestionKinds {
        let open = QuestionKinds::of(&[QuestionKind::Open]);
        match (self, self.kind()) {
            (Self::Snapshot, _) => open
                .with(QuestionKind::Read)
                .with(QuestionKind::Status)
                .with(QuestionKind::Map)
                .with(QuestionKind::Snapshots),
            (_, Some(kind)) => open.with(kind),
            (_, None) => open,
        }
    }
}

impl fmt::Display for SelfTestQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
