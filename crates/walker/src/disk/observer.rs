//! The receiver of events, of measured values and of answers of another implementation. The VM, the allocator, the
//! build, the walker and the oracles report what they do to an [`Observer`]. With the observer `()`, the compiler
//! removes the calls.

use std::fmt;
use std::sync::Arc;

use super::events::closed;
pub use super::events::{Event, Rare, State};

closed! {
    /// A value that is measured once for each verified image. Feedback uses its magnitude.
    Vital {
        /// Extents of the whole walk.
        Extents = "extents",
        /// Reads while the engine opens the image and walks the whole disk; without a walk, until it has read the data.
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
        /// Questions of the program, and extents of a damaged image about which the harness asks.
        Questions = "questions",
        /// Reads of the files by an engine that reports no events, at most 1,024.
        FileReads = "file reads",
        /// Its writes to the file at the top.
        FileWrites = "file writes",
    }
}

closed! {
    /// An answer of another implementation about an image. Only runs of the harness with a second opinion have them.
    SecondAnswer {
        /// It opens the image.
        Opened = "opened",
        /// It refuses the image for its format or its version.
        RefusedFormat = "refused: format",
        /// It refuses the size of the disk, or of a cluster, a block or a grain.
        RefusedSize = "refused: size",
        /// It refuses a feature.
        RefusedFeature = "refused: feature",
        /// It refuses the place or the length of the table at the top.
        RefusedTable = "refused: table",
        /// It refuses the refcount table.
        RefusedRefcounts = "refused: refcounts",
        /// It refuses the snapshots.
        RefusedSnapshots = "refused: snapshots",
        /// It refuses the bitmaps.
        RefusedBitmaps = "refused: bitmaps",
        /// It refuses a header extension, or a name in the header.
        RefusedExtension = "refused: extension",
        /// It refuses the backing file or the data file.
        RefusedOtherFile = "refused: other file",
        /// It refuses the descriptor or the extents.
        RefusedDescriptor = "refused: descriptor",
        /// It refuses a checksum.
        RefusedChecksum = "refused: checksum",
        /// It refuses a region or the metadata.
        RefusedMetadata = "refused: metadata",
        /// A read fails while it opens the image.
        RefusedByRead = "refused: a read fails",
        /// It refuses the image for another reason.
        RefusedOtherwise = "refused: otherwise",
        /// The disk has no bytes.
        NoBytes = "no bytes",
        /// Nothing is allocated in the image at the top.
        NothingAllocated = "nothing allocated",
        /// All of the disk is allocated in the image at the top.
        AllAllocated = "all allocated",
        /// The disk has two or three runs of allocated or other bytes.
        FewRuns = "2 to 3 runs",
        /// The disk has 4 to 15 runs.
        SomeRuns = "4 to 15 runs",
        /// The disk has 16 runs or more.
        ManyRuns = "16 runs and up",
        /// It meets an error before any run.
        FailedAtOnce = "an error before any run",
        /// It meets an error behind a run.
        FailedBehindRun = "an error behind a run",
        /// The disk is too large to be mapped, and answers are about parts of it.
        MappedInParts = "mapped in parts",
        /// The file is so long that the disk is not mapped.
        NotMapped = "not mapped",
        /// It reads data as the engine does.
        SameData = "the same data",
        /// It does not read bytes that the engine does not read either.
        Unreadable = "bytes that cannot be read",
        /// A whole map, by another command, is the same.
        SameMap = "the same map",
        /// A whole map ends with an error, as the engine's walk does.
        SameFailedMap = "the same map up to an error",
    }
}

/// Prints accesses to files when they occur.
pub trait PrintAccesses: fmt::Debug + Send + Sync {
    /// Prints an access. Threads of an engine may access files at the same time.
    fn print(&self, access: &dyn fmt::Display);
}

/// A receiver of events. Every method has a default that does nothing.
pub trait Observer {
    /// Reports whether this observer uses the events. If not, callers skip the work that only events need.
    #[inline(always)]
    fn observes(&self) -> bool {
        true
    }

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

    /// Receives a number of bytes that an engine or the harness handles in the run. They are work, and no vital.
    #[inline(always)]
    fn handled_bytes(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Receives an answer of another implementation.
    #[inline(always)]
    fn second(&self, answer: SecondAnswer) {
        let _ = answer;
    }

    /// Receives the reason for which an engine refuses a damaged image or a part of it: the text of its error.
    #[inline(always)]
    fn reason(&self, text: &str) {
        let _ = text;
    }

    /// Receives the end of an image: all its vitals have been reported.
    #[inline(always)]
    fn measured(&self) {}

    /// Returns the printer of accesses to files, if this observer prints each when it occurs.
    #[inline(always)]
    fn access_printer(&self) -> Option<Arc<dyn PrintAccesses>> {
        None
    }
}

/// An observer that ignores all events.
impl Observer for () {
    fn observes(&self) -> bool {
        false
    }
}

macro_rules! passed_on {
    ($holder:ty) => {
        impl<O: Observer + ?Sized> Observer for $holder {
            #[inline(always)]
            fn observes(&self) -> bool {
                (**self).observes()
            }

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
            fn handled_bytes(&self, bytes: u64) {
                (**self).handled_bytes(bytes);
            }

            #[inline(always)]
            fn second(&self, answer: SecondAnswer) {
                (**self).second(answer);
            }

            #[inline(always)]
            fn reason(&self, text: &str) {
                (**self).reason(text);
            }

            #[inline(always)]
            fn measured(&self) {
                (**self).measured();
            }

            #[inline(always)]
            fn access_printer(&self) -> Option<Arc<dyn PrintAccesses>> {
                (**self).access_printer()
            }
        }
    };
}

passed_on!(&O);
passed_on!(std::rc::Rc<O>);
