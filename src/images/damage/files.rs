//! Files whose bytes change, or whose reads fail, while an engine reads them.
//!
//! # Arithmetic
//! A count of reads that has reached 255 stays there: it is as high as any that a trap waits for. A read that passes
//! 2^64 ends there, past the end of every file.

use std::cell::Cell;
use std::io::ErrorKind;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::limits::MAX_LAYERS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage;
use crate::disk::storage::{Data, Layer, Storage};
use crate::images::files::Images;
use crate::images::image::Image;

use super::apply::Damage;
use super::traps::{Failing, Trap};

/// The files of a program with their traps. Call [`DamagedFiles::rearm`] before each opening of a chain.
#[derive(Debug)]
pub struct DamagedFiles<'d> {
    /// The layers from the top down: the image, and the data file if there is one.
    layers: SmallVec<[(DamagedImage<'d>, Option<&'d Image>); MAX_LAYERS]>,
}

/// An image with traps.
#[derive(Debug)]
pub struct DamagedImage<'d> {
    image: &'d Image,
    traps: SmallVec<[Armed<&'d Trap>; 4]>,
    failing: SmallVec<[Armed<&'d Failing>; 4]>,
}

/// An event that happens after a number of reads.
#[derive(Debug)]
struct Armed<T> {
    what: T,
    reads: Cell<u8>,
}

impl<T> Armed<T> {
    fn new(what: T) -> Self {
        Self { what, reads: Cell::new(0) }
    }

    /// Counts a read, and reports whether the event happens to it.
    fn springs(&self, after: u8) -> bool {
        let before = self.reads.get();
        self.reads.set(before.saturating_add(1));
        before >= after
    }
}

impl<'d> DamagedFiles<'d> {
    /// Creates the files of `images`, which `damage` has changed.
    pub fn new(images: &'d Images, damage: &'d Damage) -> Self {
        let layers = images.layers().enumerate().map(|(depth, files)| {
            let traps = damage.traps.iter().filter(|trap| trap.depth == depth);
            let failing = damage.failing.iter().filter(|failing| failing.depth == depth);
            let image = DamagedImage {
                image: &files.image,
                traps: traps.map(Armed::new).collect(),
                failing: failing.map(Armed::new).collect(),
            };
            (image, files.layer().data_file)
        });
        Self { layers: layers.collect() }
    }

    /// Resets the counts of all reads.
    pub fn rearm(&self) {
        for (image, _) in &self.layers {
            image.traps.iter().for_each(|armed| armed.reads.set(0));
            image.failing.iter().for_each(|armed| armed.reads.set(0));
        }
    }

    /// Returns the layers that the harness passes to an engine.
    pub fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        self.layers.iter().map(|(image, data_file)| Layer {
            image: image as &dyn Storage,
            data_file: data_file.map(|file| file as _),
        })
    }
}

impl DamagedImage<'_> {
    /// Counts a read, and fails if it is one that must fail.
    fn read(&self, from: u64, until: u64) -> Result<(), StorageError> {
        for armed in &self.failing {
            let Failing { ranges, reads, .. } = armed.what;
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
        let until = from.saturating_add(bytes.len() as u64);
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

impl Storage for DamagedImage<'_> {
    fn length_bytes(&self) -> u64 {
        self.image.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.read(offset.get(), offset.get().saturating_add(into.len() as u64))?;
        self.image.read_at(offset, into)?;
        self.spring(offset, into);
        Ok(())
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let met = self.traps.iter().filter(|armed| armed.what.meets(from, until));
        let Some(trap) = met.map(|armed| armed.what.range.start.max(from)).min() else {
            // Only the returned bytes count as read.
            let data = self.image.next_data(from, until, scratch)?;
            if let Some(Data { offset, bytes }) = &data {
                self.read(offset.get(), offset.get() + bytes.len() as u64)?;
            }
            return Ok(data);
        };
        // A trap may lie in a hole.
        let there = self.image.next_data(from, until, scratch)?.map(|data| data.offset);
        let first = there.map_or(trap, |there| there.min(trap));
        storage::read_widened(self, from, first, until, scratch)
    }
}
