//! The lists of events in a run, of the states in which they happen, of rare events, and of the classes of walks. Each
//! value has a name and an index. These lists cover all formats. Rare events that happen in only one format are listed
//! in the folder of that format.

use super::image_format::ImageFormat;

/// Defines an enum and the name of each value, which people read.
#[macro_export]
#[doc(hidden)]
macro_rules! closed {
    (
        $(#[$about:meta])* $name:ident {
            $($(#[$what:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// All values, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The number of values.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the index in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

closed! {
    /// The part of a run in which an event happens. Each state has its own chain of events, so an event of another
    /// state does not interrupt the chain.
    State {
        /// The VM runs operations, and the allocator places their clusters.
        Build = "build",
        /// The build allocates the refcount blocks.
        AllocateBlocks = "allocate blocks",
        /// The build allocates the refcount table.
        AllocateTable = "allocate table",
        /// The build writes the image's tables.
        Serialise = "serialise",
        /// The walker opens a layer.
        Open = "open",
        /// The walker reads an L1 table, or a raw file.
        WalkL1 = "walk L1",
        /// The walker reads an L2 table.
        WalkL2 = "walk L2",
        /// The walker reads a table of blocks.
        WalkBlocks = "walk blocks",
        /// The walker reads a table of blocks whose entries have states.
        WalkBlockStates = "walk block states",
        /// The walker reads a directory of tables of grains.
        WalkDirectory = "walk directory",
        /// The walker reads a table of grains.
        WalkGrains = "walk grains",
        /// The whole walk emits extents.
        Emit = "emit",
        /// The oracles ask the engine.
        Check = "check",
        /// The engine carries out requests.
        Write = "write",
        /// An engine that reports no events reads the files.
        FileReads = "file reads",
        /// An engine that reports no events writes the file at the top.
        FileWrites = "file writes",
    }
}

closed! {
    /// Something that happens in a run. An event can happen in several states, and the state decides its meaning:
    /// `normal` is a write, an entry or an extent.
    Event {
        /// A chain begins. Only [`Observer::begin`](super::observer::Observer::begin) reports this event.
        Start = "start",
        /// An unallocated cluster, block or grain, or a run of these. In the walks of blocks, these are zero-plain.
        Unallocated = "unallocated",
        /// A zero cluster without a host cluster, or a run of these.
        ZeroPlain = "zero-plain",
        /// A zero cluster with a host cluster, or a run of these.
        ZeroAllocated = "zero-allocated",
        /// A cluster of data, or a run of these.
        Normal = "normal",
        /// A compressed cluster, or a run of these.
        Compressed = "compressed",
        /// A cluster whose subclusters differ. In a program: subclusters that change.
        Subclusters = "subclusters",
        /// A run of subclusters without data in a cluster that has a host cluster.
        UnallocatedSubclusters = "unallocated subclusters",
        /// An image's header. If the image has two headers: the first one, if it counts.
        Header = "header",
        /// The second header of an image, if it counts.
        SecondHeader = "second header",
        /// The footer of an image. It may replace a header.
        Footer = "footer",
        /// The log of an image. In the state "open": a log that the walker searches.
        Log = "log",
        /// A table that names the other structures of an image, or its tables.
        Directory = "directory",
        /// The description of the disk beside the header.
        Metadata = "metadata",
        /// A part of the disk that has a file or tables of its own.
        Extent = "extent",
        /// A part of a table that the walker reads at once.
        Piece = "piece",
        /// An L2 table, a block allocation table or a grain table. In the state "allocate table": the refcount table.
        Table = "table",
        /// A table that the run has met before. In the state "walk directory": the table of the entry before.
        SharedTable = "shared table",
        /// A refcount block. In other formats than qcow2: the blocks or the grains of an image.
        Block = "block",
        /// A snapshot.
        Snapshot = "snapshot",
        /// A snapshot is deleted.
        SnapshotDeleted = "snapshot deleted",
        /// A snapshot is applied.
        SnapshotApplied = "snapshot applied",
        /// A bitmap. In the state "walk block states": an entry of a sector bitmap between those of blocks.
        Bitmap = "bitmap",
        /// A block, or a run of these, whose entry states that its content is undefined.
        Undefined = "undefined",
        /// A block, or a run of these, that a guest has unmapped.
        Unmapped = "unmapped",
        /// The layer below.
        Backing = "backing",
        /// A range past the end of the layer below, or of the disk. In the walks of blocks and grains: the end of the
        /// disk cuts the last block or grain.
        PastEnd = "past the end",
        /// A grain whose first byte lies past the end of its file.
        PastFile = "past the file",
        /// An external data file.
        DataFile = "data file",
        /// A new layer at the top of the chain.
        Overlay = "overlay",
        /// The disk gets another size.
        Resized = "resized",
        /// An operation changes where later clusters go, or how the build writes the header.
        Arranged = "arranged",
        /// An operation has no effect.
        NoEffect = "no effect",
        /// The allocator appends clusters to the file, because it looked for no hole.
        Appended = "appended",
        /// The allocator puts clusters into a hole.
        Filled = "filled",
        /// The allocator finds no hole that is large enough, and appends clusters to the file.
        NoHole = "no hole",
        /// An operation changes existing clusters in place.
        InPlace = "in place",
        /// The refcount block exists already.
        Counted = "counted",
        /// A refcount block holds its own count.
        CountsItself = "counts itself",
        /// A table grows in place.
        Extended = "extended",
        /// A table moves.
        Moved = "moved",
        /// A table gives clusters back that it does not need.
        Trimmed = "trimmed",
        /// A walk of the whole disk or of a part.
        Walk = "walk",
        /// A look-up of one byte.
        Lookup = "lookup",
        /// A read of guest data.
        Read = "read",
        /// A window without a byte to walk: it is empty, or lies past the end.
        NothingThere = "nothing there",
        /// The visitor stops a walk.
        Stopped = "stopped",
        /// A checkpoint.
        Checkpoint = "checkpoint",
        /// The engine flushes the disk.
        Flushed = "flushed",
        /// The power is cut, or the process of the engine is killed.
        Cut = "cut",
        /// An attack damages an image, or will damage it during a read.
        Attacked = "attacked",
        /// An error. It ends the chain.
        Failed = "failed",
    }
}

/// An event that seldom happens, and is worth an input of its own. `formats::rare_events` lists all rare events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rare {
    /// The list: 0 for events of all formats, otherwise 1 + the number of the format.
    list: u8,
    /// The place in the list.
    place: u8,
    name: &'static str,
}

impl Rare {
    /// Creates the event at a place in the list of a format, or in the list of all formats.
    pub(crate) const fn new(format: Option<ImageFormat>, place: u8, name: &'static str) -> Self {
        let list = match format {
            None => 0,
            Some(format) => 1 + format as u8,
        };
        Self { list, place, name }
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the number of the list, and the place in it.
    pub(crate) const fn place(self) -> (usize, usize) {
        (self.list as usize, self.place as usize)
    }
}

/// Declares the rare events of a format, as constants of a module that has the list of them, too; or those of all
/// formats, as constants of [`Rare`].
macro_rules! rare_events {
    ($($(#[$what:meta])* $event:ident = $word:literal,)*) => {
        enum GeneralPlace {
            $($event,)*
        }

        #[allow(non_upper_case_globals)]
        impl Rare {
            $($(#[$what])* pub const $event: Self = Self::new(None, GeneralPlace::$event as u8, $word);)*

            /// The events of all formats.
            pub(crate) const OF_ALL_FORMATS: &[Self] = &[$(Self::$event),*];
        }
    };
    (
        $(#[$about:meta])* $module:ident of $format:ident {
            $($(#[$what:meta])* $event:ident = $word:literal,)*
        }
    ) => {
        $(#[$about])*
        pub mod $module {
            use $crate::disk::events::Rare;
            use $crate::disk::image_format::ImageFormat;

            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum FormatPlace {
                $($event,)*
            }

            $(
                $(#[$what])*
                pub const $event: Rare =
                    Rare::new(Some(ImageFormat::$format), FormatPlace::$event as u8, $word);
            )*

            /// All of them.
            pub(crate) const ALL: &[Rare] = &[$($event),*];
        }
    };
}

rare_events! {
    /// The fixpoint takes more than two rounds: a block needs a block, which needs another block.
    ManyRounds = "more than two rounds of blocks",
    /// A refcount block other than the first holds the count of its own cluster.
    BlockCountsItself = "a later block counts itself",
    /// The refcount table needs a block of its own.
    TableNeedsBlock = "the refcount table needs a block",
    /// The refcount table is longer than one cluster.
    LongTable = "the refcount table crosses a cluster",
    /// The refcount table grows in place, into its tolerance.
    TableExtended = "the refcount table grows in place",
    /// The refcount table uses up its tolerance and moves.
    TableMoved = "the tolerance is used up",
    /// The refcount table gives clusters back.
    TableTrimmed = "the refcount table is trimmed",
    /// The allocator looks for a hole, finds none, and appends clusters.
    NoHole = "no hole left",
    /// A count above 1 reaches the maximum of its width.
    CountAtMaximum = "a count at its maximum",
    /// More than one L1 table names an L2 table.
    SharedTable = "an L2 table is shared",
    /// The build copies an L2 table before it changes the table.
    TableCopied = "an L2 table is copied on write",
    /// Compressed data reach the end of the file.
    CompressedAtEnd = "compressed data end the file",
    /// A chain has as many layers as a program can build.
    DeepestChain = "the deepest chain",
    /// A layer ends in the middle of a hole of the layer above.
    BackingEnds = "a backing file ends in a hole",
    /// The disk has no bytes.
    EmptyDisk = "an empty disk",
    /// The disk ends within a cluster, a block or a grain.
    OddTail = "the disk ends within a cluster",
    /// The disk has 2^60 bytes or more; the largest L1 table maps 2^61.
    HugeDisk = "one of the largest disks",
    /// An extent reaches from one L2 table into the next.
    ExtentAcrossTables = "an extent crosses L2 tables",
    /// The subclusters of an extended entry change 16 times or more.
    ManySplits = "an entry is split 16 times",
    /// A walk fails after it has emitted an extent.
    ErrorAfterExtent = "an error after an extent",
    /// The walker cannot open an image.
    OpenFails = "opening fails",
    /// A window lies past the end of the disk.
    WindowPastEnd = "a window past the end",
    /// The end of a window does not fit into 64 bits.
    WindowOverflows = "a window at the edge of 64 bits",
    /// A window is empty.
    EmptyWindow = "an empty window",
    /// An image has counts that are out of date.
    OutOfDate = "counts are out of date",
    /// A snapshot has another disk size than the active disk.
    SnapshotSize = "a snapshot of another size",
    /// A layer is a raw file.
    RawLayer = "a raw layer",
    /// The image keeps its data in an external data file.
    DataFile = "a data file",
}

impl State {
    /// Reports whether the walker reads the tables of a layer in this state.
    pub const fn is_walk(self) -> bool {
        use State::*;
        matches!(self, WalkL1 | WalkL2 | WalkBlocks | WalkBlockStates | WalkDirectory | WalkGrains)
    }
}

pub use closed;
pub(crate) use rare_events;
