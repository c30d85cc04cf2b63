//! Opens an image, with the checks that QEMU makes at an open for reading only (`block/vhdx.c`, `vhdx_open`).

use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::error::MapError;
use crate::formats::vhdx::block_table::BlockTable;
use crate::formats::vhdx::constants::{FILE_SIGNATURE, REGION_TABLE_OFFSET};
use crate::formats::vhdx::header::{HeaderChoice, LesserHeader, VhdxHeader};
use crate::formats::vhdx::metadata::MetadataTable;
use crate::formats::vhdx::region_table::RegionTable;
use crate::formats::vhdx::regions::Region;

use crate::formats::layer::OPEN_PIECE_BYTES;

use super::blocks::each_fault;
use super::replay::check_log;

/// An open VHDX image.
#[derive(Debug)]
pub(crate) struct Vhdx<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
    pub(super) table: BlockTable,
    /// If false, walks and look-ups report the whole disk as data, as QEMU's driver does.
    pub(super) reports_blocks: bool,
}

impl<'s, S: Storage + ?Sized> Vhdx<'s, S> {
    /// Opens the image, and calls `take` with each fault of a stored block.
    ///
    /// # Errors
    /// `take` returned an error, QEMU refuses the image for another reason, or a read failed.
    pub(super) fn open_reporting(
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
            observer.rare(Rare::VhdxLog);
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
        observer.rare(Rare::VhdxSecondHeader);
    }
    match choice.other {
        LesserHeader::Invalid => observer.rare(Rare::VhdxSingleHeader),
        LesserHeader::Equal => observer.rare(Rare::VhdxEqualHeaders),
        LesserHeader::Older => {}
    }
}
