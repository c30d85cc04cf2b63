//! What happened on the way: events of VM, allocator, build, walker and oracles, as they tell them to
//! an observer. Where nobody observes, [`()`](Observer), nothing is left of it in the compiled code.

/// A closed list of what can happen, with the names that people read.
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
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// What it is called.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Its place in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

closed! {
    /// Where an event belongs. Each state has a chain of its own: what happens in one between two events
    /// of another does not come between these.
    State {
        /// Operations of the program, and where their clusters go.
        Build = "build",
        /// The refcount blocks are allocated.
        AllocateBlocks = "allocate blocks",
        /// The refcount table is allocated.
        AllocateTable = "allocate table",
        /// The image's tables are written.
        Serialise = "serialise",
        /// The walker opens a layer.
        Open = "open",
        /// The walker goes through an L1 table.
        WalkL1 = "walk L1",
        /// The walker goes through an L2 table.
        WalkL2 = "walk L2",
        /// The extents of the whole walk.
        Emit = "emit",
        /// The oracles ask.
        Check = "check",
    }
}

closed! {
    /// What can happen. The same event may happen in several states, and means what its state makes of it:
    /// `normal` is a write, an entry, an extent.
    Event {
        /// A chain begins. Only [`Observer::begin`] says it.
        Start = "start",
        /// A cluster or a run without allocation.
        Unallocated = "unallocated",
        /// A cluster or a run of zeros without a place.
        ZeroPlain = "zero-plain",
        /// A cluster or a run of zeros with a place.
        ZeroAllocated = "zero-allocated",
        /// A cluster or a run of data.
        Normal = "normal",
        /// A cluster or a run of compressed data.
        Compressed = "compressed",
        /// A cluster whose subclusters are not alike; in a program, subclusters that change.
        Subclusters = "subclusters",
        /// A run of subclusters without data, in a cluster that has a place.
        UnallocatedSubclusters = "unallocated subclusters",
        /// A header.
        Header = "header",
        /// A piece of a table is looked at.
        Piece = "piece",
        /// An L2 table; where tables are allocated, the refcount table.
        Table = "table",
        /// A table that was met before.
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
        /// Past the end of the layer below, or of the disk.
        PastEnd = "past the end",
        /// An external data file.
        DataFile = "data file",
        /// A new layer at the top.
        Overlay = "overlay",
        /// The disk has another size.
        Resized = "resized",
        /// Where things will go was changed, or how the header is written.
        Arranged = "arranged",
        /// Nothing came of an operation.
        NoEffect = "no effect",
        /// Clusters at the end of the file, where no hole was wanted.
        Appended = "appended",
        /// Clusters in a hole.
        Filled = "filled",
        /// No hole was large enough: clusters at the end of the file instead.
        NoHole = "no hole",
        /// Nowhere new: what is there was changed in place.
        InPlace = "in place",
        /// A block is there already.
        Counted = "counted",
        /// A block counts itself.
        CountsItself = "counts itself",
        /// A table grew in place.
        Extended = "extended",
        /// A table has to move.
        Moved = "moved",
        /// A table gave back what it does not need.
        Trimmed = "trimmed",
        /// The whole disk is walked, or a part of it.
        Walk = "walk",
        /// A byte is looked up.
        Lookup = "lookup",
        /// Data are read.
        Read = "read",
        /// Nothing is there to walk: a window that is empty, or past the end.
        NothingThere = "nothing there",
        /// A walk was stopped by its visitor.
        Stopped = "stopped",
        /// A checkpoint.
        Checkpoint = "checkpoint",
        /// Damage was done to what was built, or will be while it is read.
        Attacked = "attacked",
        /// An error. It ends the chain.
        Failed = "failed",
    }
}

closed! {
    /// What seldom happens, and is worth an input each.
    Rare {
        /// A block needed a block, which needed a block: more than two rounds of the fixpoint.
        ManyRounds = "more than two rounds of blocks",
        /// A refcount block has the count of the cluster that it lies in, and is not the first.
        BlockCountsItself = "a later block counts itself",
        /// The refcount table needed a block of its own.
        TableNeedsBlock = "the refcount table needs a block",
        /// The refcount table is longer than one cluster.
        LongTable = "the refcount table crosses a cluster",
        /// The refcount table grew in place, into its tolerance.
        TableExtended = "the refcount table grows in place",
        /// The tolerance for growth was used up, and the refcount table moved.
        TableMoved = "the tolerance is used up",
        /// The refcount table gave clusters back.
        TableTrimmed = "the refcount table is trimmed",
        /// A hole was wanted and none was left, so that clusters were appended.
        NoHole = "no hole left",
        /// A count above 1 is as large as its width holds.
        CountAtMaximum = "a count at its maximum",
        /// An L2 table is in more than one L1 table.
        SharedTable = "an L2 table is shared",
        /// An L2 table was copied before it was changed.
        TableCopied = "an L2 table is copied on write",
        /// Compressed data reach to the end of the file.
        CompressedAtEnd = "compressed data end the file",
        /// A chain has as many layers as a program can build.
        DeepestChain = "the deepest chain",
        /// A layer ends in the middle of a hole of the one above.
        BackingEnds = "a backing file ends in a hole",
        /// The disk has no bytes.
        EmptyDisk = "an empty disk",
        /// The disk ends within a cluster.
        OddTail = "the disk ends within a cluster",
        /// The disk has 2^60 bytes or more; the largest L1 table maps 2^61.
        HugeDisk = "one of the largest disks",
        /// An extent reaches from one L2 table into the next.
        ExtentAcrossTables = "an extent crosses L2 tables",
        /// An extended entry whose subclusters change 16 times or more.
        ManySplits = "an entry is split 16 times",
        /// A walk failed after it had emitted something.
        ErrorAfterExtent = "an error after an extent",
        /// An image could not be opened.
        OpenFails = "opening fails",
        /// A window lies past the end of the disk.
        WindowPastEnd = "a window past the end",
        /// The end of a window does not fit into 64 bits.
        WindowOverflows = "a window at the edge of 64 bits",
        /// A window is empty.
        EmptyWindow = "an empty window",
        /// Counts are out of date.
        OutOfDate = "counts are out of date",
        /// A snapshot is of a disk of another size.
        SnapshotSize = "a snapshot of another size",
        /// A layer is a raw file.
        RawLayer = "a raw layer",
        /// The data lie in a file of their own.
        DataFile = "a data file",
    }
}

closed! {
    /// What can be measured, once for each image that is verified: values from 0 on, of which the magnitude
    /// counts.
    Vital {
        /// Extents of the whole walk.
        Extents = "extents",
        /// Reads of opening and of the whole walk.
        Reads = "reads",
        /// Bytes that these returned.
        ReadBytes = "bytes read",
        /// The most runs that one extended entry was split into.
        Splits = "splits of an entry",
        /// The deepest layer that an extent comes from.
        Depth = "depth",
        /// L2 tables that were made in the layer at the top.
        Tables = "L2 tables",
        /// Refcount blocks.
        Blocks = "refcount blocks",
        /// Clusters of the refcount table.
        TableClusters = "refcount table clusters",
        /// How many blocks were made in a row, each because of the one before.
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
        /// Questions that the program asked.
        Questions = "questions",
    }
}

closed! {
    /// What part of the disk a walk is about.
    WindowClass {
        /// All of it.
        Whole = "the whole disk",
        /// From its first byte on, and not to the last.
        Beginning = "the beginning",
        /// Neither its first byte nor its last.
        Middle = "the middle",
        /// To its last byte, and not from the first.
        End = "the end",
        /// No byte of it.
        Nothing = "nothing",
    }
}

/// Who is told what happens. Every method may be left out.
pub trait Observer {
    /// Whether anything comes of what it is told: where not, what would have to be worked out first is
    /// left out.
    const OBSERVES: bool = true;

    /// A chain of events begins in `state`.
    #[inline(always)]
    fn begin(&self, state: State) {
        let _ = state;
    }

    /// Something happens.
    #[inline(always)]
    fn event(&self, state: State, event: Event) {
        let _ = (state, event);
    }

    /// Something rare happens.
    #[inline(always)]
    fn rare(&self, rare: Rare) {
        let _ = rare;
    }

    /// Something was measured. Of several values before an image is [done](Observer::measured), the
    /// largest counts.
    #[inline(always)]
    fn vital(&self, vital: Vital, value: u64) {
        let _ = (vital, value);
    }

    /// An image was verified: its vitals are complete.
    #[inline(always)]
    fn measured(&self) {}

    /// The walker begins to walk.
    #[inline(always)]
    fn walk(&self, window: WindowClass) {
        let _ = window;
    }
}

/// Nobody observes.
impl Observer for () {
    const OBSERVES: bool = false;
}

/// Whether somebody observes is known when it runs.
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
