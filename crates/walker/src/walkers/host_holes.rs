//! Host holes: data that lie in holes of the file that stores them. The image says that there are data; the file system
//! knows that they are zeros.

use std::ops::{ControlFlow, Range};

use crate::disk::error::StorageError;
use crate::disk::extent::{Extent, Mapping, MappingStatus, Visitor};
use crate::disk::observer::Observer;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Storage, Stored};

use crate::formats::OpenLayer;

use super::disk::Disk;

impl<'s, S: Storage + ?Sized, O: Observer> Disk<'s, S, O> {
    /// Makes walks and look-ups report data in holes of the host file, and past its end, as zeros, too. Extents are cut
    /// at the edges of these holes.
    ///
    /// `qemu-img map` does so for fixed disks, for flat extents, and for qcow2 images whose files take far
    /// less space than their counts say, such as those with `preallocation=metadata` (QEMU
    /// `block/qcow2-refcount.c`, `qcow2_detect_metadata_preallocation`). This asks the storages
    /// ([`Storage::stored`] and [`Storage::allocated_bytes`]), so that the answers do not depend on the bytes of the
    /// images alone.
    pub fn with_host_holes(mut self) -> Self {
        self.host_holes = true;
        self.layers_mut().for_each(OpenLayer::decide_host_holes);
        self
    }

    /// Adds the zero flag to the mapping of a guest byte in a host hole.
    pub(super) fn with_zero_flag(&self, guest: GuestOffset, mapping: Mapping) -> Mapping {
        let stored = |(file, from): (&S, HostOffset)| {
            file.stored(from, from + 1).map(|stored| stored.stored)
        };
        match self.asked(guest, &mapping).map(stored) {
            Some(Ok(false)) => Mapping { zero: true, ..mapping },
            _ => mapping,
        }
    }

    /// Emits an extent in parts, cut at the edges of host holes.
    #[inline(never)]
    pub(super) fn emit_parts<V: Visitor + ?Sized>(
        &self,
        extent: Extent,
        run: &mut HostRun<'s, S>,
        visitor: &mut V,
    ) -> ControlFlow<()> {
        let Some((file, from)) = self.asked(extent.start, &extent.mapping) else {
            return visitor.extent(extent);
        };
        let mut done = 0;
        while done < extent.length_bytes {
            let (at, end) = (from + done, from + extent.length_bytes);
            let Ok(stored) = run.stored(file, at, end) else {
                // Like QEMU, this ignores errors.
                return visitor.extent(part(&extent, done, extent.length_bytes, true));
            };
            // Each step covers at least one byte, for any answer of the storage.
            let next = stored.end.clamp(at + 1, end).saturating_distance_from(from);
            if visitor.extent(part(&extent, done, next, stored.stored)).is_break() {
                return ControlFlow::Break(());
            }
            done = next;
        }
        ControlFlow::Continue(())
    }

    /// Returns the file that QEMU asks for holes under a guest byte, and the byte's host offset there.
    fn asked(&self, guest: GuestOffset, mapping: &Mapping) -> Option<(&'s S, HostOffset)> {
        let layer = match mapping.status() {
            MappingStatus::Normal => self.layer(usize::try_from(mapping.depth).ok()?)?,
            _ => return None,
        };
        // A walk of a raw layer asks the file in any case.
        layer.file_with_holes(guest).zip(mapping.offset)
    }
}

/// The last known run of data, or of a hole, in a host file. The extents of a fragmented image lie in few runs: to ask
/// the file system about each extent would take most of the time of a walk.
#[derive(Debug)]
pub(super) struct HostRun<'s, S: ?Sized> {
    file: Option<&'s S>,
    range: Range<HostOffset>,
    is_stored: bool,
}

impl<S: ?Sized> Default for HostRun<'_, S> {
    fn default() -> Self {
        Self { file: None, range: HostOffset::ZERO..HostOffset::ZERO, is_stored: false }
    }
}

impl<'s, S: Storage + ?Sized> HostRun<'s, S> {
    /// Returns what [`Storage::stored`] answers about `from..until`.
    fn stored(
        &mut self,
        file: &'s S,
        from: HostOffset,
        until: HostOffset,
    ) -> Result<Stored, StorageError> {
        let is_same = self.file.is_some_and(|known| std::ptr::addr_eq(known, file));
        if !is_same || !self.range.contains(&from) {
            let length = HostOffset::new(file.length_bytes());
            let Stored { stored, end } = file.stored(from, until.max(length))?;
            // Nothing is stored behind the end of the file, so a hole that reaches it has no end.
            let is_endless = !stored && end >= length;
            let end = if is_endless { HostOffset::new(u64::MAX) } else { end };
            *self = Self { file: Some(file), range: from..end, is_stored: stored };
        }
        Ok(Stored { stored: self.is_stored, end: self.range.end.min(until) })
    }
}

/// Returns the bytes `from..end` of an extent, both counted from its start.
fn part(extent: &Extent, from: u64, end: u64, stored: bool) -> Extent {
    let mapping = extent.mapping.advanced(from).unwrap_or(extent.mapping);
    Extent {
        start: extent.start + from,
        length_bytes: end.saturating_sub(from),
        mapping: Mapping { zero: !stored, ..mapping },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A file of three runs: 4 KiB of data, a hole, and 4 KiB of data.
    #[derive(Default)]
    struct ThreeRuns {
        asked: Cell<u32>,
    }

    impl Storage for ThreeRuns {
        fn length_bytes(&self) -> u64 {
            3 * 4096
        }

        fn read_at(&self, _offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
            into.fill(0);
            Ok(())
        }

        fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
            self.asked.set(self.asked.get() + 1);
            let run = from.get() / 4096;
            let end = if run < 3 { HostOffset::new((run + 1) * 4096) } else { until };
            Ok(Stored { stored: run == 0 || run == 2, end: end.min(until) })
        }
    }

    #[test]
    fn a_file_is_asked_once_for_each_run() {
        let (files, mut run) = ([ThreeRuns::default(), ThreeRuns::default()], HostRun::default());
        for at in (0..4 * 4096).step_by(512) {
            let range = HostOffset::new(at)..HostOffset::new(at + 512);
            let found = run.stored(&files[0], range.start, range.end).unwrap();
            assert_eq!(
                found,
                Stored { stored: at / 4096 % 2 == 0 && at < 3 * 4096, end: range.end }
            );
        }
        // The hole behind the end of the file is a run, too.
        assert_eq!(files[0].asked.get(), 3 + 1);
        // A longer range ends with its run, and another file has other runs.
        let whole = HostOffset::ZERO..HostOffset::new(4 * 4096);
        let found = run.stored(&files[1], whole.start, whole.end).unwrap();
        assert_eq!(found, Stored { stored: true, end: HostOffset::new(4096) });
        assert_eq!(files[1].asked.get(), 1);
    }

    /// A file that ends with a hole.
    struct HoleAtEnd;

    impl Storage for HoleAtEnd {
        fn length_bytes(&self) -> u64 {
            4096
        }

        fn read_at(&self, _offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
            into.fill(0);
            Ok(())
        }

        fn stored(&self, _from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
            Ok(Stored { stored: false, end: until })
        }
    }

    #[test]
    fn the_end_of_a_file_does_not_end_a_hole() {
        let mut run = HostRun::default();
        for range in [0..512, 2048..8192, 8192..1 << 40] {
            let (from, until) = (HostOffset::new(range.start), HostOffset::new(range.end));
            let found = run.stored(&HoleAtEnd, from, until).unwrap();
            assert_eq!(found, Stored { stored: false, end: until });
        }
    }
}
