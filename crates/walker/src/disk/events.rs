//! The lists of events in a run, of the states in which they happen, of rare events, and of the classes of walks.
//! Each value has a name and an index.

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
        /// The walker reads the block allocation table of a VHD image.
        WalkVhd = "walk VHD",
        /// The walker reads the block allocation table of a VHDX image.
        WalkVhdx = "walk VHDX",
        /// The walker reads the grain directory of a VMDK image.
        WalkDirectory = "walk directory",
        /// The walker reads a grain table.
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
        /// An unallocated cluster, block or grain, or a run of these. In the walks of VHD and VHDX, these are
        /// zero-plain.
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
        /// An image's header. In a VHDX image: the first header, if it counts.
        Header = "header",
        /// The second header of a VHDX image, if it counts.
        SecondHeader = "second header",
        /// The footer of a VHD image. In a VMDK image: a footer, which replaces the header.
        Footer = "footer",
        /// The log of a VHDX image. In the state "open": a log that the walker searches.
        Log = "log",
        /// The region table of a VHDX image, or the grain directory of a VMDK image.
        Directory = "directory",
        /// The metadata of a VHDX image, or the descriptor of a VMDK image.
        Metadata = "metadata",
        /// An extent of a VMDK image.
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
        /// A bitmap. In the state "walk VHDX": an entry of a sector bitmap between those of blocks.
        Bitmap = "bitmap",
        /// A block, or a run of these, whose entry in a VHDX image states that its content is undefined.
        Undefined = "undefined",
        /// A block, or a run of these, that a guest has unmapped.
        Unmapped = "unmapped",
        /// The layer below.
        Backing = "backing",
        /// A range past the end of the layer below, or of the disk. In the walks of VHD, VHDX and VMDK: the end of the
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

closed! {
    /// Something that seldom happens. Each rare event is worth an input of its own.
    Rare {
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
        /// The creator of a VHD image states the size of the disk by its geometry.
        VhdGeometry = "a VHD of its geometry's size",
        /// The dynamic header of a VHD image does not follow the first footer.
        VhdHeaderGap = "a gap before a VHD header",
        /// All blocks of a VHD image lie before the block allocation table.
        VhdTableLast = "a VHD table behind the blocks",
        /// A block of a VHD image begins 1 TiB or more after the beginning of the file.
        VhdFarBlock = "a VHD block past 1 TiB",
        /// The blocks of a VHD image are so small that QEMU expects no bitmaps.
        VhdNoBitmap = "VHD blocks without bitmaps",
        /// A VHD image stores a block past the end of the disk.
        VhdSpareBlock = "a VHD block past the disk",
        /// A VHD image begins with a footer that states a fixed disk.
        VhdTypeFixed = "a VHD footer of the wrong type",
        /// Only one of the two headers of a VHDX image is valid.
        VhdxSingleHeader = "a VHDX with one valid header",
        /// The second header of a VHDX image counts.
        VhdxSecondHeader = "the second VHDX header counts",
        /// Both headers of a VHDX image are the same.
        VhdxEqualHeaders = "equal VHDX headers",
        /// The walker searches the log of a VHDX image for entries that have to be replayed.
        VhdxLog = "a VHDX log is searched",
        /// The log of a VHDX image is empty, but holds an old entry.
        VhdxOldLog = "an old entry in a VHDX log",
        /// A VHDX image has a region and metadata that no reader knows.
        VhdxUnknown = "unknown parts of a VHDX",
        /// A walk reads past an entry of a sector bitmap.
        VhdxBitmap = "a walk meets a VHDX sector bitmap",
        /// A walk meets a block of a VHDX image whose state readers refuse.
        VhdxUnreadable = "an unreadable VHDX block",
        /// A footer of a VMDK image replaces its header.
        VmdkFooter = "a VMDK footer counts",
        /// A VMDK image has an extent as ESX writes it.
        VmdkCowd = "a COWD extent",
        /// A walk meets a grain of zeros.
        VmdkZeroGrain = "a zero grain",
        /// The grains of a VMDK image are compressed, and markers precede them.
        VmdkMarked = "compressed grains with markers",
        /// The grains of a VMDK image are compressed, without markers.
        VmdkUnmarked = "compressed grains without markers",
        /// The grain tables of a VMDK image are shorter than a sector.
        VmdkShortTable = "grain tables below a sector",
        /// Two entries of a grain directory name the same table, and no entry between them names one.
        VmdkSharedTable = "a grain table is shared",
        /// A grain begins past the end of its file.
        VmdkPastFile = "a grain past the file",
        /// A VMDK image has an extent without tables.
        VmdkFlat = "a flat VMDK extent",
        /// A VMDK image has an seSparse extent.
        VmdkSeSparse = "an seSparse extent",
        /// A VMDK image has a parent.
        VmdkParent = "a VMDK parent",
    }
}

impl State {
    /// Reports whether the walker reads the tables of a layer in this state.
    pub const fn is_walk(self) -> bool {
        use State::*;
        matches!(self, WalkL1 | WalkL2 | WalkVhd | WalkVhdx | WalkDirectory | WalkGrains)
    }
}

pub use closed;
