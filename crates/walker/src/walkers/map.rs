//! `map_extents`: emits all extents of a window, front to back, with one piece of a table of each layer in memory at a
//! time.

use std::ops::{ControlFlow, Range};

use crate::disk::extent::{Extent, Mapping, Visitor, Window};
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::{Flow, MapError};
use crate::formats::{Cover, HoldingFile, TablePieces, at_depth, go_on};

use super::disk::{Disk, WalkScratch};
use super::host_holes::HostRun;

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
    // `u64::MAX` stands for the end of the disk.
    let to_end = window.length_bytes == u64::MAX;
    if !to_end && window.start.checked_add(window.length_bytes).is_none() {
        disk.observer.rare(Rare::WindowOverflows);
    }
    if range.is_empty() {
        let state = disk.top().walk_states().outer;
        disk.observer.begin(state);
        disk.observer.event(state, Event::NothingThere);
        if window.length_bytes == 0 {
            disk.observer.rare(Rare::EmptyWindow);
        } else if !to_end {
            disk.observer.rare(Rare::WindowPastEnd);
        }
        return Ok(());
    }
    let (file, host_run) = Default::default();
    let mut sink = Sink { pending: None, file, host_run, disk, visitor };
    match layer(0, range, scratch.for_layers(disk.layers()), &mut sink) {
        Ok(ControlFlow::Continue(())) => {
            let _ = sink.flush();
            Ok(())
        }
        Ok(ControlFlow::Break(())) => {
            disk.observer.event(disk.top().walk_states().outer, Event::Stopped);
            Ok(())
        }
        Err(error) => {
            if sink.pending.is_some() && error.is_of_image() {
                disk.observer.rare(Rare::ErrorAfterExtent);
            }
            let _ = sink.flush();
            Err(error)
        }
    }
}

/// The receiver of the pieces from the walks of all layers. It joins the pieces, in the disk's order, to extents.
struct Sink<'w, 's, S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> {
    disk: &'w Disk<'s, S, O>,
    /// The extent that may still grow; it ends at the start of the next piece.
    pending: Option<Extent>,
    /// The file that holds the end of that extent.
    file: HoldingFile,
    host_run: HostRun<'s, S>,
    visitor: &'w mut V,
}

impl<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> Sink<'_, '_, S, V, O> {
    /// Adds the next piece, which lies in `file`. `mapping` is the mapping of its first byte.
    #[inline]
    fn take(
        &mut self,
        range: Range<GuestOffset>,
        mapping: Mapping,
        file: HoldingFile,
    ) -> ControlFlow<()> {
        let length_bytes = range.end.saturating_distance_from(range.start);
        let next = Extent { start: range.start, length_bytes, mapping };
        let is_same_file = self.file == file || mapping.offset.is_none();
        self.file = file;
        match &mut self.pending {
            Some(pending)
                if is_same_file && pending.mapping.continues_as(pending.length_bytes, &mapping) =>
            {
                pending.length_bytes += length_bytes;
                ControlFlow::Continue(())
            }
            pending => match pending.replace(next) {
                Some(done) => self.emit(done),
                None => ControlFlow::Continue(()),
            },
        }
    }

    fn flush(&mut self) -> ControlFlow<()> {
        match self.pending.take() {
            Some(extent) => self.emit(extent),
            None => ControlFlow::Continue(()),
        }
    }

    /// Emits an extent that cannot grow.
    #[inline]
    fn emit(&mut self, extent: Extent) -> ControlFlow<()> {
        match self.disk.host_holes {
            false => self.visitor.extent(extent),
            true => self.disk.emit_parts(extent, &mut self.host_run, self.visitor),
        }
    }
}

/// Walks `range` in the layer at `depth` and in those below it. `range` is not empty, and it ends at the end of the
/// layer at most. The calls nest as deeply as there are layers.
fn layer<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer>(
    depth: usize,
    range: Range<GuestOffset>,
    scratch: &mut [TablePieces],
    sink: &mut Sink<S, V, O>,
) -> Flow {
    let Some((pieces, scratch_below)) = scratch.split_first_mut() else {
        return Ok(ControlFlow::Continue(()));
    };
    let disk = sink.disk;
    let Some(layer) = disk.layer(depth) else { return Ok(ControlFlow::Continue(())) };
    let (size_below, Range { start: position, end }) = (disk.size_below(depth), range);
    let states = layer.walk_states();
    let entries = states.inner;
    let file = HoldingFile::default();
    let mut covering =
        Covering { depth, size_below, position, end, file, entries, scratch_below, sink };
    let flow = layer.walk(pieces, &mut covering);
    match flow {
        Err(_) => states.each(|state| disk.observer.event(state, Event::Failed)),
        Ok(ControlFlow::Continue(())) if disk.observer.observes() && layer.is_cut_at(end) => {
            disk.observer.event(entries, Event::PastEnd);
        }
        Ok(_) => {}
    }
    flow
}

/// The walk of one layer, as the walk of the chain sees it.
struct Covering<'w, 'd, 's, S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> {
    depth: usize,
    /// The size of the layer below, if there is one.
    size_below: Option<u64>,
    /// All guest bytes of the window before this one are covered.
    position: GuestOffset,
    /// The window's end, at most the end of the layer.
    end: GuestOffset,
    /// The file that holds the data of the layer at the position.
    file: HoldingFile,
    /// The state of the walker while it reads the entries that name data.
    entries: State,
    scratch_below: &'w mut [TablePieces],
    sink: &'w mut Sink<'d, 's, S, V, O>,
}

impl<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> Cover
    for Covering<'_, '_, '_, S, V, O>
{
    type Observer = O;

    #[inline]
    fn observer(&self) -> &O {
        &self.sink.disk.observer
    }

    #[inline]
    fn position(&self) -> GuestOffset {
        self.position
    }

    #[inline]
    fn end(&self) -> GuestOffset {
        self.end
    }

    #[inline]
    fn step(&mut self) -> ControlFlow<()> {
        self.sink.visitor.step()
    }

    #[inline(always)]
    fn cover(&mut self, start: GuestOffset, end: GuestOffset, mapping: Mapping) -> Flow {
        let range = self.position..end.min(self.end);
        if range.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let skipped = self.position.saturating_distance_from(start);
        let mapping = mapping.advanced(skipped).unwrap_or(mapping);
        self.position = range.end;
        self.observer().event(self.entries, mapping.event());
        match self.size_below {
            Some(size) if !mapping.present => self.cover_from_below(range, mapping, size),
            _ => Ok(self.sink.take(range, at_depth(mapping, self.depth), self.file)),
        }
    }

    fn set_file(&mut self, file: HoldingFile) {
        self.file = file;
    }

    #[inline]
    fn put(&mut self, end: GuestOffset, mapping: Mapping) -> ControlFlow<()> {
        let range = self.position..end;
        self.position = end;
        self.sink.take(range, at_depth(mapping, self.depth), self.file)
    }
}

impl<S: Storage + ?Sized, V: Visitor + ?Sized, O: Observer> Covering<'_, '_, '_, S, V, O> {
    /// Covers a range that this layer leaves unallocated. The layer below covers the part up to its end at `size`; the
    /// rest is the hole of this layer.
    #[inline(never)]
    fn cover_from_below(&mut self, range: Range<GuestOffset>, mapping: Mapping, size: u64) -> Flow {
        let edge = GuestOffset::new(size).clamp(range.start, range.end);
        if range.start < edge {
            self.observer().event(self.entries, Event::Backing);
            let there = range.start..edge;
            let (depth, scratch) = (self.depth + 1, &mut *self.scratch_below);
            let flow = layer(depth, there, scratch, self.sink);
            go_on!(flow.map_err(MapError::below)?);
        }
        if edge == range.end {
            return Ok(ControlFlow::Continue(()));
        }
        self.observer().event(self.entries, Event::PastEnd);
        if range.start < edge {
            self.observer().rare(Rare::BackingEnds);
        }
        let mapping =
            mapping.advanced(edge.saturating_distance_from(range.start)).unwrap_or(mapping);
        Ok(self.sink.take(edge..range.end, at_depth(mapping, self.depth), self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::storage::Layer;

    /// Returns an image of 64 clusters of 1 KiB, with these entries of its L2 table.
    fn image(entries: &[(usize, u64)], backing_name_bytes: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"QFI\xfb");
        put(4, &2_u32.to_be_bytes());
        put(8, &u64::from(100 * backing_name_bytes).to_be_bytes());
        put(16, &backing_name_bytes.to_be_bytes());
        put(20, &10_u32.to_be_bytes());
        put(24, &(64_u64 << 10).to_be_bytes());
        put(36, &1_u32.to_be_bytes());
        put(40, &1024_u64.to_be_bytes());
        put(48, &3072_u64.to_be_bytes());
        put(56, &1_u32.to_be_bytes());
        put(100, b"b");
        put(1024, &2048_u64.to_be_bytes());
        for (index, entry) in entries {
            put(2048 + 8 * index, &entry.to_be_bytes());
        }
        bytes
    }

    /// The differential campaign found that extents of the lower image were lost: QEMU prints them.
    #[test]
    fn a_malformed_entry_hides_no_extent_of_the_layer_below() {
        let lower = image(&[(3, 4096), (5, 5120)], 0);
        let top = image(&[(0, 6144), (40, 512)], 1);
        let layers = [&top, &lower].map(|bytes| Layer::alone(bytes.as_slice()));
        let disk = Disk::open(&layers).unwrap();
        let mut extents = Vec::new();
        let mut keep = |extent: Extent| {
            extents.push((
                extent.start.get() >> 10,
                extent.length_bytes >> 10,
                extent.mapping.depth,
            ));
            ControlFlow::Continue(())
        };
        let walked = map_extents(&disk, Window::ALL, &mut WalkScratch::new(), &mut keep);
        assert!(walked.unwrap_err().to_string().contains("not on a cluster boundary"));
        assert_eq!(extents, [(0, 1, 0), (1, 2, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1), (6, 34, 1)]);
    }
}
