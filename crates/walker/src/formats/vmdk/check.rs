//! Checks the grains that an image stores, as QEMU does (`block/vmdk.c`, `vmdk_co_check`).
//!
//! QEMU looks up one guest offset in each grain, from the beginning of the disk on. If an extent ends inside its last
//! grain, the next offset lies behind the beginning of the next extent. So QEMU may miss the beginning of that extent,
//! and its last grain if that is cut. This check does so, too.
//!
//! The check reads a table only once, also if several entries name it. It keeps the offsets of [`MAX_SOUND_TABLES`].

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use crate::disk::limits::MAX_SOUND_TABLES;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, PIECE_BYTES, Storage};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{HoldingFile, whole_sectors};
use crate::formats::vmdk::head::ImageLayout;
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};

use super::open::{ExtentData, INDIVISIBLE, NO_DIRECTORY_ENTRY, OpenExtent, Vmdk};

/// Checks a VMDK image as `qemu-img check` does: each grain that the tables name must begin in the file of its extent.
/// It does not read the image below. The cost depends on the tables, and not on the size of the disk.
///
/// # Errors
/// The first fault of an entry; or QEMU refuses the image, `layer` lacks the file of an extent, or a read failed.
pub(super) fn check<S: Storage + ?Sized>(layer: &Layer<'_, S>) -> Result<(), MapError> {
    let vmdk = Vmdk::open_with(layer, &ImageLayout::read(layer.image)?, &())?;
    let mut sound = BTreeSet::new();
    let mut scratch = Scratch { directory: vec![0; PIECE_BYTES], table: vec![0; PIECE_BYTES] };
    let mut position = GuestOffset::ZERO;
    for extent in &vmdk.extents {
        if position >= extent.end {
            continue;
        }
        position = match &extent.data {
            ExtentData::Flat(offset) => flat(extent, *offset, position)?,
            ExtentData::Indivisible(_) => {
                return Err(MapError::Grain { guest: position, what: INDIVISIBLE });
            }
            ExtentData::Sparse(tables) => {
                let file = HoldingFile::of(extent.file);
                let offsets = LookupOffsets::new(extent, tables, position);
                let end = offsets.end();
                ExtentCheck { extent, tables, offsets, file, sound: &mut sound }
                    .check(&mut scratch)?;
                end
            }
        };
    }
    Ok(())
}

/// Checks a flat extent, and returns the offset that QEMU looks up next.
fn flat<S: Storage + ?Sized>(
    extent: &OpenExtent<S>,
    offset: HostOffset,
    position: GuestOffset,
) -> Result<GuestOffset, MapError> {
    if offset.get() >= whole_sectors(extent.file.length_bytes()) {
        let what = "the data of the extent begin past the end of its file";
        return Err(MapError::Grain { guest: position, what });
    }
    Ok(position + extent.end.saturating_distance_from(extent.start))
}

/// Buffers for pieces of tables.
struct Scratch {
    directory: Vec<u8>,
    table: Vec<u8>,
}

/// The guest offsets that QEMU looks up in an extent: one in each of these grains.
struct LookupOffsets {
    first: GuestOffset,
    grains: Range<u64>,
    grain_bytes: u64,
}

impl LookupOffsets {
    /// Returns the offsets from `first` on, which lies in the extent.
    fn new<S: Storage + ?Sized>(
        extent: &OpenExtent<S>,
        tables: &Tables,
        first: GuestOffset,
    ) -> Self {
        let grain_bytes = tables.grain_bytes();
        let start = first.saturating_distance_from(extent.start) / grain_bytes;
        let count = extent.end.saturating_distance_from(first).div_ceil(grain_bytes);
        Self { first, grains: start..start.saturating_add(count), grain_bytes }
    }

    /// Returns the offset in a grain.
    fn of(&self, grain: u64) -> GuestOffset {
        let before = grain.saturating_sub(self.grains.start);
        self.first + before.saturating_mul(self.grain_bytes)
    }

    /// Returns the offset behind the last one.
    fn end(&self) -> GuestOffset {
        self.of(self.grains.end)
    }
}

/// The check of a sparse extent.
struct ExtentCheck<'c, 's, S: Storage + ?Sized> {
    extent: &'c OpenExtent<'s, S>,
    tables: &'c Tables,
    offsets: LookupOffsets,
    /// The file of the extent.
    file: HoldingFile,
    /// Tables without a fault that were read whole: the file, and the host offset. A table that the file
    /// does not store costs little to check again, and is not kept.
    sound: &'c mut BTreeSet<(HoldingFile, HostOffset)>,
}

impl<S: Storage + ?Sized> ExtentCheck<'_, '_, S> {
    fn check(&mut self, scratch: &mut Scratch) -> Result<(), MapError> {
        match self.tables.kind {
            GrainKind::SeSparse(_) => self.directory(scratch, u64::from_le_bytes),
            GrainKind::Plain | GrainKind::Compressed { .. } => {
                self.directory(scratch, |entry| u32::from_le_bytes(entry).into())
            }
        }
    }

    /// Checks the tables that the directory names. `number` returns the number in an entry of `N` bytes.
    fn directory<const N: usize>(
        &mut self,
        scratch: &mut Scratch,
        number: impl Fn([u8; N]) -> u64,
    ) -> Result<(), MapError> {
        let Scratch { directory: piece, table: scratch } = scratch;
        let per_table = u64::from(self.tables.table_entries);
        let Range { start, end } = self.offsets.grains;
        let (from, until) = (start / per_table, end.div_ceil(per_table));
        let (file, directory) = (self.extent.file, self.tables.directory);
        let entries = u64::from(self.tables.directory_entries);
        let _ = each_entries(file, directory, from..until.min(entries), piece, |read| -> Flow {
            let Entries::Read(index, entries) = read else { return Ok(ControlFlow::Continue(())) };
            for (index, entry) in (index..).zip(entries) {
                let first = index.saturating_mul(per_table);
                let table = self.tables.table_of(number(*entry));
                if let Some(table) = table.map_err(|what| self.fault(first, what))? {
                    self.table(table, first, scratch, &number)?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match until > entries {
            true => Err(self.fault(entries.saturating_mul(per_table), NO_DIRECTORY_ENTRY)),
            false => Ok(()),
        }
    }

    /// Checks the entries of the table at `table`, the first of which names the grain `first`.
    fn table<const N: usize>(
        &mut self,
        table: HostOffset,
        first: u64,
        scratch: &mut [u8],
        number: impl Fn([u8; N]) -> u64,
    ) -> Result<(), MapError> {
        let per_table = u64::from(self.tables.table_entries);
        let from = self.offsets.grains.start.saturating_sub(first);
        let until = self.offsets.grains.end.saturating_sub(first).min(per_table);
        let is_whole = (from, until) == (0, per_table);
        if is_whole && self.sound.contains(&(self.file, table)) {
            return Ok(());
        }
        let length = whole_sectors(self.extent.file.length_bytes());
        let mut is_stored = false;
        let _ = each_entries(self.extent.file, table, from..until, scratch, |read| -> Flow {
            let Entries::Read(index, entries) = read else { return Ok(ControlFlow::Continue(())) };
            is_stored = true;
            for (index, entry) in (index..).zip(entries) {
                let what = match self.tables.grain_of(number(*entry)) {
                    Ok(Grain::At(host)) if host.get() >= length => GRAIN_PAST_END,
                    Ok(_) => continue,
                    Err(what) => what,
                };
                return Err(self.fault(first.saturating_add(index), what));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if is_whole && is_stored && self.sound.len() < MAX_SOUND_TABLES {
            self.sound.insert((self.file, table));
        }
        Ok(())
    }

    /// Returns the fault that QEMU meets in a grain, or in the first one after it.
    fn fault(&self, grain: u64, what: &'static str) -> MapError {
        MapError::Grain { guest: self.offsets.of(grain), what }
    }
}

const GRAIN_PAST_END: &str = "the grain begins past the end of the file";

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::disk::error::StorageError;

    /// The sectors of the only table, and of the directory, which the file ends in.
    const TABLE: u32 = 2;
    const DIRECTORY: u32 = 6;

    /// A file that counts the bytes that are read.
    struct Counted {
        bytes: Vec<u8>,
        read_bytes: Cell<usize>,
    }

    impl Storage for Counted {
        fn length_bytes(&self) -> u64 {
            self.bytes.length_bytes()
        }

        fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
            self.read_bytes.set(self.read_bytes.get() + into.len());
            self.bytes.read_at(offset, into)
        }
    }

    /// Returns an image of `capacity` sectors with grain tables of 512 entries. Its directory has the entries
    /// `directory`, and its only table the entries `table`.
    fn image(capacity: u64, grain: u64, directory: &[u32], table: &[u32]) -> Counted {
        let mut bytes = vec![0; DIRECTORY as usize * 512 + directory.len() * 4];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"KDMV\x01");
        put(12, &capacity.to_le_bytes());
        put(20, &grain.to_le_bytes());
        put(44, &512u32.to_le_bytes());
        put(56, &u64::from(DIRECTORY).to_le_bytes());
        put(512, b"CID=1\nparentCID=1\n");
        let numbers =
            |entries: &[u32]| entries.iter().copied().flat_map(u32::to_le_bytes).collect();
        let [directory, table]: [Vec<u8>; 2] = [numbers(directory), numbers(table)];
        put(DIRECTORY as usize * 512, &directory);
        put(TABLE as usize * 512, &table);
        Counted { bytes, read_bytes: Cell::new(0) }
    }

    fn fault_of(file: &Counted) -> Option<u64> {
        match check(&Layer::alone(file)) {
            Ok(()) => None,
            Err(MapError::Grain { guest, .. }) => Some(guest.get()),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_cost_does_not_follow_the_size() {
        // 2^24 directory entries, most of which lie past the end of the file.
        let file = image((1 << 54) - (1 << 21), 1 << 21, &[0, 0, TABLE], &[0, 1]);
        assert_eq!(fault_of(&file), None);
        assert!(file.read_bytes.get() < 600 << 10, "{:?}", file.read_bytes);
    }

    #[test]
    fn a_table_is_read_once() {
        let directory = vec![TABLE; 100_000];
        let sectors = 100_000 * 512;
        let file = image(sectors, 1, &directory, &[TABLE; 512]);
        assert_eq!(fault_of(&file), None);
        assert!(file.read_bytes.get() < 500 << 10, "{:?}", file.read_bytes);
        // An entry behind the end of the disk does not count.
        let faulty = [&[TABLE; 511][..], &[u32::MAX]].concat();
        assert_eq!(fault_of(&image(511, 1, &directory, &faulty)), None);
        assert_eq!(fault_of(&image(512, 1, &directory, &faulty)), Some(511 * 512));
        assert_eq!(fault_of(&image(sectors, 1, &directory, &faulty)), Some(511 * 512));
    }

    #[test]
    fn a_fault_of_the_directory_lies_at_its_end() {
        // The number of entries is 2^32, of which QEMU keeps the lower 32 bits.
        assert_eq!(fault_of(&image(512 << 32, 1, &[], &[])), Some(0));
        assert_eq!(fault_of(&image((512 << 32) + 1, 1, &[], &[])), Some(512 * 512));
    }
}
