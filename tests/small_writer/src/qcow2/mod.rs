//! The requests of a disk, cluster by cluster.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no offset on it saturates.

mod bitmap_requests;
mod bitmaps;
mod bitmaps_extension;
mod clusters;
mod created;
mod in_flight;
mod planted;
mod refcounts;
mod references;
mod snapshots;
mod stored_bitmaps;
mod tables;

use std::ops::Range;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::{Layer, Storage};
use qcowfuzz::formats::qcow2::constants::{COPIED, L2_COMPRESSED, L2_ZERO, OFFSET_MASK};
use qcowfuzz::formats::qcow2::entry::L2Entry;
use qcowfuzz::formats::qcow2::geometry::{Geometry, Version};
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::harness::files::chain::{Chain, ChainFile, ChainLayer};
use qcowfuzz::walkers;
use qcowfuzz::walkers::Disk;

use crate::{WriteError, WriterFault};
pub use clusters::WriterBuffers;
use stored_bitmaps::StoredBitmaps;
use tables::WrittenTables;

/// The bytes that the fault [`WriterFault::EndMissing`] loses.
const LOST_BYTES: usize = 512;

/// A disk that is open for writing.
pub struct SmallWriter<'s> {
    layers: Vec<Layer<'s, ChainFile>>,
    tables: WrittenTables<'s>,
    /// The disk as it is now, for reading. Every change closes it.
    disk: Option<Disk<'s, ChainFile>>,
    buffers: &'s mut WriterBuffers,
}

/// Returns the files of a layer in the form in which our walker takes them.
fn borrowed(layer: &ChainLayer) -> Layer<'_, ChainFile> {
    Layer { image: &layer.image, data_file: layer.data_file.as_ref(), extents: &layer.extents }
}

/// The host cluster behind the last piece of a write.
type BehindLast = Option<HostOffset>;

impl<'s> SmallWriter<'s> {
    /// Creates an empty image in an empty file.
    ///
    /// # Errors
    /// The writer does not support the geometry, or the file cannot be written.
    pub fn create(
        file: &ChainFile,
        geometry: &Geometry,
        size_bytes: u64,
        fault: Option<WriterFault>,
    ) -> Result<(), WriteError> {
        created::create(file, geometry, size_bytes, fault)
    }

    /// Opens the first image of `chain` for writing.
    ///
    /// # Errors
    /// The image is malformed or not supported, or cannot be read.
    pub fn open(
        chain: &'s Chain,
        buffers: &'s mut WriterBuffers,
        fault: Option<WriterFault>,
    ) -> Result<Self, WriteError> {
        let layers: Vec<_> = chain.layers().iter().map(borrowed).collect();
        let top = layers.first().ok_or(WriteError::Malformed("the chain has no image"))?;
        let mut tables = WrittenTables::open(*top, fault)?;
        if tables.has(WriterFault::LeakFreedTooFar) {
            tables.free_leaks_too_far()?;
        }
        if let Some(file) = top.data_file.filter(|_| tables.has(WriterFault::DataFileGrows)) {
            file.write_at(HostOffset::new(file.length_bytes()), &[0])?;
        }
        if tables.has(WriterFault::OpenWrites) && tables.geometry().version == Version::V3 {
            tables.toggle_lazy_refcounts()?;
        }
        Ok(Self { layers, tables, disk: None, buffers })
    }

    /// Reads the header again after a request that has failed: the file may have the old tables, and the writer new
    /// ones. If it cannot be read, the next request that fails tries it.
    pub(crate) fn read_header_again(&mut self) {
        self.disk = None;
        let file = self.tables.file;
        if let Ok(header) = Header::read(file)
            && let Ok(bitmaps) = StoredBitmaps::read(file, &header)
        {
            (self.tables.header, self.tables.bitmaps) = (header, bitmaps);
        }
    }

    /// Returns the size of the disk.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.tables.size_bytes()
    }

    /// Reads bytes of the disk as it is now.
    ///
    /// # Errors
    /// The image is malformed there, or cannot be read.
    pub fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), WriteError> {
        if self.disk.is_none() {
            self.disk = Some(Disk::open_as(ImageFormat::Qcow2, &self.layers)?);
        }
        let Some(disk) = &self.disk else { return Ok(()) };
        match walkers::read(disk, guest, into, &mut self.buffers.walk) {
            Err(_) if self.tables.has(WriterFault::ReadErrorIgnored) => {
                into.fill(0);
                Ok(())
            }
            read => Ok(read?),
        }
    }

    /// Writes bytes to the disk.
    ///
    /// # Errors
    /// The image is malformed, or cannot be read or written. The same holds for all changes below.
    pub fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Result<(), WriteError> {
        let end = self.tables.end();
        let written = self.write_all(guest, bytes);
        if written.is_err() && self.tables.has(WriterFault::AllocatedTwice) {
            self.tables.roll_back(end);
        }
        written
    }

    fn write_all(&mut self, guest: GuestOffset, bytes: &[u8]) -> Result<(), WriteError> {
        let mut behind_last = None;
        let mut rest = bytes;
        let range = guest.get()..guest.get().saturating_add(bytes.len() as u64);
        self.tables.mark(range.clone())?;
        for part in self.by_clusters(range) {
            let length = usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(0);
            let (piece, behind) = rest.split_at(length.min(rest.len()));
            let is_first = piece.len() + behind.len() == bytes.len();
            rest = behind;
            let lost = match behind.is_empty() && !is_first {
                true if self.tables.has(WriterFault::EndMissing) => LOST_BYTES,
                _ => 0,
            };
            let kept = piece.len().checked_sub(lost).filter(|kept| *kept > 0);
            let kept = &piece[..kept.unwrap_or(piece.len())];
            let is_inner = !is_first && !behind.is_empty();
            if !(is_inner && self.tables.has(WriterFault::MiddleMissing)) {
                self.write_piece(part.start, kept, &mut behind_last)?;
            }
        }
        self.plant_after_write(guest, bytes)
    }

    /// Makes a range of the disk read as zeros.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn write_zeroes(
        &mut self,
        guest: GuestOffset,
        length_bytes: u64,
    ) -> Result<(), WriteError> {
        let mut range = guest.get()..guest.get().saturating_add(length_bytes);
        if self.tables.has(WriterFault::ZerosPastEnd) {
            let cluster = self.tables.cluster_size().bytes();
            range.start = range.start / cluster * cluster;
            range.end = range.end.div_ceil(cluster).saturating_mul(cluster);
            range.end = range.end.min(self.virtual_size_bytes());
        }
        self.mark_zeros(&range)?;
        self.zero(range)
    }

    /// Frees whole clusters, which then read as zeros.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn discard(&mut self, guest: GuestOffset, length_bytes: u64) -> Result<(), WriteError> {
        let range = guest.get()..guest.get().saturating_add(length_bytes);
        if self.tables.has(WriterFault::DiscardIgnored) {
            return Ok(());
        }
        self.mark_zeros(&range)?;
        if self.tables.has(WriterFault::DiscardShowsBelow) {
            for part in self.by_clusters(range) {
                self.replace(part.start, 0)?;
            }
            return Ok(());
        }
        self.zero(range)
    }

    /// Gives the disk another size. New bytes are zeros.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn resize(&mut self, size_bytes: u64) -> Result<(), WriteError> {
        let old = self.virtual_size_bytes();
        self.disk = None;
        self.tables.resize(size_bytes)?;
        match self.tables.has(WriterFault::GrownTail) {
            true => Ok(()),
            false => self.zero(old..size_bytes),
        }
    }

    /// Flushes the files: a power cut loses nothing that was written before.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match self.tables.has(WriterFault::FlushIgnored) {
            true => Ok(()),
            false => self.tables.flush(),
        }
    }

    /// Takes a snapshot of the disk.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn take_snapshot(&mut self) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.take_snapshot()
    }

    /// Restores the disk from the snapshot at `index`.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`]; or there is no such snapshot.
    pub fn apply_snapshot(&mut self, index: u32) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.apply_snapshot(index)
    }

    /// Deletes the snapshot at `index`.
    ///
    /// # Errors
    /// As for [`SmallWriter::apply_snapshot`].
    pub fn delete_snapshot(&mut self, index: u32) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.delete_snapshot(index)
    }

    /// Sets the bits of a range that becomes zeros.
    fn mark_zeros(&mut self, range: &Range<u64>) -> Result<(), WriteError> {
        match self.tables.has(WriterFault::BitmapMissesZeros) {
            true => Ok(()),
            false => self.tables.mark(range.clone()),
        }
    }

    /// Closes the image.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn close(mut self) -> Result<(), WriteError> {
        self.tables.close()
    }

    /// Returns the parts of a range in each cluster.
    fn by_clusters(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let cluster = self.tables.cluster_size().bytes();
        let next = move |at: u64| (at / cluster).saturating_add(1).saturating_mul(cluster);
        let starts = std::iter::successors(Some(range.start), move |at| Some(next(*at)));
        let parts = starts.map(move |start| start..next(start).min(range.end));
        parts.take_while(move |part| part.start < range.end)
    }

    /// Writes bytes inside one cluster.
    fn write_piece(
        &mut self,
        guest: u64,
        bytes: &[u8],
        behind_last: &mut BehindLast,
    ) -> Result<(), WriteError> {
        self.disk = None;
        let cluster_size = self.tables.cluster_size();
        let inside = guest & cluster_size.mask();
        if let (Some(host), true) = (*behind_last, self.tables.has(WriterFault::AssumedNeighbours))
        {
            *behind_last = host.checked_add(cluster_size.bytes());
            return self.tables.write_data(host, bytes);
        }
        let slot = self.tables.l2_slot(cluster_size.guest_cluster(GuestOffset::new(guest)))?;
        let entry = self.tables.entry(slot)?;
        let kind = self.tables.kind(entry)?;
        if self.is_owned(entry, inside, bytes.len()) {
            let host = HostOffset::new(entry & OFFSET_MASK);
            *behind_last = host.checked_add(cluster_size.bytes());
            return self.tables.write_data(host + inside, bytes);
        }
        let new = match self.tables.data_file() {
            Some(file) => self.cluster_in_data_file(file, guest, bytes, kind)?,
            None => self.cluster_in_image(guest, bytes, kind)?,
        };
        let copied = if self.tables.has(WriterFault::CopiedNotSet) { 0 } else { COPIED };
        self.tables.set_reference(slot, new.get() | copied)?;
        if self.tables.has(WriterFault::CountedLate) && self.tables.data_file().is_none() {
            self.tables.count_run(new, 1)?;
        }
        if new.get() != entry & OFFSET_MASK {
            self.tables.free_entry(entry)?;
        }
        *behind_last = new.checked_add(cluster_size.bytes());
        Ok(())
    }

    /// Reports whether an entry names a data cluster that nothing else uses. `inside` and `length` are the place of the
    /// bytes that change there.
    fn is_owned(&self, entry: u64, inside: u64, length: usize) -> bool {
        // In a data file, 0 is an offset like any other.
        let has_offset = entry & OFFSET_MASK != 0 || self.tables.data_file().is_some();
        let has_cluster = entry & L2_COMPRESSED == 0 && has_offset;
        let is_copied = L2Entry(entry).copied()
            || self.tables.has(WriterFault::CopiedIgnored)
            || self.tables.has(WriterFault::SharedInside) && self.is_far_inside(inside, length);
        let is_data = entry & L2_ZERO == 0 || self.tables.has(WriterFault::ZeroFlagStays);
        has_cluster && is_copied && is_data
    }

    /// Makes a range read as zeros: whole clusters by their entries.
    fn zero(&mut self, range: Range<u64>) -> Result<(), WriteError> {
        let entry = match (self.tables.geometry().version, self.layers.len()) {
            (Version::V3, _) => Some(L2_ZERO),
            (Version::V2, 1) => Some(0),
            // Version 2 has no zero clusters.
            (Version::V2, _) => None,
        };
        let (mask, size_bytes) = (self.tables.cluster_size().mask(), self.virtual_size_bytes());
        for part in self.by_clusters(range) {
            let ends_cluster = part.end & mask == 0 || part.end == size_bytes;
            let is_whole = part.start & mask == 0 && ends_cluster;
            match entry.filter(|_| is_whole) {
                Some(entry) => {
                    self.clear_raw(&part)?;
                    self.replace(part.start, entry)?;
                }
                None => self.zero_piece(part)?,
            }
        }
        Ok(())
    }

    /// Writes zeros to a range of a raw data file, which must contain them.
    fn clear_raw(&self, range: &Range<u64>) -> Result<(), WriteError> {
        if self.tables.raw_data_file().is_none() || self.tables.has(WriterFault::RawDataFileStale) {
            return Ok(());
        }
        self.tables.clear_data(HostOffset::new(range.start)..HostOffset::new(range.end))
    }

    /// Makes bytes inside one cluster zeros.
    fn zero_piece(&mut self, part: Range<u64>) -> Result<(), WriteError> {
        self.disk = None;
        let length = part.end.saturating_sub(part.start);
        let cluster_size = self.tables.cluster_size();
        let guest = GuestOffset::new(part.start);
        let slot = self.tables.l2_slot(cluster_size.guest_cluster(guest))?;
        let entry = self.tables.entry(slot)?;
        // The kind of an entry that the format does not allow is an error.
        self.tables.kind(entry)?;
        if self.is_owned(entry, cluster_size.inside(guest), length as usize) {
            let host = HostOffset::new(entry & OFFSET_MASK);
            let start = host + cluster_size.inside(guest);
            return self.tables.clear_data(start..start + length);
        }
        let length = usize::try_from(length).map_err(|_| WriteError::TooLong)?;
        self.write_piece(part.start, &vec![0; length], &mut None)
    }

    /// Gives a cluster another entry, and frees its host clusters.
    fn replace(&mut self, guest: u64, entry: u64) -> Result<(), WriteError> {
        self.disk = None;
        let cluster = self.tables.cluster_size().guest_cluster(GuestOffset::new(guest));
        let slot = self.tables.l2_slot(cluster)?;
        let old = self.tables.entry(slot)?;
        self.tables.set_entry(slot, entry)?;
        self.tables.free_entry(old)
    }
}
