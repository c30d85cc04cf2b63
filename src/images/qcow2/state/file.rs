//! Where a file and its last payload end.

use crate::disk::offsets::HostOffset;

/// Where a file ends. A reader reads zeros past its end, and `qemu-img check` lets the last cluster be
/// cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEnd {
    /// With its last cluster.
    #[default]
    Cluster,
    /// With the sector of the last byte that was written, inside the last cluster.
    Sector,
    /// With that byte.
    Content,
    /// Behind the last cluster, with zeros.
    Zeros,
    /// Behind the last cluster, with garbage.
    Garbage,
}

/// What a program asked for beyond the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileState {
    pub end: FileEnd,
    /// How long the tail is that lies behind the last cluster.
    pub tail_bytes: u64,
    /// Tables may map clusters past the end of the disk.
    pub beyond: bool,
}

/// Where the last payload ended: in `cluster`, which it touches, at `offset`.
#[derive(Clone, Copy, Debug)]
pub struct PayloadEnd {
    pub cluster: u64,
    pub offset: HostOffset,
}
