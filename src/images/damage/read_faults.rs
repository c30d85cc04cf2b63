//! Faults of reads: bytes that change, and reads that fail, while an engine reads a file.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage;
use crate::disk::storage::{Data, Storage};
use crate::images::files::LayerFile;
use crate::images::files::image::Image;

/// Bytes that change after a number of reads.
#[derive(Clone, Debug)]
pub(super) struct Trap {
    pub(super) depth: usize,
    /// The file of the layer.
    pub(super) file: LayerFile,
    /// The host offsets of the bytes.
    pub(super) range: Range<HostOffset>,
    /// The new values: the last bytes of this array, as many as the range has.
    pub(super) bytes: [u8; 8],
    pub(super) reads: u8,
}

impl Trap {
    /// Reports whether the bytes overlap `from..until`.
    fn meets(&self, from: HostOffset, until: HostOffset) -> bool {
        self.range.start < until && from < self.range.end
    }
}

/// A part whose reads fail in one file.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) depth: usize,
    /// The file of the layer.
    pub(super) file: LayerFile,
    /// The host offsets of the part's elements, sorted.
    pub(super) ranges: Vec<Range<HostOffset>>,
    pub(super) reads: u8,
}

/// The faults that reads of one image meet. Call [`ReadFaults::rearm`] before each opening.
#[derive(Debug)]
pub struct ReadFaults {
    traps: SmallVec<[Armed<Trap>; 2]>,
    failing: SmallVec<[Armed<Failing>; 2]>,
}

/// An event that happens after a number of reads.
#[derive(Debug)]
struct Armed<T> {
    what: T,
    reads: AtomicU8,
}

impl<T: Clone> Armed<T> {
    fn new(what: &T) -> Self {
        Self { what: what.clone(), reads: AtomicU8::new(0) }
    }

    /// Counts a read, and reports whether the event happens to it.
    fn springs(&self, after: u8) -> bool {
        let before = self.reads.load(Relaxed);
        self.reads.store(before.saturating_add(1), Relaxed);
        before >= after
    }
}

impl ReadFaults {
    /// Returns the faults of these traps and failing parts; `None` if there are none.
    pub(super) fn of<'f>(
        traps: impl Iterator<Item = &'f Trap>,
        failing: impl Iterator<Item = &'f Failing>,
    ) -> Option<Self> {
        let faults = Self {
            traps: traps.map(Armed::new).collect(),
            failing: failing.map(Armed::new).collect(),
        };
        (!faults.traps.is_empty() || !faults.failing.is_empty()).then_some(faults)
    }

    /// Resets the counts of all reads.
    pub fn rearm(&self) {
        self.traps.iter().for_each(|armed| armed.reads.store(0, Relaxed));
        self.failing.iter().for_each(|armed| armed.reads.store(0, Relaxed));
    }

    /// Reads from `image`; see [`Storage::read_at`].
    ///
    /// # Errors
    /// The read fails on purpose.
    pub fn read_at(
        &self,
        image: &Image,
        offset: HostOffset,
        into: &mut [u8],
    ) -> Result<(), StorageError> {
        self.count(offset.get(), offset.get().saturating_add(into.len() as u64))?;
        image.read_at(offset, into)?;
        self.spring(offset, into);
        Ok(())
    }

    /// Reads from `image`; see [`Storage::next_data`].
    ///
    /// # Errors
    /// The read fails on purpose.
    pub fn next_data<'a>(
        &self,
        image: &'a Image,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let met = self.traps.iter().filter(|armed| armed.what.meets(from, until));
        let Some(trap) = met.map(|armed| armed.what.range.start.max(from)).min() else {
            // Only the returned bytes count as read.
            let data = image.next_data(from, until, scratch)?;
            if let Some(Data { offset, bytes }) = &data {
                self.count(offset.get(), offset.get() + bytes.len() as u64)?;
            }
            return Ok(data);
        };
        // A trap may lie in a hole.
        let there = image.next_data(from, until, scratch)?.map(|data| data.offset);
        let first = there.map_or(trap, |there| there.min(trap));
        storage::read_widened(&Faulted { image, faults: self }, from, first, until, scratch)
    }

    /// Counts a read, and fails if it is one that must fail.
    fn count(&self, from: u64, until: u64) -> Result<(), StorageError> {
        for armed in &self.failing {
            let Failing { ranges, reads, .. } = &armed.what;
            let next = ranges.partition_point(|range| range.end.get() <= from);
            let hit = ranges.get(next).is_some_and(|range| range.start.get() < until);
            if hit && armed.springs(*reads) {
                return Err(StorageError { offset: HostOffset::new(from), kind: ErrorKind::Other });
            }
        }
        Ok(())
    }

    /// Writes the bytes of the traps into `bytes`, which begin at `from`.
    fn spring(&self, from: HostOffset, bytes: &mut [u8]) {
        let until = from + bytes.len() as u64;
        let met = self.traps.iter().filter(|armed| armed.what.meets(from, until));
        for armed in met.filter(|armed| armed.springs(armed.what.reads)) {
            let (start, end) = (armed.what.range.start.get(), armed.what.range.end.get());
            let new = armed.what.bytes.iter().rev().zip((start..end).rev());
            for (byte, place) in new {
                let inside = place.checked_sub(from.get()).and_then(|it| usize::try_from(it).ok());
                if let Some(target) = inside.and_then(|it| bytes.get_mut(it)) {
                    *target = *byte;
                }
            }
        }
    }
}

/// An image whose reads meet faults.
struct Faulted<'d> {
    image: &'d Image,
    faults: &'d ReadFaults,
}

impl Storage for Faulted<'_> {
    fn length_bytes(&self) -> u64 {
        self.image.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.faults.read_at(self.image, offset, into)
    }
}
