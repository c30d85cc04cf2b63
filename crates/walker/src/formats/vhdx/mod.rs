//! The VHDX format: headers, region table, metadata, block allocation table and log. All numbers are little-endian.
//! QEMU does not distinguish dynamic and fixed disks. It refuses a disk with a parent, and one whose log has to be
//! replayed.

pub mod anatomy;
pub mod block_table;
pub mod constants;
pub mod header;
pub mod log;
pub mod metadata;
pub mod region_table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{ControlFlow, Range};

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage, read_array};
use crate::formats::Tables as GrainTables;
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::entries::{EntryRun, block_reads, each_entries, mapping_of};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, FormatLayer, Named, OPEN_PIECE_BYTES, ProbedBytes, TablePieces, WalkStates, entries_of,
    go_on,
};
use crate::formats::vhdx::anatomy::spelled;
use crate::formats::vhdx::block_table::{
    BlockState, BlockTable, STATE_MASK, STATE_UNDEFINED, STATE_UNMAPPED, each_fault,
};
use crate::formats::vhdx::constants::{FILE_SIGNATURE, REGION_TABLE_OFFSET, rare};
use crate::formats::vhdx::header::{HeaderChoice, LesserHeader, VhdxHeader};
use crate::formats::vhdx::log::check_log;
use crate::formats::vhdx::metadata::MetadataTable;
use crate::formats::vhdx::region_table::{Region, RegionTable};

/// An open VHDX image.
#[derive(Debug)]
pub(crate) struct Vhdx<'s, S: Storage + ?Sized> {
    image: &'s S,
    table: BlockTable,
    /// If false, walks and look-ups report the whole disk as data, as QEMU's driver does.
    reports_blocks: bool,
}

impl<'s, S: Storage + ?Sized> Vhdx<'s, S> {
    /// Opens the image, with the checks that QEMU makes at an open for reading only (`block/vhdx.c`, `vhdx_open`), and
    /// calls `take` with each fault of a stored block.
    ///
    /// # Errors
    /// `take` returned an error, QEMU refuses the image for another reason, or a read failed.
    fn open_reporting(
        image: &'s S,
        observer: &impl Observer,
        take: impl FnMut(MapError) -> Result<(), MapError>,
    ) -> Result<Self, MapError> {
        if read_array(image, HostOffset::ZERO)? != FILE_SIGNATURE {
            let what = "the file does not begin with 'vhdxfile'";
            return Err(MapError::NotImage { format: "vhdx", what });
        }
        let (header, choice) = VhdxHeader::read_chosen(image)?;
        report_choice(choice, observer);
        let mut scratch = [0; OPEN_PIECE_BYTES];
        if let Some(log) = header.log()? {
            observer.event(State::Open, Event::Log);
            observer.rare(rare::LOG);
            check_log(image, &log, &mut scratch)?;
        }
        let log = Region::new(header.log_offset, header.log_length_bytes);
        let place = HostOffset::new(REGION_TABLE_OFFSET);
        let RegionTable { bat: (table, length_bytes), metadata_offset, regions } =
            RegionTable::read(image, place, log)?;
        observer.event(State::Open, Event::Directory);
        let metadata =
            MetadataTable::read(image, metadata_offset)?.values(image, metadata_offset)?;
        observer.event(State::Open, Event::Metadata);
        let table = BlockTable::new(table, length_bytes, &metadata)?;
        each_fault(image, &table, &regions, &mut scratch, take)?;
        observer.event(State::Open, Event::Table);
        Ok(Self { image, table, reports_blocks: true })
    }
}

/// Reports which header counts.
fn report_choice(choice: HeaderChoice, observer: &impl Observer) {
    let event = if choice.is_second { Event::SecondHeader } else { Event::Header };
    observer.event(State::Open, event);
    if choice.is_second {
        observer.rare(rare::SECOND_HEADER);
    }
    match choice.other {
        LesserHeader::Invalid => observer.rare(rare::SINGLE_HEADER),
        LesserHeader::Equal => observer.rare(rare::EQUAL_HEADERS),
        LesserHeader::Older => {}
    }
}

/// The mapping of the whole disk in QEMU, whose driver does not report blocks.
const ALL_DATA: Mapping = Mapping { present: true, zero: false, data: true, ..Mapping::HOLE };

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vhdx<'s, S> {
    type Buffers = ();

    const STATES: WalkStates =
        WalkStates { outer: State::WalkBlockStates, inner: State::WalkBlockStates };

    const PARTS: &'static [Part] = &[Part::Header, Part::Table, Part::Directory, Part::Metadata];

    const RARE_EVENTS: &'static [Rare] = rare::ALL;

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        first_bytes.starts_with(&FILE_SIGNATURE)
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        Ok((Self::open_reporting(layer.image, observer, Err)?, None))
    }

    fn spelled(part: Part, name: &str, value: u64, _tables: Option<&GrainTables>) -> String {
        spelled(part, name, value)
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy.read_vhdx(image)
    }

    /// Reports stored blocks that do not lie in the file, or that overlap another part of it (QEMU `block/vhdx.c`,
    /// `vhdx_co_check`).
    fn check(
        layer: &Layer<'s, S>,
        report: &mut dyn FnMut(&dyn fmt::Display),
    ) -> Option<Result<(), MapError>> {
        let opened = Self::open_reporting(layer.image, &(), |fault| {
            report(&fault);
            Ok(())
        });
        Some(opened.map(drop))
    }

    fn size_bytes(&self) -> u64 {
        self.table.size_bytes
    }

    fn block_bytes(&self) -> Option<u64> {
        Some(self.table.block_bytes.into())
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkBlockStates);
        if !self.reports_blocks {
            go_on!(cover.step());
            return Ok(cover.put(cover.end(), ALL_DATA));
        }
        let (table, position) = (&self.table, cover.position().get());
        let blocks = entries_of(position, cover.end().get(), table.block_bytes.trailing_zeros());
        // A window has at least one byte. The table may have no entry for some of its blocks.
        let last = table.index_of(blocks.end.saturating_sub(1)).saturating_add(1);
        let indices = table.index_of(blocks.start)..last.min(table.room_entries);
        go_on!(each_entries(
            self.image,
            table.offset,
            indices,
            &mut pieces.first,
            |entries| -> Flow {
                go_on!(cover.step());
                cover.observer().event(State::WalkBlockStates, Event::Piece);
                for EntryRun { indices, entry } in entries.runs() {
                    go_on!(equal_blocks(table, indices, u64::from_le_bytes(entry), cover)?);
                }
                Ok(ControlFlow::Continue(()))
            }
        )?);
        match cover.position() < cover.end() {
            true => Err(past_table(table.room_entries)),
            false => Ok(ControlFlow::Continue(())),
        }
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        match self.reports_blocks {
            true => Ok(mapping_of(self.host_of(guest)?)),
            false => Ok(ALL_DATA),
        }
    }

    // There is one difference to QEMU 10.0.2: if a block is stored at host offset 0, QEMU reads the beginning of the
    // file for every part of it. No writer stores a block there.
    block_reads!();

    fn report_as_qemu(&mut self) {
        self.reports_blocks = false;
    }
}

impl<S: Storage + ?Sized> Vhdx<'_, S> {
    /// Returns the host offset of a guest byte, or `None` if the byte is zero and the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        let table = &self.table;
        let block = u64::from(table.block_bytes);
        let index = table.index_of(guest.get() / block);
        if index >= table.room_entries {
            return Err(past_table(index));
        }
        let mut entry = [0; 8];
        self.image.read_at(table.offset + index.saturating_mul(8), &mut entry)?;
        let start = start_of_data(table, index, u64::from_le_bytes(entry))?;
        Ok(start.map(|start| start + guest.get() % block))
    }
}

/// Returns the error of a block without an entry: QEMU opens a disk of more than 2^32 blocks with a table that is too
/// short for it, and reads past the table.
fn past_table(index: u64) -> MapError {
    MapError::BlockEntry { index, what: "the entry lies past the end of the table" }
}

/// Returns the first guest byte that no entry before the one at `index` maps.
fn start_of(table: &BlockTable, index: u64) -> GuestOffset {
    GuestOffset::new(table.blocks_before(index).saturating_mul(table.block_bytes.into()))
}

/// Covers the blocks with the entries at `indices`, which are all `entry`.
fn equal_blocks<C: Cover>(
    table: &BlockTable,
    indices: Range<u64>,
    entry: u64,
    cover: &mut C,
) -> Flow {
    if BlockState::of_entry(entry) == BlockState::Zeros {
        if cover.observer().observes() {
            report_zeros(table, &indices, entry, cover.observer());
        }
        let [start, end] = [indices.start, indices.end].map(|index| start_of(table, index));
        return cover.cover(start, end, mapping_of(None));
    }
    for index in indices {
        go_on!(block(table, index, entry, cover)?);
    }
    Ok(ControlFlow::Continue(()))
}

/// Reports the state of blocks that read as zeros, and an entry of a sector bitmap among them.
fn report_zeros(table: &BlockTable, indices: &Range<u64>, entry: u64, observer: &impl Observer) {
    let blocks =
        table.blocks_before(indices.end).saturating_sub(table.blocks_before(indices.start));
    if blocks < indices.end.saturating_sub(indices.start) {
        report_bitmap(observer);
    }
    let event = match entry & STATE_MASK {
        STATE_UNDEFINED => Some(Event::Undefined),
        STATE_UNMAPPED => Some(Event::Unmapped),
        _ => None,
    };
    if let Some(event) = event.filter(|_| blocks > 0) {
        observer.event(State::WalkBlockStates, event);
    }
}

/// Reports an entry of a sector bitmap.
fn report_bitmap(observer: &impl Observer) {
    observer.event(State::WalkBlockStates, Event::Bitmap);
    observer.rare(rare::BITMAP);
}

/// Covers the block with the entry at `index`, unless that stands for a sector bitmap.
fn block(table: &BlockTable, index: u64, entry: u64, cover: &mut impl Cover) -> Flow {
    if table.is_bitmap(index) {
        report_bitmap(cover.observer());
        return Ok(ControlFlow::Continue(()));
    }
    let start = start_of(table, index);
    let host = start_of_data(table, index, entry);
    if host.is_err() {
        cover.observer().rare(rare::UNREADABLE);
    }
    let mapping = mapping_of(host?);
    cover.cover(start, start + table.block_bytes.into(), mapping)
}

/// Returns the host offset of a block, or `None` if the file does not store it.
fn start_of_data(
    table: &BlockTable,
    index: u64,
    entry: u64,
) -> Result<Option<HostOffset>, MapError> {
    let fault = |what| Err(MapError::BlockEntry { index, what });
    match BlockState::of_entry(entry) {
        BlockState::Zeros => Ok(None),
        BlockState::Unreadable(what) => fault(what),
        // Only of entries that are not checked at open: those past the disk's number of blocks modulo 2^32.
        BlockState::Stored(start) if start.checked_add(table.block_bytes.into()).is_none() => {
            fault("the block ends past 2^64")
        }
        BlockState::Stored(start) => Ok(Some(start)),
    }
}
