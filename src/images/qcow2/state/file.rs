//! The end of a file, and of its last payload.

use crate::disk::offsets::HostOffset;

/// The end of a file. A reader reads zeros past it, and `qemu-img check` accepts a last cluster that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEnd {
    /// The end of the last cluster.
    #[default]
    Cluster,
    /// The end of the sector that was written last, inside the last cluster.
    Sector,
    /// The byte that was written last.
    Content,
    /// A tail of zeros after the last cluster.
    Zeros,
    /// A tail of garbage after the last cluster.
    Garbage,
}

/// The parts of a file beyond the disk that the program asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileState {
    pub end: FileEnd,
    /// The length of the tail after the last cluster.
    pub tail_bytes: u64,
    /// Tables may map clusters past the end of the disk.
    pub beyond: bool,
}

/// The end of the last payload: at `offset`, in `cluster`, which it touches.
#[derive(Clone, Copy, Debug)]
pub struct PayloadEnd {
    pub cluster: u64,
    pub offset: HostOffset,
}
