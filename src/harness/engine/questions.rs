//! The kinds of questions to an engine, and the oracles that are idle for want of answers.

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $oracles:literal;)+) => {
        /// A kind of question to an engine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum QuestionKind {
            $($(#[$doc])* $kind,)+
        }

        impl QuestionKind {
            /// All kinds.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// Returns the name of the question, and the oracles that judge only answers to it.
            pub const fn oracles(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind => ($name, $oracles),)+
                }
            }
        }
    };
}

kinds! {
    /// [`Engine::open`](crate::harness::engine::Engine::open), which every engine answers.
    Open = "open", "all";
    /// [`OpenDisk::map`](crate::harness::engine::OpenDisk::map).
    Map = "map", "partition, flags, maximal, model (extents), window, bounds";
    /// [`OpenDisk::status`](crate::harness::engine::OpenDisk::status).
    Status = "status", "lookup";
    /// [`OpenDisk::read`](crate::harness::engine::OpenDisk::read).
    Read = "read", "data";
    /// [`Engine::open_snapshot`](crate::harness::engine::Engine::open_snapshot).
    Snapshots = "snapshots", "snapshots";
    /// [`ReportKind::Info`](crate::harness::engine::ReportKind::Info).
    Info = "info", "info";
    /// [`ReportKind::Check`](crate::harness::engine::ReportKind::Check).
    Check = "check", "info (check)";
    /// [`Engine::open_to_write`](crate::harness::engine::Engine::open_to_write), and
    /// [`Request::Write`](crate::harness::engine::Request::Write).
    Writing = "write", "written";
    /// [`Request::WriteZeroes`](crate::harness::engine::Request::WriteZeroes).
    WriteZeroes = "write_zeroes", "written (zeros)";
    /// [`Request::Discard`](crate::harness::engine::Request::Discard).
    Discard = "discard", "written (discards)";
    /// [`Request::Resize`](crate::harness::engine::Request::Resize).
    Resize = "resize", "written (other sizes)";
    /// [`Request::Flush`](crate::harness::engine::Request::Flush).
    Flush = "flush", "power_cut, killed (flushes)";
    /// [`Request::TakeSnapshot`](crate::harness::engine::Request::TakeSnapshot).
    TakeSnapshot = "take_snapshot", "written (new snapshots)";
    /// [`Request::ApplySnapshot`](crate::harness::engine::Request::ApplySnapshot).
    ApplySnapshot = "apply_snapshot", "written (applied snapshots)";
    /// [`Request::DeleteSnapshot`](crate::harness::engine::Request::DeleteSnapshot).
    DeleteSnapshot = "delete_snapshot", "written (deleted snapshots)";
    /// [`Request::ChangeBitmap`](crate::harness::engine::Request::ChangeBitmap).
    ChangeBitmap = "change_bitmap", "bitmaps (requests about bitmaps)";
    /// [`OpenDisk::in_flight`](crate::harness::engine::OpenDisk::in_flight).
    InFlight = "in_flight", "written (requests in flight)";
    /// [`Engine::create`](crate::harness::engine::Engine::create).
    Create = "create", "written (new images)";
}

/// A set of kinds of questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuestionKinds(u32);

const _: () = assert!(QuestionKind::ALL.len() <= u32::BITS as usize, "each kind has a bit");

impl QuestionKinds {
    /// All kinds.
    pub const ALL: Self = Self(u32::MAX);

    /// The kinds that change no image.
    pub const READING: Self = Self::of(&[
        QuestionKind::Open,
        QuestionKind::Map,
        QuestionKind::Status,
        QuestionKind::Read,
        QuestionKind::Snapshots,
        QuestionKind::Info,
        QuestionKind::Check,
    ]);

    /// Returns the set of some kinds.
    pub const fn of(kinds: &[QuestionKind]) -> Self {
        let (mut set, mut rest) = (Self(0), kinds);
        while let [first, others @ ..] = rest {
            set = set.with(*first);
            rest = others;
        }
        set
    }

    /// Returns this set with one kind more.
    pub const fn with(self, kind: QuestionKind) -> Self {
        Self(self.0 | 1 << kind as u32)
    }

    /// Returns the kinds that are in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Reports whether the set has a kind.
    #[inline]
    pub const fn has(self, kind: QuestionKind) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    /// Returns the kinds.
    pub fn iter(self) -> impl Iterator<Item = QuestionKind> {
        QuestionKind::ALL.into_iter().filter(move |kind| self.has(*kind))
    }
}
