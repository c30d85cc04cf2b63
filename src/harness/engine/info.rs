//! The reports of an engine about an image beside its disk: fields of `qemu-img info`, and the result of a check.

/// The report of an engine about an image. An oracle judges the fields that the engine states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageInfo {
    /// The names of the files below the image, as the images name them: the backing file, its backing file, and so on.
    pub chain: Option<Vec<Vec<u8>>>,
    /// The name of the external data file; empty if there is none.
    pub data_file: Option<Vec<u8>>,
    /// The number of snapshots.
    pub snapshots: Option<usize>,
    /// The number of persistent bitmaps.
    pub bitmaps: Option<usize>,
}

/// The result of an engine's own check of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// The number of errors: bytes that contradict each other.
    pub errors: u64,
    /// The number of clusters that are allocated and not used.
    pub leaks: u64,
}
