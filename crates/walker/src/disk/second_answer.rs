//! The answers of another implementation, for feedback.

use super::closed::closed;

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
        /// It refuses the descriptor or the extents of a VMDK image.
        RefusedDescriptor = "refused: descriptor",
        /// It refuses a checksum.
        RefusedChecksum = "refused: checksum",
        /// It refuses a region or the metadata of a VHDX image.
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
