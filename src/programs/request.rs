//! The requests of a program to an engine that writes.

use std::fmt;
use std::ops::Range;

use crate::disk::offsets::GuestOffset;
use crate::images::content::unstamped::{ShortPiece, UnstampedData};
use crate::programs::operand::{
    CutKind, DeviceError, Failures, FileOperation, OldBytes, TurnOrder,
};

/// A request to a disk that is open for writing. Its range lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRequest {
    /// Writes bytes.
    Write {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u32,
        /// The bytes.
        content: RequestContent,
    },
    /// Reads bytes.
    Read {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u32,
    },
    /// Makes a range read as zeros.
    WriteZeroes {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u64,
    },
    /// Frees whole clusters, which then read as zeros.
    Discard {
        /// The first byte, at the edge of a cluster.
        guest: GuestOffset,
        /// The number of bytes: whole clusters, or all up to the end of the disk.
        length_bytes: u64,
    },
    /// Gives the disk another size.
    Resize {
        /// The new size in bytes: whole sectors of 512 bytes.
        size_bytes: u64,
    },
    /// Takes a snapshot of the disk as it is now. It comes behind the other ones in the image's table.
    TakeSnapshot {
        /// The number of the snapshot. The snapshots that the program took before the writing have the lowest numbers,
        /// in the order of their table.
        number: u32,
    },
    /// Restores the disk, with its size, from a snapshot.
    ApplySnapshot {
        /// The number of the snapshot.
        number: u32,
    },
    /// Deletes a snapshot. The later snapshots of the table move up.
    DeleteSnapshot {
        /// The number of the snapshot.
        number: u32,
    },
    /// Changes the persistent dirty bitmaps of the image.
    ChangeBitmap {
        /// The number of the bitmap. The bitmaps that the program made before the writing have the lowest numbers, in
        /// the order of their directory.
        number: u32,
        /// The change.
        change: BitmapChange,
    },
    /// Writes all changes to the file, where they survive a power cut.
    Flush,
    /// Keeps a file that a cut at some moment since the last flush could have left. The engine goes on.
    Cut {
        /// The cause of the cut.
        kind: CutKind,
        /// Selects the moment, and the writes that it loses.
        choice: u16,
    },
    /// Ends the engine without a word, and opens the file that a cut has left. The engine gets no request.
    Crash {
        /// The cause.
        kind: CutKind,
        /// Selects the moment, and the writes that it loses.
        choice: u16,
    },
    /// From now on, operations of the engine on its files fail. The engine gets no request.
    FailFile(FileFault),
    /// The image lies on a block device: a file of a fixed size. Only the first request can be this one. The engine
    /// gets no request.
    Device {
        /// The clusters of the device behind the image.
        spare_clusters: u64,
        /// The bytes that lie there.
        old: OldBytes,
    },
    /// The requests that follow are in flight together. The engine gets no request.
    InFlight(Schedule),
    /// Closes the image, and opens it again.
    Reopen,
}

/// The way in which some requests are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The number of requests: the next ones, up to one that can be in flight with no other.
    pub requests: u8,
    /// The most requests that are in flight at the same time. A further one begins when one ends.
    pub at_once: u8,
    /// The order of the operations on files.
    pub order: TurnOrder,
}

impl Schedule {
    /// Splits the requests behind this one into those that are in flight together and the others.
    pub fn split<'r>(
        &self,
        behind: &'r [WriteRequest],
    ) -> (&'r [WriteRequest], &'r [WriteRequest]) {
        let most = behind.iter().take(self.requests.into());
        behind.split_at(most.take_while(|request| request.can_be_in_flight()).count())
    }
}

/// Operations of an engine on its files that fail: the image at the top, and its data file. Their reads by the harness
/// never fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The kind of the operations.
    pub of: FileOperation,
    /// The number of operations of that kind that succeed first.
    pub before: u8,
    /// How they fail.
    pub error: DeviceError,
    /// The number of operations that fail.
    pub failures: Failures,
}

/// A change of the persistent dirty bitmaps of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapChange {
    /// A new bitmap, of zeros, comes behind the other ones in the directory.
    Add {
        /// log2 of the guest bytes per bit, 9 to 31.
        granularity_bits: u8,
        /// Later changes of the disk set bits. A bitmap that is not enabled keeps its bits.
        is_enabled: bool,
    },
    /// The bitmap disappears from the directory. Those behind it move up.
    Remove,
    /// All bits become zeros.
    Clear,
    /// From now on, changes of the disk set bits.
    Enable,
    /// From now on, changes of the disk set no bits.
    Disable,
}

/// The bytes of a request that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestContent {
    /// Bytes that no other request writes.
    #[default]
    Fresh,
    /// Zeros.
    Zeros,
    /// The bytes that a guest reads there already.
    Same,
    /// The bytes that a guest read there before the requests; of a disk that an applied snapshot has restored, those
    /// of the snapshot as the program has built it.
    Former,
    /// Data without stamps, which begin with the request.
    Unstamped(UnstampedData),
}

/// The properties of an empty image that an engine creates. The image has no backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// The version: 2 or 3.
    pub version: u32,
    /// log2 of the cluster size in bytes, 9 to 21.
    pub cluster_bits: u32,
    /// The width of a refcount in bits, 1 to 64. Version 2 has 16.
    pub refcount_bits: u32,
    /// L2 entries have subcluster bitmaps.
    pub extended_l2: bool,
    /// Compressed clusters are zstd, and otherwise deflate.
    pub is_zstd: bool,
    /// The size of the disk in bytes: whole sectors of 512 bytes.
    pub size_bytes: u64,
}

impl WriteRequest {
    /// Returns the guest bytes that the request changes, if it changes any. After a resize, these are at most the bytes
    /// at the new end.
    pub fn changed(&self) -> Option<Range<u64>> {
        let range = |guest: GuestOffset, length| guest.get()..(guest + length).get();
        match *self {
            Self::Write { guest, length_bytes, .. } => Some(range(guest, u64::from(length_bytes))),
            Self::WriteZeroes { guest, length_bytes } | Self::Discard { guest, length_bytes } => {
                Some(range(guest, length_bytes))
            }
            Self::Resize { size_bytes } => Some(size_bytes..size_bytes),
            Self::Read { .. }
            | Self::InFlight(_)
            | Self::TakeSnapshot { .. }
            | Self::ApplySnapshot { .. }
            | Self::DeleteSnapshot { .. }
            | Self::ChangeBitmap { .. }
            | Self::Flush
            | Self::Cut { .. }
            | Self::Crash { .. }
            | Self::FailFile(_)
            | Self::Device { .. }
            | Self::Reopen => None,
        }
    }

    /// Reports whether the request takes, applies or deletes a snapshot.
    pub fn is_about_snapshots(&self) -> bool {
        matches!(
            self,
            Self::TakeSnapshot { .. } | Self::ApplySnapshot { .. } | Self::DeleteSnapshot { .. }
        )
    }

    /// Returns the guest bytes that the request reads, if it reads any.
    pub fn read(&self) -> Option<Range<u64>> {
        match *self {
            Self::Read { guest, length_bytes } => {
                Some(guest.get()..(guest + u64::from(length_bytes)).get())
            }
            _ => None,
        }
    }

    /// Reports whether the request can be in flight with others.
    pub fn can_be_in_flight(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::Discard { .. }
                | Self::Flush
        )
    }

    /// Returns the request as it is in flight, as the one with this number, to an engine that reads and writes whole
    /// sectors of `sector_bytes` of a disk of `size_bytes`. A write has one byte of its own, repeated, so that a read
    /// shows which writes it has seen.
    pub(crate) fn in_flight(self, number: u32, sector_bytes: u64, size_bytes: u64) -> Self {
        let rounded_zeros = |guest: GuestOffset, length_bytes: u64| {
            let start = guest.get() / sector_bytes * sector_bytes;
            let end = (guest + length_bytes).get();
            // No disk is as long.
            let end = end.checked_next_multiple_of(sector_bytes).unwrap_or(end).min(size_bytes);
            (GuestOffset::new(start), end.saturating_sub(start))
        };
        let rounded = |guest: GuestOffset, length_bytes: u32| {
            let (guest, length_bytes) = rounded_zeros(guest, length_bytes.into());
            // A program writes less than 4 GiB.
            (guest, u32::try_from(length_bytes).unwrap_or(u32::MAX))
        };
        match self {
            Self::Read { guest, length_bytes } => {
                let (guest, length_bytes) = rounded(guest, length_bytes);
                Self::Read { guest, length_bytes }
            }
            Self::Write { guest, length_bytes, .. } => {
                let (guest, length_bytes) = rounded(guest, length_bytes);
                // A program has few requests.
                let own = ShortPiece::new(&[1 + (number % 255) as u8]);
                let content = RequestContent::Unstamped(UnstampedData::Repeated(own));
                Self::Write { guest, length_bytes, content }
            }
            Self::WriteZeroes { guest, length_bytes } => {
                let (guest, length_bytes) = rounded_zeros(guest, length_bytes);
                Self::WriteZeroes { guest, length_bytes }
            }
            other => other,
        }
    }

    /// Reports whether the request is about bitmaps.
    pub fn is_about_bitmaps(&self) -> bool {
        matches!(self, Self::ChangeBitmap { .. })
    }

    /// Reports whether the engine no longer has the image open after the request.
    pub fn ends_session(&self) -> bool {
        matches!(self, Self::Crash { .. } | Self::Reopen)
    }

    /// Reports whether the request lets file operations fail, now or at the end of a device.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::FailFile(_) | Self::Device { .. })
    }

    /// Reports whether the request is a cut, after which the engine may go on or not.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::Crash { .. })
    }
}

/// Prints the request for an explanation, with numbers in hexadecimal digits.
impl fmt::Display for WriteRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Write { guest, length_bytes, content } => {
                write!(f, "write of guest {:#x}+{length_bytes:#x}{content}", guest.get())
            }
            Self::Read { guest, length_bytes } => {
                write!(f, "read of guest {:#x}+{length_bytes:#x}", guest.get())
            }
            Self::WriteZeroes { guest, length_bytes } => {
                write!(f, "zeros to guest {:#x}+{length_bytes:#x}", guest.get())
            }
            Self::Discard { guest, length_bytes } => {
                write!(f, "discard of guest {:#x}+{length_bytes:#x}", guest.get())
            }
            Self::Resize { size_bytes } => write!(f, "resize to {size_bytes:#x} bytes"),
            Self::TakeSnapshot { number } => write!(f, "snapshot number {number} taken"),
            Self::ApplySnapshot { number } => write!(f, "snapshot number {number} applied"),
            Self::DeleteSnapshot { number } => write!(f, "snapshot number {number} deleted"),
            Self::ChangeBitmap { number, change } => {
                write!(f, "bitmap number {number} {change}")
            }
            Self::Flush => f.write_str("flush"),
            Self::Cut { kind, choice } => write!(f, "{}, choice {choice}", cause(kind)),
            Self::Crash { kind, choice } => {
                write!(f, "{}, choice {choice}; its file is opened again", cause(kind))
            }
            Self::FailFile(fault) => write!(f, "{fault}"),
            Self::Device { spare_clusters, old } => {
                let old = match old {
                    OldBytes::Data => "bytes of files",
                    OldBytes::Entries => "bytes that look like table entries",
                    OldBytes::Counts => "bytes that look like refcounts",
                    OldBytes::Zeros => "zeros",
                };
                write!(f, "block device with {spare_clusters} clusters of {old} behind the image")
            }
            Self::InFlight(Schedule { requests, at_once, order }) => {
                write!(
                    f,
                    "the next {requests} requests in flight, {at_once} at once, order {order}"
                )
            }
            Self::Reopen => f.write_str("close, and open again"),
        }
    }
}

/// Returns the words for the cause of a cut.
fn cause(kind: CutKind) -> &'static str {
    match kind {
        CutKind::Power => "power cut",
        CutKind::Process => "end of the process",
    }
}

/// Prints the fault for an explanation: `write number 4 of the files fails: no room`.
impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, before, error, failures } = self;
        let of = match of {
            FileOperation::Write => "write",
            FileOperation::Read => "read",
            FileOperation::Flush => "flush",
            FileOperation::Length => "new length",
        };
        let error = match error {
            DeviceError::Io => "I/O error",
            DeviceError::Full => "no room",
            DeviceError::Short => "half of it is done",
        };
        let number = u16::from(*before) + 1;
        match failures {
            Failures::One => write!(f, "{of} number {number} of the files fails: {error}"),
            Failures::All => {
                write!(f, "each {of} of the files from number {number} on fails: {error}")
            }
        }
    }
}

/// Prints the content behind the range of the write.
impl fmt::Display for RequestContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fresh => "",
            Self::Zeros => ", zeros",
            Self::Same => ", the same bytes again",
            Self::Former => ", the bytes from before the requests",
            Self::Unstamped(UnstampedData::Once(_)) => ", bytes of the program",
            Self::Unstamped(UnstampedData::Repeated(_)) => ", a repeated piece",
            Self::Unstamped(UnstampedData::Entries { .. }) => ", entries of a table",
        })
    }
}

/// Prints the change behind the number of the bitmap.
impl fmt::Display for BitmapChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Add { granularity_bits, is_enabled } => {
                let state = if is_enabled { "enabled" } else { "disabled" };
                write!(f, "added, {state}, granularity 1 << {granularity_bits}")
            }
            Self::Remove => f.write_str("removed"),
            Self::Clear => f.write_str("cleared"),
            Self::Enable => f.write_str("enabled"),
            Self::Disable => f.write_str("disabled"),
        }
    }
}
