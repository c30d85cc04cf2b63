//! Walks the tables of one layer, with one piece of the L1 table and one of an L2 table in memory at a time.
//!
//! # Arithmetic
//! An L1 table has 2^22 entries at most, and an L2 table maps 2^39 bytes at most, so that no guest offset of an entry
//! saturates. Host offsets in entries have 56 bits and runs are no longer than a cluster, so that no mapping saturates
//! either. Distances are those from an earlier offset to a later one, or 0 if the window begins before a table. A
//! storage returns data from the requested range, so that none lie before their table.

use std::ops::{ControlFlow, Range};

use crate::disk::clusters::SUBCLUSTERS;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{GRAIN_BYTES, Storage, each_data};
use crate::formats::error::Flow;
use crate::formats::layer::{Cover, entries_of, go_on};
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout, SubclusterBitmap};

use super::{Qcow2, check_bitmap, checked_kind, mapping_of, subcluster_mapping, unaligned};

/// The number of runs in one extended entry from which the walk reports a rare event.
const MANY_SPLITS: u64 = 16;

/// The walk of one layer.
pub(crate) struct Walk<'w, 's, S: Storage + ?Sized, C: Cover> {
    pub(crate) layer: &'w Qcow2<'s, S>,
    pub(crate) cover: &'w mut C,
}

impl<S: Storage + ?Sized, C: Cover> Walk<'_, '_, S, C> {
    /// Walks the L1 table. `l1_scratch` and `l2_scratch` hold pieces of tables.
    pub(crate) fn l1(&mut self, l1_scratch: &mut [u8], l2_scratch: &mut [u8]) -> Flow {
        let storage = self.layer.image;
        let span_bits = self.layer.geometry().l2_span_bits();
        let span = 1 << span_bits;
        let table = self.layer.header.l1_offset;
        // The first entry maps the beginning of the disk.
        let entries = entries_of(self.cover.position().get(), self.cover.end().get(), span_bits);
        // The table of a snapshot may be too short for the disk; see `use_table_of_snapshot`.
        let table_end = entries.end.min(self.layer.header.l1_entries.into());
        let range = table_range(table, entries.start.min(table_end)..table_end, 8);
        go_on!(each_data(storage, range, l1_scratch, |data| -> Flow {
            go_on!(self.cover.step());
            self.cover.observer().event(State::WalkL1, Event::Piece);
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                let start = GuestOffset::new(index.saturating_mul(span));
                // The entry after the table's last may be read as well: grains hold two.
                if start >= self.cover.end() || index >= table_end {
                    break;
                }
                // The entry before the window's first may be read as well.
                if start + span <= self.cover.position() {
                    continue;
                }
                if let Some(l2) = L1Entry(u64::from_be_bytes(*bytes)).table() {
                    if start > self.cover.position() {
                        self.cover.observer().event(State::WalkL1, Event::Unallocated);
                    }
                    go_on!(self.cover.hole_until(start)?);
                    self.cover.observer().event(State::WalkL1, Event::Table);
                    self.cover.observer().begin(State::WalkL2);
                    go_on!(self.l2(l2, start, l2_scratch)?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?);
        self.cover.hole_until(self.cover.end())
    }

    /// Covers the rest of the window in the L2 table at `table`, which maps the disk from `start`.
    fn l2(&mut self, table: HostOffset, start: GuestOffset, scratch: &mut [u8]) -> Flow {
        let geometry = *self.layer.geometry();
        let storage = self.layer.image;
        if !geometry.cluster_size.is_aligned(table) {
            return Err(unaligned("L2 table", start.max(self.cover.position()), table));
        }
        let cluster = geometry.cluster_size.bytes();
        let end = (start + geometry.l2_span_bytes()).min(self.cover.end());
        let cluster_bits = geometry.cluster_size.bits();
        let skipped = self.cover.position().saturating_distance_from(start);
        let entries = entries_of(skipped, end.saturating_distance_from(start), cluster_bits);
        let entry_bytes = geometry.l2_entry_bytes();
        let range = table_range(table, entries, entry_bytes);
        go_on!(each_data(storage, range, scratch, |data| -> Flow {
            go_on!(self.cover.step());
            self.cover.observer().event(State::WalkL2, Event::Piece);
            let skipped = data.offset.distance_from(table).unwrap_or(0) >> entry_bytes.ilog2();
            let guest = start + skipped.saturating_mul(cluster);
            match geometry.extended_l2 {
                false => self.standard_entries(guest, end, data.bytes),
                true => self.extended_entries(guest, end, data.bytes),
            }
        })?);
        self.cover.hole_until(end)
    }

    /// Covers the clusters of the entries in `bytes`, the first of which begins at `guest`.
    fn standard_entries(&mut self, mut guest: GuestOffset, end: GuestOffset, bytes: &[u8]) -> Flow {
        let geometry = *self.layer.geometry();
        let cluster = geometry.cluster_size.bytes();
        for entry in bytes.as_chunks::<8>().0 {
            if guest >= end {
                break;
            }
            let next = guest + cluster;
            let entry = u64::from_be_bytes(*entry);
            // `hole_until` covers holes once an entry follows them.
            if entry != 0 && next > self.cover.position() {
                // The layer below covers the hole even if the entry is malformed.
                go_on!(self.cover.hole_until(guest)?);
                let asked = self.cover.position().max(guest);
                let mapping = mapping_of(checked_kind(L2Entry(entry), &geometry, asked)?);
                go_on!(self.cover.cover(guest, next, mapping)?);
            }
            guest = next;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn extended_entries(&mut self, mut guest: GuestOffset, end: GuestOffset, bytes: &[u8]) -> Flow {
        let geometry = *self.layer.geometry();
        let cluster = geometry.cluster_size.bytes();
        for entry in bytes.as_chunks::<16>().0 {
            if guest >= end {
                break;
            }
            let next = guest + cluster;
            let [word, bitmap] = *entry.as_chunks::<8>().0 else { break };
            let entry = L2Entry(u64::from_be_bytes(word));
            let bitmap = SubclusterBitmap(u64::from_be_bytes(bitmap));
            if next > self.cover.position() && (entry.0 != 0 || bitmap.0 != 0) {
                go_on!(self.cover.hole_until(guest)?);
                go_on!(self.extended_cluster(guest, entry, bitmap)?);
            }
            guest = next;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn extended_cluster(
        &mut self,
        guest: GuestOffset,
        entry: L2Entry,
        bitmap: SubclusterBitmap,
    ) -> Flow {
        let geometry = *self.layer.geometry();
        let asked = self.cover.position().max(guest);
        let host = match checked_kind(entry, &geometry, asked)? {
            ClusterKind::Subclusters(host) => Some(host),
            ClusterKind::UnallocatedSubclusters => None,
            kind => {
                let next = guest + geometry.cluster_size.bytes();
                return self.cover.cover(guest, next, mapping_of(kind));
            }
        };
        check_bitmap(bitmap, host, asked)?;
        self.cover.observer().event(State::WalkL2, Event::Subclusters);
        let length = geometry.cell_bytes();
        let mut subcluster = 0;
        let mut splits = 0;
        while subcluster < SUBCLUSTERS {
            let run = alike(bitmap, subcluster);
            let delta = u64::from(subcluster) * length;
            let start = guest + delta;
            let end = start + u64::from(run) * length;
            if end > self.cover.position() {
                let mapping = subcluster_mapping(bitmap, host, subcluster, delta);
                go_on!(self.cover.cover(start, end, mapping)?);
            }
            subcluster += run;
            splits += 1;
        }
        self.cover.observer().vital(Vital::Splits, splits);
        if splits >= MANY_SPLITS {
            self.cover.observer().rare(Rare::ManySplits);
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the host range of entries of a table, widened to whole grains.
fn table_range(table: HostOffset, entries: Range<u64>, entry_bytes: u64) -> Range<HostOffset> {
    let start = (entries.start * entry_bytes) / GRAIN_BYTES * GRAIN_BYTES;
    let end = (entries.end * entry_bytes).next_multiple_of(GRAIN_BYTES);
    table + start..table + end
}

/// Returns the number of subclusters from `first` on that have the same two bits; at least 1.
fn alike(bitmap: SubclusterBitmap, first: u32) -> u32 {
    let run = |bits: u32| {
        let left = bits >> first;
        if left & 1 == 0 { left.trailing_zeros() } else { left.trailing_ones() }
    };
    run(bitmap.allocated()).min(run(bitmap.zero())).min(SUBCLUSTERS - first)
}
