//! `map_extents`: all extents of a window, front to back, one L2 table piece in memory at a time.

use std::ops::{ControlFlow, Range};

use crate::extent::{Extent, Mapping, Visitor, Window};
use crate::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};
use crate::qcow2::units::{GuestOffset, HostOffset, SUBCLUSTERS};
use crate::storage::{GRAIN_BYTES, Storage, each_data};

use super::lookup::{self, checked_kind, mapping_of};
use super::{Disk, MapError, Scratch};

/// Calls `visitor` with every extent of `window`, in order. Extents are maximal within the window,
/// which is clipped to the disk; an empty window has none.
///
/// # Errors
/// A malformed entry in the window's part of a table, or a failing read. What lies before it has been
/// emitted then.
pub fn map_extents<S: Storage + ?Sized, V: Visitor + ?Sized>(
    disk: &Disk<S>,
    window: Window,
    scratch: &mut Scratch,
    visitor: &mut V,
) -> Result<(), MapError> {
    let Range { start, end } = window.clipped(disk.virtual_size_bytes());
    if start >= end {
        return Ok(());
    }
    let mut walk = Walk { disk, position: start, end, pending: None, visitor };
    match walk.l1(&mut scratch.l1, &mut scratch.l2) {
        Ok(ControlFlow::Continue(())) => {
            let _ = walk.flush();
            Ok(())
        }
        Ok(ControlFlow::Break(())) => Ok(()),
        Err(error) => {
            let _ = walk.flush();
            Err(error)
        }
    }
}

/// Whether the walk goes on.
type Flow = Result<ControlFlow<()>, MapError>;

macro_rules! go_on {
    ($flow:expr) => {
        if $flow.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    };
}

struct Walk<'w, 's, S: Storage + ?Sized, V: Visitor + ?Sized> {
    disk: &'w Disk<'s, S>,
    /// All guest bytes of the window before this one are covered.
    position: u64,
    /// The window's end, at most the end of the disk.
    end: u64,
    /// The extent that may still grow; it ends at `position`.
    pending: Option<Extent>,
    visitor: &'w mut V,
}

impl<S: Storage + ?Sized, V: Visitor + ?Sized> Walk<'_, '_, S, V> {
    fn l1(&mut self, l1_scratch: &mut [u8], l2_scratch: &mut [u8]) -> Flow {
        let storage = self.disk.storage;
        let span_bits = self.disk.geometry().l2_span_bits();
        let span = 1 << span_bits;
        let table = self.disk.header().l1_offset;
        let entries = entries_of(self.position, self.end, span_bits);
        let range = table_range(table, entries, 8);
        go_on!(each_data(storage, range, l1_scratch, |data| -> Flow {
            go_on!(self.visitor.step());
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                let start = index.saturating_mul(span);
                if start >= self.end {
                    break;
                }
                // The entry before the window's first may come along: grains hold two.
                if start.saturating_add(span) <= self.position {
                    continue;
                }
                if let Some(l2) = L1Entry(u64::from_be_bytes(*bytes)).table() {
                    go_on!(self.hole_until(start));
                    go_on!(self.l2(l2, start, l2_scratch)?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?);
        Ok(self.hole_until(self.end))
    }

    /// Covers what is left of the window in the L2 table at `table`, which maps the disk from `start`.
    fn l2(&mut self, table: HostOffset, start: u64, scratch: &mut [u8]) -> Flow {
        let geometry = *self.disk.geometry();
        let storage = self.disk.storage;
        if table.get() & geometry.cluster_size.mask() != 0 {
            return Err(lookup::unaligned("L2 table", start.max(self.position), table));
        }
        let cluster = geometry.cluster_size.bytes();
        let end = start.saturating_add(geometry.l2_span_bytes()).min(self.end);
        let cluster_bits = geometry.cluster_size.bits();
        let entries = entries_of(self.position.saturating_sub(start), end - start, cluster_bits);
        let entry_bytes = geometry.l2_entry_bytes();
        let range = table_range(table, entries, entry_bytes);
        go_on!(each_data(storage, range, scratch, |data| -> Flow {
            go_on!(self.visitor.step());
            let skipped = data.offset.distance_from(table).unwrap_or(0) >> entry_bytes.ilog2();
            let guest = start.saturating_add(skipped.saturating_mul(cluster));
            match geometry.extended_l2 {
                false => self.standard_entries(guest, end, data.bytes),
                true => self.extended_entries(guest, end, data.bytes),
            }
        })?);
        Ok(self.hole_until(end))
    }

    /// Covers the clusters of the entries in `bytes`, the first of which begins at `guest`.
    fn standard_entries(&mut self, mut guest: u64, end: u64, bytes: &[u8]) -> Flow {
        let geometry = *self.disk.geometry();
        let cluster = geometry.cluster_size.bytes();
        for entry in bytes.as_chunks::<8>().0 {
            if guest >= end {
                break;
            }
            let next = guest.saturating_add(cluster);
            let entry = u64::from_be_bytes(*entry);
            // Holes are covered when something follows them.
            if entry != 0 && next > self.position {
                let asked = self.position.max(guest);
                let mapping = mapping_of(checked_kind(L2Entry(entry), &geometry, asked)?);
                go_on!(self.hole_until(guest));
                go_on!(self.cover(guest, next, mapping));
            }
            guest = next;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn extended_entries(&mut self, mut guest: u64, end: u64, bytes: &[u8]) -> Flow {
        let geometry = *self.disk.geometry();
        let cluster = geometry.cluster_size.bytes();
        for entry in bytes.as_chunks::<16>().0 {
            if guest >= end {
                break;
            }
            let next = guest.saturating_add(cluster);
            let [word, bitmap] = *entry.as_chunks::<8>().0 else { break };
            let entry = L2Entry(u64::from_be_bytes(word));
            let bitmap = SubclusterBitmap(u64::from_be_bytes(bitmap));
            if next > self.position && (entry.0 != 0 || bitmap.0 != 0) {
                go_on!(self.hole_until(guest));
                go_on!(self.extended_cluster(guest, entry, bitmap)?);
            }
            guest = next;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn extended_cluster(&mut self, guest: u64, entry: L2Entry, bitmap: SubclusterBitmap) -> Flow {
        let geometry = *self.disk.geometry();
        let asked = self.position.max(guest);
        let host = match checked_kind(entry, &geometry, asked)? {
            ClusterKind::Subclusters(host) => Some(host),
            ClusterKind::UnallocatedSubclusters => None,
            kind => {
                let next = guest.saturating_add(geometry.cluster_size.bytes());
                return Ok(self.cover(guest, next, mapping_of(kind)));
            }
        };
        lookup::check_bitmap(bitmap, host, asked)?;
        let length = geometry.cell_bytes();
        let mut subcluster = 0;
        while subcluster < SUBCLUSTERS {
            let run = alike(bitmap, subcluster);
            let delta = u64::from(subcluster) * length;
            let start = guest.saturating_add(delta);
            let end = start.saturating_add(u64::from(run) * length);
            if end > self.position {
                let mapping = lookup::subcluster_mapping(bitmap, host, subcluster, delta);
                go_on!(self.cover(start, end, mapping));
            }
            subcluster += run;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Covers the guest bytes up to `until` as a hole, where they are not covered.
    #[inline]
    fn hole_until(&mut self, until: u64) -> ControlFlow<()> {
        if until <= self.position {
            return ControlFlow::Continue(());
        }
        self.cover(self.position, until, Mapping::HOLE)
    }

    /// Covers what is left of `start..end` in the window. `mapping` is that of `start`, which is not
    /// past the position.
    #[inline]
    fn cover(&mut self, start: u64, end: u64, mapping: Mapping) -> ControlFlow<()> {
        let end = end.min(self.end);
        let Some(length_bytes) = end.checked_sub(self.position).filter(|length| *length > 0) else {
            return ControlFlow::Continue(());
        };
        // A host offset has 56 bits and a cluster 21: this cannot overflow.
        let mapping = mapping.advanced(self.position.saturating_sub(start)).unwrap_or(mapping);
        let next = Extent { start: GuestOffset::new(self.position), length_bytes, mapping };
        self.position = end;
        match &mut self.pending {
            Some(pending) if pending.mapping.continues_as(pending.length_bytes, &mapping) => {
                pending.length_bytes += length_bytes;
                ControlFlow::Continue(())
            }
            pending => match pending.replace(next) {
                Some(done) => self.visitor.extent(done),
                None => ControlFlow::Continue(()),
            },
        }
    }

    fn flush(&mut self) -> ControlFlow<()> {
        match self.pending.take() {
            Some(extent) => self.visitor.extent(extent),
            None => ControlFlow::Continue(()),
        }
    }
}

/// The entries of a table that map `start..end`, where each maps `1 << span_bits` bytes.
fn entries_of(start: u64, end: u64, span_bits: u32) -> Range<u64> {
    // Neither is past 2^63, so that the sum fits.
    start >> span_bits..(end + ((1 << span_bits) - 1)) >> span_bits
}

/// Where entries of a table lie, widened to whole grains.
fn table_range(table: HostOffset, entries: Range<u64>, entry_bytes: u64) -> Range<HostOffset> {
    let start = (entries.start * entry_bytes) / GRAIN_BYTES * GRAIN_BYTES;
    let end = (entries.end * entry_bytes).next_multiple_of(GRAIN_BYTES);
    table.saturating_add(start)..table.saturating_add(end)
}

/// How many subclusters from `first` on have the same two bits; at least 1.
fn alike(bitmap: SubclusterBitmap, first: u32) -> u32 {
    let run = |bits: u32| {
        let left = bits >> first;
        if left & 1 == 0 { left.trailing_zeros() } else { left.trailing_ones() }
    };
    run(bitmap.allocated()).min(run(bitmap.zero())).min(SUBCLUSTERS - first)
}
