//! The header and the tables of an image: each entry is read and written in the file.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};

use qcowfuzz::disk::clusters::{ClusterSize, GuestCluster, HostCluster};
use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::{Data, Layer, Storage, each_data};
use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_RAW_DATA_FILE, COMPATIBLE_LAZY_REFCOUNTS, COPIED, EXTENSION_BACKING_FORMAT,
    INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY, MAX_L1_ENTRIES, header,
};
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry};
use qcowfuzz::formats::qcow2::geometry::{Geometry, Version};
use qcowfuzz::formats::qcow2::head::each_extension;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::harness::files::chain::ChainFile;

use super::refcounts::FreeClusters;
use super::stored_bitmaps::StoredBitmaps;
use crate::{WriteError, WriterFault};

/// The offset of the header's field `size`.
pub(super) const SIZE_AT: HostOffset = HostOffset::new(header::SIZE.at as u64);
/// The offset of `l1_size`, with `l1_table_offset` behind it.
const L1_ENTRIES_AT: HostOffset = HostOffset::new(header::L1_SIZE.at as u64);
/// The offset of the field with the dirty bit, `incompatible_features`.
const FEATURE_BITS_AT: HostOffset = HostOffset::new(header::INCOMPATIBLE_FEATURES.at as u64);
/// The offset of `compatible_features`.
const COMPATIBLE_AT: HostOffset = HostOffset::new(header::COMPATIBLE_FEATURES.at as u64);

/// The unit in which the writer leaves zeros out.
const WRITTEN_BLOCK_BYTES: usize = 4096;
/// The bytes that the writer copies at once.
const COPIED_AT_ONCE_BYTES: usize = 8 << 10;

/// The tables of an image, with the header as the writer has left it.
pub(super) struct WrittenTables<'s> {
    pub(super) file: &'s ChainFile,
    /// The file with the data of the guest, if that is another one.
    data_file: Option<&'s ChainFile>,
    fault: Option<WriterFault>,
    pub(super) header: Header,
    pub(super) bitmaps: StoredBitmaps,
    /// The end of the last cluster in use. Behind it, a device has old bytes, and so has a file that a crash has left.
    end: HostOffset,
    /// That end when the image was opened.
    first_end: HostOffset,
    /// Free clusters before the end.
    pub(super) free: FreeClusters,
    /// New clusters get their counts later.
    pub(super) counts_later: bool,
    /// A flush has failed, which a fault forgets.
    failed_flush: Cell<bool>,
}

impl<'s> WrittenTables<'s> {
    /// Reads the header.
    pub(super) fn open(
        layer: Layer<'s, ChainFile>,
        fault: Option<WriterFault>,
    ) -> Result<Self, WriteError> {
        let file = layer.image;
        let header = Header::read(file)?;
        let flagged = header.incompatible & (INCOMPATIBLE_DIRTY | INCOMPATIBLE_CORRUPT);
        for (is_there, feature) in [
            (header.geometry.extended_l2, "extended L2 entries"),
            (flagged != 0, "dirty and corrupt images"),
        ] {
            if is_there {
                return Err(WriteError::Unsupported(feature));
            }
        }
        let cluster_size = header.geometry.cluster_size;
        let clusters = cluster_size.clusters_for(file.length_bytes());
        let end = HostOffset::new(cluster_size.saturating_bytes(clusters));
        let data_file = layer.data_file.filter(|_| header.geometry.data_file);
        if header.geometry.data_file && data_file.is_none() {
            return Err(WriteError::Malformed("the data file is missing"));
        }
        let bitmaps = StoredBitmaps::read(file, &header)?;
        let mut tables = Self {
            file,
            data_file,
            fault,
            header,
            bitmaps,
            end,
            first_end: end,
            free: FreeClusters::default(),
            counts_later: false,
            failed_flush: Cell::new(false),
        };
        let last = HostCluster::new(clusters.saturating_sub(1));
        if tables.count(last)? == 0 {
            tables.end = tables.end_of_counted()?.min(end);
        }
        tables.first_end = tables.end;
        Ok(tables)
    }

    pub(super) fn has(&self, fault: WriterFault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }

    pub(super) fn cluster_size(&self) -> ClusterSize {
        self.header.geometry.cluster_size
    }

    /// Returns the size of the disk.
    pub(super) fn size_bytes(&self) -> u64 {
        self.header.virtual_size_bytes()
    }

    /// Returns the end of the last cluster in use. New clusters follow it, unless they are free ones before it.
    pub(super) fn end(&self) -> HostOffset {
        self.end
    }

    /// Reserves clusters of zeros: a free one, or those behind the last one in use. Their refcounts stay 0.
    pub(super) fn reserve(&mut self, clusters: u64) -> Result<HostOffset, WriteError> {
        let free = if clusters == 1 { self.take_free()? } else { None };
        if let Some(free) = free {
            let start = self.cluster_size().host_offset(free);
            self.clear(start..start + self.cluster_size().bytes())?;
            return Ok(start);
        }
        let first = self.end;
        let bytes = self.cluster_size().saturating_bytes(clusters);
        let end = first.checked_add(bytes).ok_or(WriteError::TooLong)?;
        if first.get() < self.file.length_bytes() && !self.has(WriterFault::OldBytesStay) {
            self.clear(first..end)?;
        }
        self.end = end;
        Ok(first)
    }

    pub(super) fn write(&self, at: HostOffset, bytes: &[u8]) -> Result<(), WriteError> {
        Ok(self.file.write_at(at, bytes)?)
    }

    /// Writes `bytes` to a hole of the file: the blocks that are not zeros, and the last one, up to which the file
    /// grows.
    pub(super) fn write_to_hole(&self, at: HostOffset, bytes: &[u8]) -> Result<(), WriteError> {
        let mut blocks = bytes.chunks(WRITTEN_BLOCK_BYTES).peekable();
        let (mut start, mut end) = (0, 0);
        while let Some(block) = blocks.next() {
            // Without an early exit, the compiler looks at many bytes at a time.
            let is_zeros = block.iter().fold(0, |any, byte| any | byte) == 0;
            if is_zeros && blocks.peek().is_some() {
                self.write_part(at, bytes, start..end)?;
                start = end + block.len();
            }
            end += block.len();
        }
        self.write_part(at, bytes, start..end)
    }

    /// Writes a part of the bytes that belong at `at`.
    fn write_part(
        &self,
        at: HostOffset,
        bytes: &[u8],
        part: Range<usize>,
    ) -> Result<(), WriteError> {
        let first = at + part.start as u64;
        match bytes.get(part) {
            Some(part) if !part.is_empty() => {
                self.tolerated(WriterFault::WriteErrorIgnored, self.file.write_at(first, part))
            }
            _ => Ok(()),
        }
    }

    /// Returns the external data file, if the image has one.
    pub(super) fn data_file(&self) -> Option<&'s ChainFile> {
        self.data_file
    }

    /// Returns the data file, if it is a raw image of the disk.
    pub(super) fn raw_data_file(&self) -> Option<&'s ChainFile> {
        self.data_file.filter(|_| self.header.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0)
    }

    /// Returns the file with the data of the guest.
    fn data(&self) -> &'s ChainFile {
        self.data_file.unwrap_or(self.file)
    }

    /// Writes data of the guest.
    pub(super) fn write_data(&self, at: HostOffset, bytes: &[u8]) -> Result<(), WriteError> {
        self.tolerated(WriterFault::WriteErrorIgnored, self.data().write_at(at, bytes))
    }

    /// Reads data of the guest.
    pub(super) fn read_data(&self, at: HostOffset, into: &mut [u8]) -> Result<(), WriteError> {
        Ok(self.data().read_at(at, into)?)
    }

    /// Writes zeros over the guest's data in a range of their file. Holes stay holes.
    pub(super) fn clear_data(&self, range: Range<HostOffset>) -> Result<(), WriteError> {
        clear_in(self.data(), range)
    }

    /// Writes zeros over a range of the image's own file. Holes stay holes.
    pub(super) fn clear(&self, range: Range<HostOffset>) -> Result<(), WriteError> {
        clear_in(self.file, range)
    }

    /// Copies the data of a range of the cluster at `old` to the new cluster at `new`. Holes stay holes.
    pub(super) fn copy(
        &self,
        range: Range<u64>,
        old: HostOffset,
        new: HostOffset,
    ) -> Result<(), WriteError> {
        let range = old + range.start..old + range.end;
        let copied = each_data_of(self.file, range, |at, data| {
            self.write(new + at.saturating_distance_from(old), data)
        });
        match copied {
            Err(_) if self.has(WriterFault::CopyErrorIgnored) => Ok(()),
            copied => copied,
        }
    }

    /// Returns the result of an operation on a file, whose error a fault ignores.
    fn tolerated(
        &self,
        fault: WriterFault,
        done: Result<(), StorageError>,
    ) -> Result<(), WriteError> {
        match done {
            Err(_) if self.has(fault) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Has the next allocation begin at `end` again, as if nothing had been allocated since.
    pub(super) fn roll_back(&mut self, end: HostOffset) {
        self.end = end;
    }

    pub(super) fn entry(&self, at: HostOffset) -> Result<u64, WriteError> {
        let mut bytes = [0; 8];
        self.file.read_at(at, &mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Writes an entry of a table.
    pub(super) fn set_entry(&self, at: HostOffset, entry: u64) -> Result<(), WriteError> {
        let written = self.file.write_at(at, &entry.to_be_bytes());
        self.tolerated(WriterFault::EntryErrorIgnored, written)
    }

    /// Flushes the files, then writes a table entry. So no power cut leaves an entry without the cluster that it names.
    pub(super) fn set_reference(&self, at: HostOffset, entry: u64) -> Result<(), WriteError> {
        if !self.has(WriterFault::EntryBeforeData) {
            self.flush()?;
        }
        self.set_entry(at, entry)
    }

    /// Flushes the data file, then the image: entries must not survive without the data that they name.
    pub(super) fn flush(&self) -> Result<(), WriteError> {
        if self.failed_flush.take() {
            return Ok(());
        }
        if let Some(data_file) = self.data_file
            && !self.has(WriterFault::DataFileNotFlushed)
        {
            self.tolerated(WriterFault::FlushErrorIgnored, data_file.flush())?;
        }
        let flushed = self.file.flush();
        self.failed_flush.set(flushed.is_err() && self.has(WriterFault::FailedFlushForgotten));
        self.tolerated(WriterFault::FlushErrorIgnored, flushed)
    }

    /// Returns the cluster type that an entry of an L2 table states.
    pub(super) fn kind(&self, entry: u64) -> Result<ClusterKind, WriteError> {
        L2Entry(entry).kind(self.geometry()).map_err(WriteError::Malformed)
    }

    /// Stores the incompatible features that the image had when it was opened, and these ones. An image of version 2
    /// has no place for them.
    pub(super) fn set_marks(&self, marks: u64) -> Result<(), WriteError> {
        if self.geometry().version == Version::V2 {
            return Ok(());
        }
        self.set_entry(FEATURE_BITS_AT, self.header.incompatible | marks)
    }

    /// Flips the header's bit for lazy refcounts, which has no effect on the disk.
    pub(super) fn toggle_lazy_refcounts(&self) -> Result<(), WriteError> {
        self.set_entry(COMPATIBLE_AT, self.header.compatible ^ COMPATIBLE_LAZY_REFCOUNTS)
    }

    /// Returns the place of the L1 entry for a guest cluster.
    pub(super) fn l1_slot(&self, cluster: GuestCluster) -> Result<HostOffset, WriteError> {
        let index = cluster.get() / (self.cluster_size().bytes() / 8);
        match index < u64::from(self.header.l1_entries) {
            true => Ok(self.header.l1_offset + index * 8),
            false => Err(WriteError::Malformed("the L1 table ends before the disk")),
        }
    }

    /// Returns the place of the L2 entry of a guest cluster, in a table that only the active disk uses.
    pub(super) fn l2_slot(&mut self, cluster: GuestCluster) -> Result<HostOffset, WriteError> {
        let cluster_size = self.cluster_size();
        let slot = self.l1_slot(cluster)?;
        let inside = cluster.get() % (cluster_size.bytes() / 8);
        let entry = L1Entry(self.entry(slot)?);
        let is_owned = entry.copied() || self.has(WriterFault::SharedTable);
        let table = match entry.table() {
            Some(table) if is_owned => table,
            old => {
                let new = self.allocate(1)?;
                match old {
                    Some(old) => {
                        self.copy_table((old, cluster_size.bytes()), (new, 1), |_| ())?;
                    }
                    None => self.end_file_behind(new, 1)?,
                }
                self.set_reference(slot, new.get() | COPIED)?;
                if let Some(old) = old {
                    self.free_run(cluster_size.host_cluster(old), 1)?;
                }
                new
            }
        };
        Ok(table + inside * 8)
    }

    /// Frees the host clusters of an L2 entry.
    pub(super) fn free_entry(&mut self, entry: u64) -> Result<(), WriteError> {
        let clusters = self.clusters_of(entry)?;
        match clusters.is_empty() {
            true => Ok(()),
            false => {
                let length = clusters.end.saturating_sub(clusters.start);
                self.free_run(HostCluster::new(clusters.start), length)
            }
        }
    }

    /// Frees the clusters of a table.
    pub(super) fn free_table(&mut self, at: HostOffset, bytes: u64) -> Result<(), WriteError> {
        let cluster_size = self.cluster_size();
        match cluster_size.clusters_for(bytes) {
            0 => Ok(()),
            clusters => self.free_run(cluster_size.host_cluster(at), clusters),
        }
    }

    /// Returns the number of L1 entries that a disk needs.
    pub(super) fn l1_entries_for(&self, size_bytes: u64) -> Result<u64, WriteError> {
        let cluster_size = self.cluster_size();
        let entries = cluster_size.clusters_for(size_bytes).div_ceil(cluster_size.bytes() / 8);
        match entries <= u64::from(MAX_L1_ENTRIES) {
            true => Ok(entries),
            false => Err(WriteError::TooLong),
        }
    }

    /// Gives the disk another size. If it needs a longer L1 table, moves the table to the end of the file. A raw data
    /// file always has the size of the disk; in a cut, it can be longer.
    pub(super) fn resize(&mut self, size_bytes: u64) -> Result<(), WriteError> {
        let entries = self.l1_entries_for(size_bytes)?;
        self.resize_bitmaps(size_bytes, |it| it.resize_disk(entries, size_bytes))
    }

    fn resize_disk(&mut self, entries: u64, size_bytes: u64) -> Result<(), WriteError> {
        if entries > u64::from(self.header.l1_entries) {
            self.move_l1(u32::try_from(entries).map_err(|_| WriteError::TooLong)?, false)?;
        }
        let raw = self.raw_data_file().filter(|_| !self.has(WriterFault::RawDataFileNotResized));
        if let Some(file) = raw.filter(|file| file.length_bytes() < size_bytes) {
            file.set_length(size_bytes)?;
        }
        self.header.size_bytes = size_bytes;
        if self.has(WriterFault::BackingFormatLost) {
            self.lose_backing_format()?;
        }
        if self.has(WriterFault::LazyBitLost) && self.geometry().version == Version::V3 {
            self.set_entry(COMPATIBLE_AT, self.header.compatible & !COMPATIBLE_LAZY_REFCOUNTS)?;
        }
        if !self.has(WriterFault::SizeNotStored) {
            self.set_entry(SIZE_AT, size_bytes)?;
        }
        if let Some(file) = raw.filter(|file| file.length_bytes() > size_bytes) {
            self.flush()?;
            file.set_length(size_bytes)?;
        }
        Ok(())
    }

    /// Gives the extension with the format of the backing file an unknown type.
    fn lose_backing_format(&self) -> Result<(), WriteError> {
        let mut place = None;
        each_extension(self.file, &self.header, |extension| {
            if extension.kind == EXTENSION_BACKING_FORMAT {
                place = Some(HostOffset::new(extension.at));
            }
            Ok(())
        })?;
        place.map_or(Ok(()), |at| self.write(at, &[0xff; 4]))
    }

    /// Closes the image. Everything is in the file already.
    pub(super) fn close(&mut self) -> Result<(), WriteError> {
        self.mark_late()?;
        if self.has(WriterFault::BitmapsDropped) {
            self.drop_bitmaps()?;
        }
        if self.has(WriterFault::DirtyWhileOpen) {
            self.set_marks(0)?;
        }
        let has_grown = self.end > self.first_end;
        match has_grown && self.has(WriterFault::CloseTorn) {
            true => self.move_l1(self.header.l1_entries, true),
            false => Ok(()),
        }
    }

    /// Moves the L1 table to the end of the file, with room for more entries. If `is_torn`, writes the
    /// header before the table.
    fn move_l1(&mut self, entries: u32, is_torn: bool) -> Result<(), WriteError> {
        let cluster_size = self.cluster_size();
        let (old, old_bytes) = (self.header.l1_offset, u64::from(self.header.l1_entries) * 8);
        let clusters = cluster_size.clusters_for(u64::from(entries) * 8);
        let new = self.allocate(clusters)?;
        let copy = |it: &Self| it.copy_table((old, old_bytes), (new, clusters), |_| ());
        if !is_torn {
            copy(self)?;
        }
        self.header.l1_offset = new;
        self.header.l1_entries = entries;
        // Both fields in one write: a power cut leaves the old values or the new ones, never a mix.
        let mut fields = [0; 12];
        fields[..4].copy_from_slice(&entries.to_be_bytes());
        fields[4..].copy_from_slice(&new.get().to_be_bytes());
        self.flush()?;
        self.write(L1_ENTRIES_AT, &fields)?;
        if is_torn {
            copy(self)?;
        }
        self.free_run(cluster_size.host_cluster(old), cluster_size.clusters_for(old_bytes))
    }

    /// Has the file end behind new clusters of zeros, which are a hole.
    pub(super) fn end_file_behind(&self, new: HostOffset, clusters: u64) -> Result<(), WriteError> {
        let length = self.cluster_size().saturating_bytes(clusters);
        self.write(new + length.saturating_sub(8), &[0; 8])
    }

    /// Copies the data of a table to the beginning of new clusters, whose other bytes are zeros. `change` changes whole
    /// entries.
    pub(super) fn copy_table(
        &self,
        (old, old_bytes): (HostOffset, u64),
        (new, clusters): (HostOffset, u64),
        change: impl Fn(&mut [u8]),
    ) -> Result<(), WriteError> {
        let length = self.cluster_size().saturating_bytes(clusters);
        self.end_file_behind(new, clusters)?;
        let range = old..old + old_bytes.min(length);
        each_data_of(self.file, range, |at, data| {
            let mut data = data.to_vec();
            change(&mut data);
            let written = self.file.write_at(new + at.saturating_distance_from(old), &data);
            self.tolerated(WriterFault::TableErrorIgnored, written)
        })
    }
}

/// Writes zeros over the data in a range of a file.
fn clear_in(file: &ChainFile, range: Range<HostOffset>) -> Result<(), WriteError> {
    each_data_of(file, range, |at, data| Ok(file.write_at(at, &vec![0; data.len()])?))
}

/// Calls `take` with the data in a range of a file, in order, each with its offset.
fn each_data_of(
    file: &ChainFile,
    range: Range<HostOffset>,
    mut take: impl FnMut(HostOffset, &[u8]) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut scratch = [0; COPIED_AT_ONCE_BYTES];
    let end = range.end;
    let _ = each_data(file, range, &mut scratch, |Data { offset, bytes }| {
        // The last data may reach past the end.
        let left = usize::try_from(end.saturating_distance_from(offset)).unwrap_or(usize::MAX);
        take(offset, &bytes[..left.min(bytes.len())]).map(ControlFlow::Continue)
    })?;
    Ok(())
}
