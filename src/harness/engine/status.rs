//! The status of a run of guest bytes, as coarse as an engine likes.

use std::fmt;

use crate::disk::extent::Mapping;
use crate::disk::offsets::HostOffset;

/// A run of guest bytes with one status, from the byte on that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRun {
    /// The number of bytes, at least 1. The run may be shorter than possible, and must end on the disk.
    pub length_bytes: u64,
    /// The status of all of them.
    pub status: GuestStatus,
}

/// The status of guest bytes. An engine uses the most exact one that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestStatus {
    /// All that `qemu-img map` reports. The host offset is that of the first byte.
    Exact(Mapping),
    /// Data that some layer stores uncompressed, and the host offset of the first byte, if the engine knows it.
    Data(Option<HostOffset>),
    /// Data that some layer stores compressed.
    Compressed,
    /// Data that some layer stores, compressed or not.
    Stored,
    /// Bytes that read as zeros, allocated or not, and the host offset of the first byte, if the engine knows it.
    Zeros(Option<HostOffset>),
    /// Bytes that no layer allocates. They read as zeros.
    Hole,
    /// Bytes that the image at the top leaves to the layers below.
    Below,
}

impl GuestStatus {
    /// Reports whether bytes with this status can have the mapping `exact`, which begins `delta_bytes` further on.
    #[inline]
    pub fn admits(&self, exact: &Mapping, delta_bytes: u64) -> bool {
        let is_at = |host: Option<HostOffset>| {
            host.is_none_or(|host| {
                host.checked_add(delta_bytes) == exact.offset && exact.offset.is_some()
            })
        };
        match *self {
            Self::Exact(mapping) if delta_bytes == 0 => mapping == *exact,
            Self::Exact(mapping) => mapping.advanced(delta_bytes) == Some(*exact),
            Self::Data(host) => exact.data && !exact.compressed && is_at(host),
            Self::Compressed => exact.compressed,
            Self::Stored => exact.data,
            Self::Zeros(host) => exact.zero && is_at(host),
            Self::Hole => !exact.present,
            Self::Below => exact.depth > 0 || !exact.present,
        }
    }

    /// Returns the name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exact(mapping) => mapping.kind(),
            Self::Data(_) => "data",
            Self::Compressed => "compressed",
            Self::Stored => "stored",
            Self::Zeros(_) => "zeros",
            Self::Hole => "hole",
            Self::Below => "below",
        }
    }
}

impl From<Mapping> for GuestStatus {
    fn from(mapping: Mapping) -> Self {
        Self::Exact(mapping)
    }
}

/// Prints the kind, and the host offset if there is one.
impl fmt::Display for GuestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(mapping) => write!(f, "{mapping}"),
            Self::Data(Some(host)) | Self::Zeros(Some(host)) => {
                write!(f, "{} at {host:#x}", self.kind())
            }
            _ => f.write_str(self.kind()),
        }
    }
}

/// Prints the length and the status.
impl fmt::Display for GuestRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} bytes of {}", self.length_bytes, self.status)
    }
}
