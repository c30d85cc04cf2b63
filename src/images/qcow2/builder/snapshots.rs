//! Internal snapshots: L1 tables that share L2 tables and data with the active L1 table, the bytes of the snapshot
//! table, and the state of a guest's memory and devices, which a snapshot maps after the disk.

use bytes::BufMut;

use crate::disk::clusters::GuestCluster;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES;
use crate::formats::qcow2::geometry::Version;
use crate::images::qcow2::encoding::{Sizes, SnapshotFields};
use crate::images::qcow2::serialise::Writer;
use crate::images::qcow2::state::{Given, L1, Snapshot, SnapshotDetails, VmState};
use crate::images::qcow2::tables::{ClusterMapping, TableId};

use super::Builder;

impl Builder {
    /// Returns the number of snapshots.
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.live
    }

    /// Returns the sizes of the disks of all snapshots, as the image stores them.
    pub fn snapshot_sizes_bytes(&self) -> impl Iterator<Item = u64> {
        self.snapshots.live().iter().map(|snapshot| snapshot.size_bytes)
    }

    /// Reports whether the snapshot at `index` maps nothing past the end of its disk: no clusters and no VM state.
    pub fn snapshot_ends(&self, index: usize) -> bool {
        let Some(snapshot) = self.snapshots.live().get(index) else { return false };
        let geometry = &self.plan.geometry;
        let clusters = geometry.cluster_size.clusters_for(snapshot.size_bytes);
        let is_inside = |(l1_index, table): &(u64, TableId)| {
            let first = l1_index << geometry.l2_bits();
            self.tables.pages(*table).all(|(page_first, page)| {
                (page_first..).zip(page).all(|(index, entry)| {
                    *entry == ClusterMapping::Unallocated || first + index < clusters
                })
            })
        };
        snapshot.l1.tables().iter().all(is_inside)
    }

    /// Returns the largest number of references to a cluster.
    pub fn max_references(&self) -> u64 {
        let references = self.placement.clusters.runs().iter().map(|run| run.references);
        references.max().unwrap_or(1)
    }

    /// Takes a snapshot. Returns false if there are too many, a refcount would exceed its maximum, the file is full,
    /// or the image has a data file; then nothing changed.
    ///
    /// An applied snapshot leaves its VM state in the active disk. The new snapshot shares this state like the disk.
    /// If the new snapshot has VM state of its own, it replaces the old state, and the active disk has none
    /// afterwards.
    pub fn snapshot(&mut self, details: SnapshotDetails) -> bool {
        if self.snapshots.live >= self.limits.snapshots || self.plan.geometry.data_file {
            return false;
        }
        let shared = match details.vm_state {
            Some(_) => self.disk_tables(),
            None => self.active.tables().len(),
        };
        for at in 0..shared {
            self.reference_table(self.active.tables()[at].1);
        }
        if !self.countable() || !self.add_snapshot(details, shared) {
            for at in 0..shared {
                self.release_table(self.active.tables()[at].1);
            }
            return false;
        }
        if details.vm_state.is_some() {
            self.drop_vm_state();
        }
        true
    }

    /// Adds a snapshot with the first `shared` tables of the active disk. Saves its VM state, and allocates its L1
    /// table and the longer snapshot table. Returns false if the file is full.
    fn add_snapshot(&mut self, details: SnapshotDetails, shared: usize) -> bool {
        if self.snapshots.live == self.snapshots.all.len() {
            self.snapshots.all.push(Snapshot::default());
        }
        let live = self.snapshots.live;
        let mut l1 = std::mem::take(&mut self.snapshots.all[live].l1);
        l1.copy_entries(&self.active, shared);
        let vm_state_bytes = match details.vm_state {
            Some(state) => self.save_vm_state(&mut l1, state),
            None => Some(0),
        };
        let placed = vm_state_bytes.is_some() && self.place_l1(&mut l1);
        let snapshot = &mut self.snapshots.all[live];
        *snapshot = Snapshot {
            l1,
            size_bytes: self.plan.size_bytes,
            number: self.snapshots.taken + 1,
            vm_state_bytes: vm_state_bytes.unwrap_or(0),
            details,
        };
        self.complete_details(live);
        self.snapshots.live += 1;
        if placed && self.replace_snapshot_table() {
            self.snapshots.taken += 1;
            return true;
        }
        self.snapshots.live -= 1;
        let l1 = std::mem::take(&mut self.snapshots.all[live].l1);
        for (_, table) in &l1.tables()[shared..] {
            self.release_table(*table);
        }
        self.free_place(l1.place);
        self.snapshots.all[live].l1 = l1;
        false
    }

    /// Replaces details that the format forbids by allowed ones.
    fn complete_details(&mut self, index: usize) {
        let (others, rest) = self.snapshots.all.split_at_mut(index);
        let Some(snapshot) = rest.first_mut() else { return };
        let digits = snapshot.digits();
        let details = &mut snapshot.details;
        if self.plan.geometry.version == Version::V3 {
            details.extra_bytes = details.extra_bytes.max(V3_EXTRA_BYTES);
        }
        // The fixed part has 32 bits for the length of the VM state, the extra data begin with 64 bits for it.
        if u32::try_from(snapshot.vm_state_bytes).is_err() {
            details.extra_bytes = details.extra_bytes.max(8);
        }
        if let Some(id) = details.id {
            details.id_bytes = id.length_bytes();
        } else if details.id_bytes > 0 || others.iter().any(|other| other.details.id_bytes == 0) {
            details.id_bytes = details.id_bytes.max(digits);
        }
        if let Some(name) = details.name {
            details.name_bytes = name.length_bytes();
        } else if details.name_bytes > 0 {
            details.name_bytes = details.name_bytes.max(digits);
        }
    }

    /// Restores the active disk, including its size, from the snapshot at `index`. Returns false if there is no such
    /// snapshot, a refcount would exceed its maximum or the file is full; then nothing changed. As in QEMU, both
    /// disks have references for a moment.
    pub fn apply_snapshot(&mut self, index: usize) -> bool {
        let Some(snapshot) = self.snapshots.live().get(index) else { return false };
        let size_bytes = snapshot.size_bytes;
        if !self.may_resize(size_bytes) || !self.bitmaps_allow(size_bytes) {
            return false;
        }
        let l1 = std::mem::take(&mut self.snapshots.all[index].l1);
        for (_, table) in l1.tables() {
            self.reference_table(*table);
        }
        let possible = self.countable() && self.grow_l1(l1.entries);
        if possible {
            self.release_tables_from(0);
            self.active.become_entries(&l1);
            self.plan.size_bytes = size_bytes;
            self.resize_bitmaps();
            // The snapshot's tables may map clusters past the end of its disk.
            self.note_beyond();
        } else {
            for (_, table) in l1.tables() {
                self.release_table(*table);
            }
        }
        self.snapshots.all[index].l1 = l1;
        possible
    }

    /// Reports whether the disk may have this size. A snapshot that does not store its size has the active disk's
    /// size.
    pub fn may_resize(&self, size_bytes: u64) -> bool {
        self.plan.size_bytes == size_bytes || self.snapshots.live().iter().all(Snapshot::says_size)
    }

    /// Deletes the snapshot at `index`. Returns false if there is none, or if the file is full.
    pub fn delete_snapshot(&mut self, index: usize) -> bool {
        if index >= self.snapshots.live {
            return false;
        }
        self.snapshots.all[index..self.snapshots.live].rotate_left(1);
        self.snapshots.live -= 1;
        if !self.replace_snapshot_table() {
            self.snapshots.live += 1;
            self.snapshots.all[index..self.snapshots.live].rotate_right(1);
            return false;
        }
        let l1 = std::mem::take(&mut self.snapshots.all[self.snapshots.live].l1);
        for (_, table) in l1.tables() {
            self.release_table(*table);
        }
        self.free_place(l1.place);
        self.snapshots.all[self.snapshots.live].l1 = l1;
        true
    }

    /// Reports whether every count can be stored.
    fn countable(&self) -> bool {
        let max_refcount = self.plan.geometry.max_refcount();
        self.placement.clusters.runs().iter().all(|run| run.references <= max_refcount)
    }

    /// Adds one reference to a table and to everything that it references.
    fn reference_table(&mut self, table: TableId) {
        self.placement.clusters.add_reference(self.tables.host(table).get());
        self.for_each_entry(table, Self::add_references);
    }

    fn add_references(&mut self, entry: ClusterMapping) {
        for cluster in self.referenced(entry) {
            self.placement.clusters.add_reference(cluster);
        }
    }

    /// Allocates a place for an L1 table that has none. Returns false if the file is full.
    fn place_l1(&mut self, l1: &mut L1) -> bool {
        let place = self.replace_place(l1.place, l1.entries * 8);
        l1.place = place.unwrap_or(l1.place);
        place.is_some()
    }

    /// Allocates a table for the current snapshots, and frees the old one.
    fn replace_snapshot_table(&mut self) -> bool {
        let bytes = self.snapshots.table_bytes();
        let place = self.replace_place(self.snapshots.table, bytes);
        self.snapshots.table = place.unwrap_or(self.snapshots.table);
        place.is_some()
    }

    /// Returns the host offset of the snapshot table; 0 if there is none.
    pub fn snapshot_table(&self) -> HostOffset {
        self.host_offset(self.snapshots.table.0)
    }
}

/// The byte that fills unknown extra data.
const UNKNOWN_EXTRA: u8 = 0xE7;

impl Snapshot {
    /// Returns the entry, without its strings.
    pub fn entry(&self, l1_offset: HostOffset) -> SnapshotFields {
        let number = self.number;
        let timed = self.details.timed;
        SnapshotFields {
            l1_offset,
            l1_entries: u32::try_from(self.l1.entries).unwrap_or(u32::MAX),
            id_bytes: self.details.id_bytes,
            name_bytes: self.details.name_bytes,
            date_seconds: if timed { 0xF000_0000 + number } else { 0 },
            date_nanoseconds: if timed { 1_000_000_000 - number } else { 0 },
            vm_clock_nanoseconds: if timed { u64::MAX - u64::from(number) } else { 0 },
            vm_state_bytes: self.vm_state_bytes,
            disk_bytes: self.size_bytes,
            // All ones mean that there is no count.
            instructions: if timed { u64::MAX - u64::from(number) } else { 0 },
            extra_bytes: self.details.extra_bytes,
        }
    }

    /// Reports whether the entry has room for the size of its disk.
    pub fn says_size(&self) -> bool {
        self.details.extra_bytes >= 16
    }

    /// Returns the number of digits of the snapshot's number.
    pub fn digits(&self) -> u16 {
        self.number.checked_ilog10().unwrap_or(0) as u16 + 1
    }

    /// Writes the whole entry.
    fn write(&self, l1_offset: HostOffset, given: &Given, out: &mut [u8]) {
        let entry = self.entry(l1_offset);
        let mut strings = entry.write(out, UNKNOWN_EXTRA);
        let SnapshotDetails { id, name, .. } = self.details;
        for (string, length_bytes) in [(id, entry.id_bytes), (name, entry.name_bytes)] {
            match string {
                Some(string) => strings.put_slice(given.string(string)),
                None => write_number(&mut strings, self.number, length_bytes),
            }
        }
    }
}

impl Builder {
    /// Writes the snapshot table, and the tables of snapshots that are not yet written.
    pub(in crate::images::qcow2) fn write_snapshots(
        &self,
        to: &mut Writer,
        observer: &dyn Observer,
    ) {
        let mut at = self.snapshot_table();
        for snapshot in self.snapshots.live() {
            let l1_offset = self.l1_offset(&snapshot.l1);
            let length = snapshot.entry(l1_offset).length_bytes();
            snapshot.write(l1_offset, &self.given, to.files.image.place(at, length as usize));
            at += length;
            observer.event(State::Serialise, Event::Snapshot);
            self.write_l1(to, &snapshot.l1, false, observer);
        }
    }
}

/// Writes a number in decimal, with leading zeros, in `length_bytes`.
fn write_number(out: &mut &mut [u8], number: u32, length_bytes: u16) {
    let digits = length_bytes.min(MAX_DIGITS);
    out.put_bytes(b'0', usize::from(length_bytes - digits));
    for digit in (0..u32::from(digits)).rev() {
        out.put_u8(b'0' + (number / 10u32.pow(digit) % 10) as u8);
    }
}

/// The number of digits of the largest number.
const MAX_DIGITS: u16 = 10;

/// The number of unused bytes in the last cluster: a VM state may end at any byte.
const UNUSED_BYTES: u64 = 5;

/// VM state begins at the first L1 table entry that the disk does not need.
impl Builder {
    /// Returns the number of the active disk's tables that map the disk. VM state lies in the tables after them.
    pub fn disk_tables(&self) -> usize {
        let end = self.plan.geometry.l1_entries_for(self.plan.size_bytes);
        self.active.tables().partition_point(|(index, _)| *index < end)
    }

    /// Drops the VM state of the active disk.
    pub fn drop_vm_state(&mut self) {
        self.release_tables_from(self.disk_tables());
    }

    /// Writes a VM state after the disk of `l1`, which grows as necessary. Clusters that no L1 table can reach are
    /// left out.
    ///
    /// Returns the length of the state, or `None` if the file is full. `l1` contains the tables in either case.
    pub fn save_vm_state(&mut self, l1: &mut L1, state: VmState) -> Option<u64> {
        let geometry = self.plan.geometry;
        let first = geometry.l1_entries_for(self.plan.size_bytes);
        let most = self.limits.l1_entries(&geometry);
        let mut length = 0;
        for cluster in (0..state.clusters).map(|at| at << state.spread_bits) {
            let l1_index = first + (cluster >> geometry.l2_bits());
            if l1_index >= most {
                break;
            }
            let table = match l1.get(l1_index) {
                Some(table) => table,
                None => {
                    let table = self.add_table()?;
                    l1.set(l1_index, table);
                    table
                }
            };
            l1.entries = l1.entries.max(l1_index + 1);
            let index = cluster & (geometry.l2_entries() - 1);
            let guest = GuestCluster::new((l1_index << geometry.l2_bits()) + index);
            let host = self.allocate_cluster(guest)?;
            let entry = self.data_entry(host, state.write);
            self.tables.set(table, index, entry);
            length = geometry.cluster_size.saturating_bytes(cluster + 1) - UNUSED_BYTES;
        }
        Some(length)
    }
}
