//! Events. The VM, the allocator, the build, the walker and the oracles report what they do to an [`Observer`]. With
//! the observer `()`, the compiler removes the calls.

/// Defines an enum of events and the name of each, which people read.
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
        /// The walker reads an L1 table.
        WalkL1 = "walk L1",
        /// The walker reads an L2 table.
        WalkL2 = "walk L2",
        /// The whole walk emits extents.
        Emit = "emit",
        /// The oracles ask the engine.
        Check = "check",
    }
}

closed! {
    /// Something that happens in a run. An event can happen in several states, and the state decides its meaning:
    /// `normal` is a write, an entry or an extent.
    Event {
        /// A chain begins. Only [`Observer::begin`] reports this event.
        Start = "start",
        /// An unallocated cluster, or a run of these.
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
        /// An image's header.
        Header = "header",
        /// A part of a table that the walker reads at once.
        Piece = "piece",
        /// An L2 table. In the state "allocate table": the refcount table.
        Table = "table",
        /// A table that the run has met before.
        SharedTable = "shared table",
        /// A refcount block.
        Block = "block",
        /// A snapshot.
        Snapshot = "snapshot",
        /// A snapshot is deleted.
        SnapshotDeleted = "snapshot deleted",
        /// A snapshot is applied.
        SnapshotApplied = "snapshot applied",
        /// A bitmap.
        Bitmap = "bitmap",
        /// The layer below.
        Backing = "backing",
        /// A range past the end of the layer below, or of the disk.
        PastEnd = "past the end",
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
        /// The disk ends within a cluster.
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
}

closed! {
    /// A value that is measured once for each verified image. Feedback uses its magnitude.
    Vital {
        /// Extents of the whole walk.
        Extents = "extents",
        /// Reads while the walker opens the image and walks the whole disk.
        Reads = "reads",
        /// Bytes that these reads returned.
        ReadBytes = "bytes read",
        /// The largest number of runs in one extended entry.
        Splits = "splits of an entry",
        /// The deepest layer that an extent comes from.
        Depth = "depth",
        /// L2 tables in the layer at the top.
        Tables = "L2 tables",
        /// Refcount blocks.
        Blocks = "refcount blocks",
        /// Clusters of the refcount table.
        TableClusters = "refcount table clusters",
        /// The longest row of refcount blocks of which each was needed by the one before.
        BlockRounds = "blocks for blocks",
        /// Holes between clusters of the file.
        Holes = "holes",
        /// Clusters of the file.
        FileClusters = "file clusters",
        /// Snapshots.
        Snapshots = "snapshots",
        /// Bitmaps.
        Bitmaps = "bitmaps",
        /// Layers of the chain.
        Layers = "layers",
        /// Clusters with a count above their references.
        Leaked = "leaked clusters",
        /// Clusters with a count below their references.
        Uncounted = "uncounted clusters",
        /// Questions of the program.
        Questions = "questions",
    }
}

closed! {
    /// The part of the disk that a walk covers.
    WindowClass {
        /// The whole disk.
        Whole = "the whole disk",
        /// The first byte of the disk, but not the last.
        Beginning = "the beginning",
        /// Neither the first byte of the disk nor the last.
        Middle = "the middle",
        /// The last byte of the disk, but not the first.
        End = "the end",
        /// No byte of the disk.
        Nothing = "nothing",
    }
}

/// A receiver of events. Every method has a default that does nothing.
pub trait Observer {
    /// Reports whether this observer uses the events. If not, callers skip the work that only events need.
    const OBSERVES: bool = true;

    /// Receives the beginning of a chain of events in `state`.
    #[inline(always)]
    fn begin(&self, state: State) {
        let _ = state;
    }

    /// Receives an event.
    #[inline(always)]
    fn event(&self, state: State, event: Event) {
        let _ = (state, event);
    }

    /// Receives a rare event.
    #[inline(always)]
    fn rare(&self, rare: Rare) {
        let _ = rare;
    }

    /// Receives a measured value. If an image has several values, the largest counts. [`Observer::measured`] ends an
    /// image.
    #[inline(always)]
    fn vital(&self, vital: Vital, value: u64) {
        let _ = (vital, value);
    }

    /// Receives the end of an image: all its vitals have been reported.
    #[inline(always)]
    fn measured(&self) {}

    /// Receives the beginning of a walk.
    #[inline(always)]
    fn walk(&self, window: WindowClass) {
        let _ = window;
    }
}

/// An observer that ignores all events.
impl Observer for () {
    const OBSERVES: bool = false;
}

/// An observer that is chosen at run time.
impl<O: Observer> Observer for Option<O> {
    const OBSERVES: bool = O::OBSERVES;

    fn begin(&self, state: State) {
        self.iter().for_each(|observer| observer.begin(state));
    }

    fn event(&self, state: State, event: Event) {
        self.iter().for_each(|observer| observer.event(state, event));
    }

    fn rare(&self, rare: Rare) {
        self.iter().for_each(|observer| observer.rare(rare));
    }

    fn vital(&self, vital: Vital, value: u64) {
        self.iter().for_each(|observer| observer.vital(vital, value));
    }

    fn measured(&self) {
        self.iter().for_each(Observer::measured);
    }

    fn walk(&self, window: WindowClass) {
        self.iter().for_each(|observer| observer.walk(window));
    }
}

macro_rules! passed_on {
    ($holder:ty) => {
        impl<O: Observer> Observer for $holder {
            const OBSERVES: bool = O::OBSERVES;

            #[inline(always)]
            fn begin(&self, state: State) {
                (**self).begin(state);
            }

            #[inline(always)]
            fn event(&self, state: State, event: Event) {
                (**self).event(state, event);
            }

            #[inline(always)]
            fn rare(&self, rare: Rare) {
                (**self).rare(rare);
            }

            #[inline(always)]
            fn vital(&self, vital: Vital, value: u64) {
                (**self).vital(vital, value);
            }

            #[inline(always)]
            fn measured(&self) {
                (**self).measured();
            }

            #[inline(always)]
            fn walk(&self, window: WindowClass) {
                (**self).walk(window);
            }
        }
    };
}

passed_on!(&O);
passed_on!(std::rc::Rc<O>);
