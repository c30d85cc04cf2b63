//! The asynchronous twin of the writer: requests that are in flight together. Each step of a request is an operation of
//! the writer behind a turn of its own: a look-up, a new cluster with its content, an entry, a freed cluster. A request
//! has a lock on each cluster of the guest that it changes, so that the steps of two requests do not mix there.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::lock::{Mutex, OwnedMutexGuard};
use qcowfuzz::disk::clusters::HostCluster;
use qcowfuzz::formats::qcow2::constants::{
    COMPATIBLE_LAZY_REFCOUNTS, COPIED, INCOMPATIBLE_DIRTY, OFFSET_MASK,
};
use qcowfuzz::formats::qcow2::entry::ClusterKind;
use qcowfuzz::prelude::*;

use super::SmallWriter;
use crate::{WriteError, WriterFault};

/// The lock on a cluster of the guest; none if a fault takes none.
type ClusterLock = Option<OwnedMutexGuard<()>>;

/// A writer with requests in flight.
struct Twin<'w, 's> {
    file: &'s ChainFile,
    writer: RefCell<&'w mut SmallWriter<'s>>,
    /// The locks on clusters of the guest, by their numbers.
    locks: RefCell<BTreeMap<u64, Arc<Mutex<()>>>>,
    /// The bytes that the fault [`WriterFault::AnsweredEarly`] has not written yet.
    late: RefCell<Vec<(u64, Vec<u8>)>>,
    /// A flush is in flight.
    is_flushing: Cell<bool>,
}

/// A piece of a write that needs a new cluster.
#[derive(Clone, Copy)]
struct NewPiece<'b> {
    guest: u64,
    bytes: &'b [u8],
    /// The place of the entry.
    slot: HostOffset,
    /// The entry before, and its kind.
    entry: u64,
    kind: ClusterKind,
}

impl SmallWriter<'_> {
    /// Carries out requests that are in flight together.
    ///
    /// # Errors
    /// As for [`Flights::run`].
    pub(crate) fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        let twin = Twin {
            file: self.tables.file,
            writer: RefCell::new(self),
            locks: RefCell::default(),
            late: RefCell::default(),
            is_flushing: Cell::default(),
        };
        flights.run(async |request| {
            let done = twin.carry_out(request).await;
            Ok(done.inspect_err(|_| twin.writer().read_header_again())?)
        })?;
        for (guest, bytes) in twin.late.take() {
            twin.writer().write_piece(guest, &bytes, &mut None)?;
        }
        // The last read of a request may have come before the last change.
        self.disk = None;
        Ok(())
    }

    /// Reads bytes inside one cluster. If the fault is to read them later, returns their place in the file instead.
    fn read_piece(
        &mut self,
        guest: u64,
        into: &mut [u8],
    ) -> Result<Option<HostOffset>, WriteError> {
        // Another request may have changed the disk since the last step.
        self.disk = None;
        if self.tables.has(WriterFault::ReadOfTaken)
            && let Some(host) = self.data_cluster(guest)?
        {
            return Ok(Some(host));
        }
        self.read(GuestOffset::new(guest), into)?;
        Ok(None)
    }
}

impl<'w, 's> Twin<'w, 's> {
    async fn carry_out(&self, request: FlightRequest<'_>) -> Result<(), WriteError> {
        match request {
            FlightRequest::Read { guest, into } => self.read(guest, into).await,
            FlightRequest::Change(Request::Write { guest, bytes }) => {
                self.write(guest, bytes).await
            }
            FlightRequest::Change(Request::WriteZeroes { guest, length_bytes }) => {
                self.zero(guest, length_bytes, |writer, guest, length_bytes| {
                    writer.write_zeroes(guest, length_bytes)
                })
                .await
            }
            FlightRequest::Change(Request::Discard { guest, length_bytes }) => {
                self.zero(guest, length_bytes, |writer, guest, length_bytes| {
                    writer.discard(guest, length_bytes)
                })
                .await
            }
            FlightRequest::Change(Request::Flush) => self.flush().await,
            FlightRequest::Change(_) => Err(WriteError::Unsupported("this request in flight")),
        }
    }

    /// Returns the writer, for one step.
    fn writer(&self) -> RefMut<'_, &'w mut SmallWriter<'s>> {
        self.writer.borrow_mut()
    }

    fn has(&self, fault: WriterFault) -> bool {
        self.writer.borrow().tables.has(fault)
    }

    /// Waits until the next step may happen, and returns the writer for it.
    async fn step(&self) -> RefMut<'_, &'w mut SmallWriter<'s>> {
        self.file.turn().await;
        self.writer()
    }

    /// Waits until no other request changes the cluster of `guest`.
    async fn lock(&self, guest: u64) -> ClusterLock {
        let cluster =
            self.writer.borrow().tables.cluster_size().guest_cluster(GuestOffset::new(guest));
        let lock = Arc::clone(self.locks.borrow_mut().entry(cluster.get()).or_default());
        Some(lock.lock_owned().await)
    }

    /// Takes all locks of a request at once, in the order of `parts`, if that is the fault.
    async fn lock_crossed(&self, parts: impl Iterator<Item = &Range<u64>>) -> Vec<ClusterLock> {
        let mut held = Vec::new();
        if self.has(WriterFault::LocksCrossed) {
            for part in parts {
                held.push(self.lock(part.start).await);
                drop(self.step().await);
            }
        }
        held
    }

    fn by_clusters(&self, guest: GuestOffset, length_bytes: u64) -> Vec<Range<u64>> {
        let range = guest.get()..guest.get().saturating_add(length_bytes);
        self.writer.borrow().by_clusters(range).collect()
    }

    async fn read(&self, guest: GuestOffset, into: &mut [u8]) -> Result<(), WriteError> {
        let mut rest = into;
        for part in self.by_clusters(guest, rest.len() as u64) {
            let length = part.end.saturating_sub(part.start) as usize;
            let (piece, behind) = rest.split_at_mut(length.min(rest.len()));
            rest = behind;
            let late = self.step().await.read_piece(part.start, piece)?;
            if let Some(host) = late {
                self.step().await.tables.read_data(host, piece)?;
            }
        }
        Ok(())
    }

    async fn write(&self, guest: GuestOffset, bytes: &[u8]) -> Result<(), WriteError> {
        let range = guest.get()..guest.get().saturating_add(bytes.len() as u64);
        self.step().await.tables.mark(range)?;
        self.mark_dirty(true).await?;
        let parts = self.by_clusters(guest, bytes.len() as u64);
        // In another order than a request that zeroes: each may wait for the other.
        let held = self.lock_crossed(parts.iter().rev()).await;
        let mut rest = bytes;
        for part in parts {
            let length = part.end.saturating_sub(part.start) as usize;
            let (piece, behind) = rest.split_at(length.min(rest.len()));
            rest = behind;
            if self.has(WriterFault::AnsweredEarly) {
                self.late.borrow_mut().push((part.start, piece.to_vec()));
                continue;
            }
            let is_unlocked = !held.is_empty() || self.has(WriterFault::ClusterNotLocked);
            let lock = if is_unlocked { None } else { self.lock(part.start).await };
            self.write_piece(part.start, piece, lock).await?;
        }
        self.mark_dirty(false).await
    }

    /// Marks an image with lazy refcounts as dirty or clean, if that is the fault.
    async fn mark_dirty(&self, is_dirty: bool) -> Result<(), WriteError> {
        if !self.counts_lazily() {
            return Ok(());
        }
        let writer = self.step().await;
        writer.tables.set_marks(if is_dirty { INCOMPATIBLE_DIRTY } else { 0 })?;
        writer.tables.flush()
    }

    /// Reports whether new clusters get their counts late, while the image is marked as dirty.
    fn counts_lazily(&self) -> bool {
        let writer = self.writer.borrow();
        writer.tables.has(WriterFault::CleanTooEarly)
            && writer.tables.header.compatible & COMPATIBLE_LAZY_REFCOUNTS != 0
            && writer.tables.data_file().is_none()
    }

    /// Writes bytes inside one cluster, on which the request has a lock.
    async fn write_piece(
        &self,
        guest: u64,
        bytes: &[u8],
        lock: ClusterLock,
    ) -> Result<(), WriteError> {
        if self.has(WriterFault::TableTwice) {
            self.new_table(guest).await?;
        }
        let (piece, inside, is_owned) = {
            let mut writer = self.step().await;
            writer.disk = None;
            let cluster_size = writer.tables.cluster_size();
            let inside = guest & cluster_size.mask();
            let slot =
                writer.tables.l2_slot(cluster_size.guest_cluster(GuestOffset::new(guest)))?;
            let entry = writer.tables.entry(slot)?;
            let kind = writer.tables.kind(entry)?;
            let is_owned = writer.is_owned(entry, inside, bytes.len());
            (NewPiece { guest, bytes, slot, entry, kind }, inside, is_owned)
        };
        if is_owned {
            let _held = lock.filter(|_| !self.has(WriterFault::WriteOverTaken));
            let host = HostOffset::new(piece.entry & OFFSET_MASK);
            return self.step().await.tables.write_data(host + inside, bytes);
        }
        self.write_new(piece).await
    }

    /// Allocates the L2 table for a cluster of the guest, if it is missing, and stores its entry in the next step.
    async fn new_table(&self, guest: u64) -> Result<(), WriteError> {
        let (slot, new) = {
            let mut writer = self.step().await;
            let cluster = writer.tables.cluster_size().guest_cluster(GuestOffset::new(guest));
            let slot = writer.tables.l1_slot(cluster)?;
            if writer.tables.entry(slot)? != 0 {
                return Ok(());
            }
            let new = writer.tables.allocate(1)?;
            writer.tables.end_file_behind(new, 1)?;
            (slot, new)
        };
        self.step().await.tables.set_reference(slot, new.get() | COPIED)
    }

    /// Writes bytes to a new cluster.
    async fn write_new(&self, piece: NewPiece<'_>) -> Result<(), WriteError> {
        let NewPiece { slot, entry, .. } = piece;
        let new = match self.has(WriterFault::EntryBeforeContent) {
            true => self.entry_before_content(piece).await?,
            false => self.new_cluster(piece).await?,
        };
        self.step().await.tables.set_reference(slot, new.get() | COPIED)?;
        if self.counts_lazily() {
            let mut writer = self.step().await;
            writer.tables.count_run(new, 1)?;
            writer.tables.flush()?;
        }
        match new.get() != entry & OFFSET_MASK {
            true => self.free_entry(entry).await,
            false => Ok(()),
        }
    }

    /// Frees the host clusters of an L2 entry.
    async fn free_entry(&self, entry: u64) -> Result<(), WriteError> {
        if !self.has(WriterFault::CountRaced) {
            return self.step().await.tables.free_entry(entry);
        }
        let clusters = {
            let writer = self.step().await;
            writer.tables.flush()?;
            writer.tables.clusters_of(entry)?
        };
        for cluster in clusters.map(HostCluster::new) {
            let count = self.step().await.tables.count(cluster)?;
            self.step().await.tables.lower_from(cluster, count)?;
        }
        Ok(())
    }

    /// Allocates a cluster with the bytes of a piece, and with those around them.
    async fn new_cluster(&self, piece: NewPiece<'_>) -> Result<HostOffset, WriteError> {
        let NewPiece { guest, bytes, kind, .. } = piece;
        let is_lazy = self.counts_lazily();
        let end = self.step().await.tables.end();
        let mut writer = match self.has(WriterFault::EndRaced) {
            // The end of the file, as it was before another request has allocated.
            true => {
                let mut writer = self.step().await;
                writer.tables.roll_back(end);
                writer
            }
            false => self.writer(),
        };
        writer.disk = None;
        let Some(file) = writer.tables.data_file() else {
            writer.tables.counts_later = is_lazy;
            let new = writer.cluster_in_image(guest, bytes, kind);
            writer.tables.counts_later = false;
            return new;
        };
        writer.cluster_in_data_file(file, guest, bytes, kind)
    }

    /// Allocates the cluster of a piece, and stores its entry before its content.
    async fn entry_before_content(&self, piece: NewPiece<'_>) -> Result<HostOffset, WriteError> {
        let NewPiece { guest, bytes, slot, kind, .. } = piece;
        if self.writer().tables.data_file().is_some() {
            return self.new_cluster(piece).await;
        }
        let (new, content) = {
            let mut writer = self.step().await;
            let content = writer.changed_cluster(guest, bytes, kind)?;
            let new = writer.tables.allocate(1)?;
            writer.tables.end_file_behind(new, 1)?;
            writer.tables.set_reference(slot, new.get() | COPIED)?;
            (new, content)
        };
        self.step().await.tables.write_data(new, &content)?;
        Ok(new)
    }

    /// Makes a range zeros, cluster by cluster.
    async fn zero(
        &self,
        guest: GuestOffset,
        length_bytes: u64,
        zero: impl Fn(&mut SmallWriter<'s>, GuestOffset, u64) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let parts = self.by_clusters(guest, length_bytes);
        let held = self.lock_crossed(parts.iter()).await;
        for part in parts {
            let is_unlocked = !held.is_empty() || self.has(WriterFault::ZeroesNotLocked);
            let _lock = if is_unlocked { None } else { self.lock(part.start).await };
            let length_bytes = part.end.saturating_sub(part.start);
            let freed = {
                let mut writer = self.step().await;
                let before = writer.tables.free.clusters.len();
                zero(*writer, GuestOffset::new(part.start), length_bytes)?;
                writer.tables.free.clusters.get(before..).map(<[_]>::to_vec).unwrap_or_default()
            };
            self.zero_late(&freed).await?;
        }
        Ok(())
    }

    /// Writes zeros over clusters that a request has freed, if that is the fault.
    async fn zero_late(&self, freed: &[HostCluster]) -> Result<(), WriteError> {
        for cluster in freed.iter().filter(|_| self.has(WriterFault::StaleZeroes)) {
            let writer = self.step().await;
            let cluster_size = writer.tables.cluster_size();
            let start = cluster_size.host_offset(*cluster);
            writer.tables.clear(start..start + cluster_size.bytes())?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), WriteError> {
        let joins = self.has(WriterFault::FlushJoined);
        if joins && self.is_flushing.replace(true) {
            return Ok(());
        }
        let flushed = self.step().await.flush();
        if joins {
            // The flush has an answer some time after its files.
            drop(self.step().await);
            self.is_flushing.set(false);
        }
        flushed
    }
}
