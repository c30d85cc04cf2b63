//! Storages that count reads, and that can fail a read.

use std::cell::Cell;
use std::io::ErrorKind;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::limits::MAX_LAYERS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Layer, Storage, Stored};
use crate::images::files::{Images, LayerFiles};
use crate::images::image::Image;

/// The error kind of a read that fails on purpose.
pub const INJECTED: ErrorKind = ErrorKind::Other;

/// A counter of reads and bytes that several storages share. It makes one read fail.
#[derive(Debug)]
pub struct Meter {
    reads: Cell<u64>,
    bytes: Cell<u64>,
    fail_at: Cell<u64>,
}

impl Meter {
    /// Creates a meter that counts from 0 and lets no read fail.
    pub const fn new() -> Self {
        Self { reads: Cell::new(0), bytes: Cell::new(0), fail_at: Cell::new(u64::MAX) }
    }

    /// Resets the counts to 0, and makes the read with the number `fail_at` fail. 0 is the next read.
    pub fn restart(&self, fail_at: u64) {
        self.reads.set(0);
        self.bytes.set(0);
        self.fail_at.set(fail_at);
    }

    /// Returns the number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Returns the number of bytes that the reads returned.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    fn count(&self, offset: HostOffset) -> Result<(), StorageError> {
        let read = self.reads.get();
        self.reads.set(read + 1);
        if read == self.fail_at.get() {
            return Err(StorageError { offset, kind: INJECTED });
        }
        Ok(())
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

/// A storage whose reads a meter counts.
#[derive(Debug)]
pub struct Metered<'s, S: Storage + ?Sized> {
    inner: &'s S,
    meter: &'s Meter,
}

impl<'s, S: Storage + ?Sized> Metered<'s, S> {
    /// Creates a storage that counts the reads of `inner` on `meter`.
    pub fn new(inner: &'s S, meter: &'s Meter) -> Self {
        Self { inner, meter }
    }
}

/// The files of a program, all on one meter.
#[derive(Debug)]
pub struct MeteredImages<'s> {
    layers: SmallVec<[MeteredLayer<'s>; MAX_LAYERS]>,
}

#[derive(Debug)]
struct MeteredLayer<'s> {
    image: Metered<'s, Image>,
    data_file: Option<Metered<'s, Image>>,
}

impl<'s> MeteredImages<'s> {
    /// Creates storages that count the reads of all `images` on `meter`.
    pub fn new(images: &'s Images, meter: &'s Meter) -> Self {
        let metered = |files: &'s LayerFiles| {
            let Layer { image, data_file } = files.layer();
            MeteredLayer {
                image: Metered::new(image, meter),
                data_file: data_file.map(|file| Metered::new(file, meter)),
            }
        };
        Self { layers: images.layers().map(metered).collect() }
    }

    /// Returns the layers that the harness passes to an engine.
    pub fn chain(&self) -> SmallVec<[Layer<'_>; MAX_LAYERS]> {
        self.layers.iter().map(MeteredLayer::layer).collect()
    }
}

impl MeteredLayer<'_> {
    fn layer(&self) -> Layer<'_> {
        Layer { image: &self.image, data_file: self.data_file.as_ref() }.erased()
    }
}

impl<S: Storage + ?Sized> Storage for Metered<'_, S> {
    fn length_bytes(&self) -> u64 {
        self.inner.length_bytes()
    }

    #[inline]
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.meter.count(offset)?;
        self.meter.bytes.set(self.meter.bytes.get() + into.len() as u64);
        self.inner.read_at(offset, into)
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        self.meter.count(from)?;
        self.inner.stored(from, until)
    }

    #[inline]
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.meter.count(from)?;
        let data = self.inner.next_data(from, until, scratch)?;
        let length = data.map_or(0, |data| data.bytes.len() as u64);
        self.meter.bytes.set(self.meter.bytes.get() + length);
        Ok(data)
    }
}
