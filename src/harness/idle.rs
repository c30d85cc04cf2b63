//! The questions that an engine does not answer, and the oracles that are idle for want of answers.

/// A kind of question to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// [`OpenDisk::map`](super::engine::OpenDisk::map).
    Map,
    /// [`OpenDisk::status`](super::engine::OpenDisk::status).
    Status,
    /// [`OpenDisk::read`](super::engine::OpenDisk::read).
    Read,
    /// [`Engine::open_snapshot`](super::engine::Engine::open_snapshot).
    Snapshots,
    /// [`OpenDisk::info`](super::engine::OpenDisk::info).
    Info,
    /// [`OpenDisk::check`](super::engine::OpenDisk::check).
    Check,
    /// [`Engine::open_to_write`](super::engine::Engine::open_to_write), and
    /// [`OpenDisk::write`](super::engine::OpenDisk::write).
    Writing,
    /// [`OpenDisk::write_zeroes`](super::engine::OpenDisk::write_zeroes).
    WriteZeroes,
    /// [`OpenDisk::discard`](super::engine::OpenDisk::discard).
    Discard,
    /// [`OpenDisk::resize`](super::engine::OpenDisk::resize).
    Resize,
    /// [`OpenDisk::flush`](super::engine::OpenDisk::flush).
    Flush,
    /// [`OpenDisk::take_snapshot`](super::engine::OpenDisk::take_snapshot).
    TakeSnapshot,
    /// [`OpenDisk::apply_snapshot`](super::engine::OpenDisk::apply_snapshot).
    ApplySnapshot,
    /// [`OpenDisk::delete_snapshot`](super::engine::OpenDisk::delete_snapshot).
    DeleteSnapshot,
    /// [`OpenDisk::change_bitmap`](super::engine::OpenDisk::change_bitmap).
    ChangeBitmap,
    /// [`Engine::create`](super::engine::Engine::create).
    Create,
}

impl QuestionKind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Map,
        Self::Status,
        Self::Read,
        Self::Snapshots,
        Self::Info,
        Self::Check,
        Self::Writing,
        Self::WriteZeroes,
        Self::Discard,
        Self::Resize,
        Self::Flush,
        Self::TakeSnapshot,
        Self::ApplySnapshot,
        Self::DeleteSnapshot,
        Self::ChangeBitmap,
        Self::Create,
    ];

    /// Returns the name of the question, and the oracles that judge only answers to it.
    pub const fn oracles(self) -> (&'static str, &'static str) {
        match self {
            Self::Map => ("map", "partition, flags, maximal, model (extents), window, bounds"),
            Self::Status => ("status", "lookup"),
            Self::Read => ("read", "data"),
            Self::Snapshots => ("snapshots", "snapshots"),
            Self::Info => ("info", "info"),
            Self::Check => ("check", "info (check)"),
            Self::Writing => ("write", "written"),
            Self::WriteZeroes => ("write_zeroes", "written (zeros)"),
            Self::Discard => ("discard", "written (discards)"),
            Self::Resize => ("resize", "written (other sizes)"),
            Self::Flush => ("flush", "power_cut, killed (flushes)"),
            Self::TakeSnapshot => ("take_snapshot", "written (new snapshots)"),
            Self::ApplySnapshot => ("apply_snapshot", "written (applied snapshots)"),
            Self::DeleteSnapshot => ("delete_snapshot", "written (deleted snapshots)"),
            Self::ChangeBitmap => ("change_bitmap", "bitmaps (requests about bitmaps)"),
            Self::Create => ("create", "written (new images)"),
        }
    }
}

/// The kinds of questions that an engine did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unanswered(u16);

impl Unanswered {
    /// Reports whether the engine did not answer questions of this kind.
    pub fn has(self, kind: QuestionKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Returns the kinds.
    pub fn iter(self) -> impl Iterator<Item = QuestionKind> {
        QuestionKind::ALL.into_iter().filter(move |kind| self.has(*kind))
    }

    /// Adds a kind.
    pub(super) fn add(&mut self, kind: QuestionKind) {
        self.0 |= 1 << kind as u8;
    }
}
