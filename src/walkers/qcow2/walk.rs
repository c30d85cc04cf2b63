//! `map_extents`: emits all extents of a window, front to back, with one L2 table piece of each layer in memory at a
//! time.
//!
//! # Arithmetic
//! An L1 table has 2^22 entries at most, and an L2 table maps 2^39 bytes at most, so that no guest offset of an entry
//! saturates. Host offsets in entries have 56 bits and runs are no longer than a cluster, so that no mapping saturates
//! either. Distances are those from an earlier offset to a later one, or 0 if the window begins before a table. A
//! storage returns data from the requested range, so that none lie before their table.

use crate::formats::qcow2::layout::Layout;
use std::ops::{ControlFlow, Range};

use crate::disk::clusters::SUBCLUSTERS;
use crate::disk::extent::{Extent, Mapping, Visitor, Window};
use crate::disk::observer::{Event, Observer, Rare, State, Vital, WindowClass};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{GRAIN_BYTES, Storage, each_data};
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};

use super::disk::{Disk, LayerRef, Qcow2, Raw};
use super::lookup::{self, at_depth, checked_kind, mapping_of, raw_mapping};
use super::scratch::{TablePieces, WalkScratch};
use crate::formats::qcow2::error::{Flow, MapError};

/// Calls `visitor` with every extent of `window`, in order. Extents are maximal within the window, which is clipped to
/// the disk; an empty window has none.
///
/// If a layer leaves a range unallocated, the walk continues in the layer below, up to the end of that layer.
///
/// # Errors
/// An entry in the window's part of a table is malformed, or a read failed. The extents before it have been emitted
/// then.
pub fn map_extents<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    window: Window,
    scratch: &mut WalkScratch,
    visitor: &mut V,
) -> Result<(), MapError> {
    let range = window.clipped(disk.virtual_size_bytes());
    if O::OBSERVES {
        disk.observer.walk(class_of(&range, GuestOffset::new(disk.virtual_size_bytes())));
    }
    // `u64::MAX` stands for the end of the disk.
    let to_end = window.length_bytes == u64::MAX;
    if !to_end && window.start.checked_add(window.length_bytes).is_none() {
        disk.observer.rare(Rare::WindowOverflows);
    }
    if range.is_empty() {
        disk.observer.begin(State::WalkL1);
        disk.observer.event(State::WalkL1, Event::NothingThere);
        if window.length_bytes == 0 {
            disk.observer.rare(Rare::EmptyWindow);
        } else if !to_end {
            disk.observer.rare(Rare::WindowPastEnd);
        }
        return Ok(());
    }
    let mut sink = Sink { pending: None, visitor };
    match layer(disk, 0, range, scratch.for_layers(disk.layers()), &mut sink) {
        Ok(ControlFlow::Continue(())) => {
            let _ = sink.flush();
            Ok(())
        }
        Ok(ControlFlow::Break(())) => {
            disk.observer.event(State::WalkL1, Event::Stopped);
            Ok(())
        }
        Err(error) => {
            disk.observer.event(State::WalkL1, Event::Failed);
            disk.observer.event(State::WalkL2, Event::Failed);
            if sink.pending.is_some() {
                disk.observer.rare(Rare::ErrorAfterExtent);
            }
            let _ = sink.flush();
            Err(error)
        }
    }
}

/// Classifies a range of a disk that ends at `end`.
fn class_of(range: &Range<GuestOffset>, end: GuestOffset) -> WindowClass {
    match (range.start == GuestOffset::ZERO, range.end == end) {
        _ if range.is_empty() => WindowClass::Nothing,
        (true, true) => WindowClass::Whole,
        (true, false) => WindowClass::Beginning,
        (false, true) => WindowClass::End,
        (false, false) => WindowClass::Middle,
    }
}

/// The number of runs in one extended entry from which the walk reports a rare event.
const MANY_SPLITS: u64 = 16;

macro_rules! go_on {
    ($flow:expr) => {
        if $flow.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    };
}

/// The receiver of the pieces from the walks of all layers. It joins the pieces, in the disk's order, to extents.
struct Sink<'v, V: Visitor + ?Sized> {
    /// The extent that may still grow; it ends at the start of the next piece.
    pending: Option<Extent>,
    visitor: &'v mut V,
}

impl<V: Visitor + ?Sized> Sink<'_, V> {
    /// Adds the next piece. `mapping` is the mapping of its first byte.
    #[inline]
    fn take(&mut self, range: Range<GuestOffset>, mapping: Mapping) -> ControlFlow<()> {
        let length_bytes = range.end.saturating_distance_from(range.start);
        let next = Extent { start: range.start, length_bytes, mapping };
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

/// Walks `range` in the layer at `depth` and in those below it. `range` is not empty, and it ends at the end of the
/// layer at most. The calls nest as deeply as there are layers.
fn layer<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    depth: usize,
    range: Range<GuestOffset>,
    scratch: &mut [TablePieces],
    sink: &mut Sink<V>,
) -> Flow {
    let Some((TablePieces { l1, l2 }, scratch_below)) = scratch.split_first_mut() else {
        return Ok(ControlFlow::Continue(()));
    };
    match disk.layer(depth) {
        Some(LayerRef::Qcow2(layer)) => {
            let Range { start: position, end } = range;
            let size_below = disk.size_below(depth);
            disk.observer.begin(State::WalkL1);
            disk.observer.begin(State::WalkL2);
            Walk { disk, depth, layer, size_below, position, end, scratch_below, sink }.l1(l1, l2)
        }
        Some(LayerRef::Raw(layer)) => raw(layer, depth, range, sink, &disk.observer),
        None => Ok(ControlFlow::Continue(())),
    }
}

/// Walks a layer in which every byte lies at its guest offset: data, and holes of the file.
fn raw<S: Storage + ?Sized, V: Visitor + ?Sized>(
    layer: &Raw<S>,
    depth: usize,
    range: Range<GuestOffset>,
    sink: &mut Sink<V>,
    observer: &impl Observer,
) -> Flow {
    let mut position = range.start;
    while position < range.end {
        go_on!(sink.visitor.step());
        let from = in_place(position);
        let stored = layer.image.stored(from, in_place(range.end))?;
        // The walk must end, so each step covers at least one byte, for any answer of the storage. `position` lies
        // before the end of the range, so that one byte more fits into 64 bits.
        let end = GuestOffset::new(stored.end.get());
        let end = end.clamp(position.saturating_add(1), range.end);
        let mapping = at_depth(raw_mapping(from, stored.stored), depth);
        observer.event(State::WalkL1, mapping.event());
        go_on!(sink.take(position..end, mapping));
        position = end;
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the host offset of a guest byte in a raw layer.
fn in_place(guest: GuestOffset) -> HostOffset {
    HostOffset::new(guest.get())
}

struct Walk<'w, 's, 'v, S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> {
    disk: &'w Disk<'s, S, O>,
    depth: usize,
    layer: &'w Qcow2<'s, S>,
    /// The size of the layer below, if there is one.
    size_below: Option<u64>,
    /// All guest bytes of the window before this one are covered.
    position: GuestOffset,
    /// The window's end, at most the end of the layer.
    end: GuestOffset,
    scratch_below: &'w mut [TablePieces],
    sink: &'w mut Sink<'v, V>,
}

impl<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> Walk<'_, '_, '_, S, V, O> {
    fn l1(&mut self, l1_scratch: &mut [u8], l2_scratch: &mut [u8]) -> Flow {
        let storage = self.layer.image;
        let span_bits = self.layer.geometry().l2_span_bits();
        let span = 1 << span_bits;
        let table = self.layer.header.l1_offset;
        // The first entry maps the beginning of the disk.
        let entries = entries_of(self.position.get(), self.end.get(), span_bits);
        let range = table_range(table, entries, 8);
        go_on!(each_data(storage, range, l1_scratch, |data| -> Flow {
            go_on!(self.sink.visitor.step());
            self.disk.observer.event(State::WalkL1, Event::Piece);
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                let start = GuestOffset::new(index.saturating_mul(span));
                if start >= self.end {
                    break;
                }
                // The entry before the window's first may be read as well: grains hold two.
                if start.saturating_add(span) <= self.position {
                    continue;
                }
                if let Some(l2) = L1Entry(u64::from_be_bytes(*bytes)).table() {
                    if start > self.position {
                        self.disk.observer.event(State::WalkL1, Event::Unallocated);
                    }
                    go_on!(self.hole_until(start)?);
                    self.disk.observer.event(State::WalkL1, Event::Table);
                    self.disk.observer.begin(State::WalkL2);
                    go_on!(self.l2(l2, start, l2_scratch)?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?);
        self.hole_until(self.end)
    }

    /// Covers the rest of the window in the L2 table at `table`, which maps the disk from `start`.
    fn l2(&mut self, table: HostOffset, start: GuestOffset, scratch: &mut [u8]) -> Flow {
        let geometry = *self.layer.geometry();
        let storage = self.layer.image;
        if !geometry.cluster_size.is_aligned(table) {
            return Err(lookup::unaligned("L2 table", start.max(self.position), table));
        }
        let cluster = geometry.cluster_size.bytes();
        let end = start.saturating_add(geometry.l2_span_bytes()).min(self.end);
        let cluster_bits = geometry.cluster_size.bits();
        let skipped = self.position.saturating_distance_from(start);
        let entries = entries_of(skipped, end.saturating_distance_from(start), cluster_bits);
        let entry_bytes = geometry.l2_entry_bytes();
        let range = table_range(table, entries, entry_bytes);
        go_on!(each_data(storage, range, scratch, |data| -> Flow {
            go_on!(self.sink.visitor.step());
            self.disk.observer.event(State::WalkL2, Event::Piece);
            let skipped = data.offset.distance_from(table).unwrap_or(0) >> entry_bytes.ilog2();
            let guest = start.saturating_add(skipped.saturating_mul(cluster));
            match geometry.extended_l2 {
                false => self.standard_entries(guest, end, data.bytes),
                true => self.extended_entries(guest, end, data.bytes),
            }
        })?);
        self.hole_until(end)
    }

    /// Covers the clusters of the entries in `bytes`, the first of which begins at `guest`.
    fn standard_entries(&mut self, mut guest: GuestOffset, end: GuestOffset, bytes: &[u8]) -> Flow {
        let geometry = *self.layer.geometry();
        let cluster = geometry.cluster_size.bytes();
        for entry in bytes.as_chunks::<8>().0 {
            if guest >= end {
                break;
            }
            let next = guest.saturating_add(cluster);
            let entry = u64::from_be_bytes(*entry);
            // `hole_until` covers holes once an entry follows them.
            if entry != 0 && next > self.position {
                let asked = self.position.max(guest);
                let mapping = mapping_of(checked_kind(L2Entry(entry), &geometry, asked)?);
                go_on!(self.hole_until(guest)?);
                go_on!(self.cover(guest, next, mapping)?);
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
            let next = guest.saturating_add(cluster);
            let [word, bitmap] = *entry.as_chunks::<8>().0 else { break };
            let entry = L2Entry(u64::from_be_bytes(word));
            let bitmap = SubclusterBitmap(u64::from_be_bytes(bitmap));
            if next > self.position && (entry.0 != 0 || bitmap.0 != 0) {
                go_on!(self.hole_until(guest)?);
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
        let asked = self.position.max(guest);
        let host = match checked_kind(entry, &geometry, asked)? {
            ClusterKind::Subclusters(host) => Some(host),
            ClusterKind::UnallocatedSubclusters => None,
            kind => {
                let next = guest.saturating_add(geometry.cluster_size.bytes());
                return self.cover(guest, next, mapping_of(kind));
            }
        };
        lookup::check_bitmap(bitmap, host, asked)?;
        self.disk.observer.event(State::WalkL2, Event::Subclusters);
        let length = geometry.cell_bytes();
        let mut subcluster = 0;
        let mut splits = 0;
        while subcluster < SUBCLUSTERS {
            let run = alike(bitmap, subcluster);
            let delta = u64::from(subcluster) * length;
            let start = guest.saturating_add(delta);
            let end = start.saturating_add(u64::from(run) * length);
            if end > self.position {
                let mapping = lookup::subcluster_mapping(bitmap, host, subcluster, delta);
                go_on!(self.cover(start, end, mapping)?);
            }
            subcluster += run;
            splits += 1;
        }
        self.disk.observer.vital(Vital::Splits, splits);
        if splits >= MANY_SPLITS {
            self.disk.observer.rare(Rare::ManySplits);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Covers the guest bytes up to `until` as a hole, if they are not covered.
    #[inline]
    fn hole_until(&mut self, until: GuestOffset) -> Flow {
        if until <= self.position {
            return Ok(ControlFlow::Continue(()));
        }
        self.cover(self.position, until, Mapping::HOLE)
    }

    /// Covers the part of `start..end` that lies in the window and is not covered. `mapping` is the mapping of `start`,
    /// which is not past the position.
    #[inline(always)]
    fn cover(&mut self, start: GuestOffset, end: GuestOffset, mapping: Mapping) -> Flow {
        let range = self.position..end.min(self.end);
        if range.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let skipped = self.position.saturating_distance_from(start);
        let mapping = mapping.advanced(skipped).unwrap_or(mapping);
        self.position = range.end;
        self.disk.observer.event(State::WalkL2, mapping.event());
        match self.size_below {
            Some(size) if !mapping.present => self.cover_from_below(range, mapping, size),
            _ => Ok(self.sink.take(range, at_depth(mapping, self.depth))),
        }
    }

    /// Covers a range that this layer leaves unallocated. The layer below covers the part up to its end at `size`; the
    /// rest is the hole of this layer.
    #[inline(never)]
    fn cover_from_below(&mut self, range: Range<GuestOffset>, mapping: Mapping, size: u64) -> Flow {
        let edge = GuestOffset::new(size).clamp(range.start, range.end);
        if range.start < edge {
            self.disk.observer.event(State::WalkL2, Event::Backing);
            let there = range.start..edge;
            let (depth, scratch) = (self.depth + 1, &mut *self.scratch_below);
            let flow = layer(self.disk, depth, there, scratch, self.sink);
            go_on!(flow.map_err(MapError::below)?);
        }
        if edge == range.end {
            return Ok(ControlFlow::Continue(()));
        }
        self.disk.observer.event(State::WalkL2, Event::PastEnd);
        if range.start < edge {
            self.disk.observer.rare(Rare::BackingEnds);
        }
        let mapping =
            mapping.advanced(edge.saturating_distance_from(range.start)).unwrap_or(mapping);
        Ok(self.sink.take(edge..range.end, at_depth(mapping, self.depth)))
    }
}

/// Returns the indices of the entries of a table that map the bytes from `start` to `end`, both counted from the first
/// byte that the table maps. Each entry maps `1 << span_bits` bytes.
fn entries_of(start: u64, end: u64, span_bits: u32) -> Range<u64> {
    // Neither is past 2^63, so that the sum fits.
    start >> span_bits..(end + ((1 << span_bits) - 1)) >> span_bits
}

/// Returns the host range of entries of a table, widened to whole grains.
fn table_range(table: HostOffset, entries: Range<u64>, entry_bytes: u64) -> Range<HostOffset> {
    let start = (entries.start * entry_bytes) / GRAIN_BYTES * GRAIN_BYTES;
    let end = (entries.end * entry_bytes).next_multiple_of(GRAIN_BYTES);
    table.saturating_add(start)..table.saturating_add(end)
}

/// Returns the number of subclusters from `first` on that have the same two bits; at least 1.
fn alike(bitmap: SubclusterBitmap, first: u32) -> u32 {
    let run = |bits: u32| {
        let left = bits >> first;
        if left & 1 == 0 { left.trailing_zeros() } else { left.trailing_ones() }
    };
    run(bitmap.allocated()).min(run(bitmap.zero())).min(SUBCLUSTERS - first)
}
