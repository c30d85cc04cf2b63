//! The VHD format (Microsoft, "Virtual Hard Disk Image Format Specification", version 1.0), which QEMU calls vpc. All
//! numbers in a file are big-endian. QEMU opens a differencing disk as if it had no parent. As in QEMU, the bitmap of a
//! block does not matter.
//!
//! # Arithmetic
//! An entry names a sector with 32 bits, so that no block ends past 2^43. A table that ends past 2^64 ends past every
//! file.

pub mod anatomy;
pub mod constants;
pub mod headers;

use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::Tables as GrainTables;
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::entries::{Blocks, block_reads, each_entries, mapping_of};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, FormatLayer, Named, OPEN_PIECE_BYTES, ProbedBytes, TablePieces, WalkStates, go_on,
    in_place, whole_sectors,
};
use crate::formats::vpc::anatomy::spelled;
use crate::formats::vpc::constants::{
    COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, SECTOR_BYTES, TYPE_DIFFERENCING, TYPE_FIXED,
    UNALLOCATED, rare,
};
use crate::formats::vpc::headers::{DynamicHeader, Footer};

/// An open VHD image.
#[derive(Debug)]
pub(crate) struct Vpc<'s, S: Storage + ?Sized> {
    image: &'s S,
    size_bytes: u64,
    /// The blocks; `None` if every byte lies at its guest offset.
    blocks: Option<DynamicHeader>,
}

/// Returns the footer, and whether it is the one at the beginning of a dynamic disk.
fn footer<S: Storage + ?Sized>(image: &S) -> Result<(Footer, bool), MapError> {
    let mut bytes = [0; FOOTER_BYTES];
    image.read_at(HostOffset::ZERO, &mut bytes)?;
    if Footer::is_at(&bytes) {
        return Ok((Footer::parse(&bytes)?, true));
    }
    let length = whole_sectors(image.length_bytes());
    let last = length.checked_sub(SECTOR_BYTES).map(HostOffset::new);
    let not_vpc = MapError::NotImage {
        format: "vpc",
        what: "no footer in the first sector, nor that of a fixed disk in the last",
    };
    let Some(last) = last else { return Err(not_vpc) };
    image.read_at(last, &mut bytes)?;
    if !Footer::is_at(&bytes) || Footer::disk_type_of(&bytes) != TYPE_FIXED {
        return Err(not_vpc);
    }
    Ok((Footer::parse(&bytes)?, false))
}

/// The stored blocks of an image.
struct StoredBlocks {
    /// The highest table entry that names a stored block, if there is one.
    highest: Option<u32>,
    /// A block lies past the end of the disk.
    is_past_end: bool,
}

impl StoredBlocks {
    /// Reads the table of a disk of `size_bytes`.
    fn read<S: Storage + ?Sized>(
        image: &S,
        header: &DynamicHeader,
        size_bytes: u64,
    ) -> Result<Self, MapError> {
        let blocks = size_bytes.div_ceil(header.block_bytes.into());
        let mut stored = Self { highest: None, is_past_end: false };
        let mut scratch = [0; OPEN_PIECE_BYTES];
        let entries = 0..u64::from(header.entries);
        let _ = each_entries(image, header.table_offset, entries, &mut scratch, |piece| -> Flow {
            for run in piece.runs() {
                let entry = u32::from_be_bytes(run.entry);
                if entry != UNALLOCATED {
                    stored.highest = stored.highest.max(Some(entry));
                    stored.is_past_end |= run.indices.end > blocks;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(stored)
    }

    /// Reports the rare events in a dynamic disk.
    fn report(&self, footer: &Footer, header: &DynamicHeader, observer: &impl Observer) {
        let highest = self.highest.and_then(|entry| header.data_of(entry));
        for (rare, fires) in [
            (rare::HEADER_GAP, footer.data_offset != FOOTER_BYTES as u64),
            (rare::TABLE_LAST, highest.is_some_and(|data| data < header.table_offset)),
            (rare::FAR_BLOCK, highest.is_some_and(|data| data.get() >= FAR_BYTES)),
            (rare::NO_BITMAP, header.bitmap_bytes() == 0),
            (rare::SPARE_BLOCK, self.is_past_end),
            (rare::TYPE_FIXED, footer.disk_type == TYPE_FIXED),
        ] {
            if fires {
                observer.rare(rare);
            }
        }
    }
}

/// The host offset from which a block is far: sectors before it have numbers that fit into a signed number of 32 bits.
const FAR_BYTES: u64 = 1 << 40;

/// Checks that the table and all blocks, also those past the end of the disk, end inside the file. `highest` is the
/// highest entry that names a stored block.
fn check_ends<S: Storage + ?Sized>(
    image: &S,
    header: &DynamicHeader,
    highest: Option<u32>,
) -> Result<(), MapError> {
    let entries = u64::from(header.entries);
    let end_of_table = header
        .table_offset
        .checked_add(entries * 4)
        .and_then(|end| end.get().checked_next_multiple_of(SECTOR_BYTES));
    let end_of_blocks = highest
        .and_then(|entry| header.data_of(entry))
        .map_or(0, |data| data.get().saturating_add(header.block_bytes.into()));
    let length = whole_sectors(image.length_bytes());
    match end_of_table.is_some_and(|end| end.max(end_of_blocks) <= length) {
        true => Ok(()),
        false => Err(MapError::Header {
            field: "end of the table and of all blocks",
            found: end_of_table.unwrap_or(u64::MAX).max(end_of_blocks),
            expected: "at most the length of the file",
        }),
    }
}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vpc<'s, S> {
    type Buffers = ();

    const STATES: WalkStates = WalkStates { outer: State::WalkBlocks, inner: State::WalkBlocks };

    const PARTS: &'static [Part] = &[Part::Header, Part::Table, Part::BlockFront];

    const RARE_EVENTS: &'static [Rare] = rare::ALL;

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        first_bytes.starts_with(&COOKIE)
    }

    /// Opens the image, with the checks that QEMU makes (`block/vpc.c`, `vpc_open`).
    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let image = layer.image;
        let (footer, is_dynamic) = footer(image)?;
        observer.event(State::Open, Event::Footer);
        if footer.states_geometry() {
            observer.rare(rare::GEOMETRY);
        }
        let size_bytes = footer.virtual_size_bytes();
        let blocks = match is_dynamic {
            false => None,
            true => {
                let mut bytes = [0; DYNAMIC_HEADER_BYTES];
                image.read_at(HostOffset::new(footer.data_offset), &mut bytes)?;
                let header = DynamicHeader::parse(&bytes, size_bytes)?;
                observer.event(State::Open, Event::Header);
                let stored = StoredBlocks::read(image, &header, size_bytes)?;
                check_ends(image, &header, stored.highest)?;
                observer.event(State::Open, Event::Table);
                stored.report(&footer, &header, observer);
                // QEMU maps a disk of type 2 as a fixed disk, even if it begins with a footer.
                (footer.disk_type != TYPE_FIXED).then_some(header)
            }
        };
        Ok((Self { image, size_bytes, blocks }, None))
    }

    fn has_unread_parent(image: &S) -> Result<bool, MapError> {
        let (footer, is_dynamic) = footer(image)?;
        Ok(is_dynamic && footer.disk_type == TYPE_DIFFERENCING)
    }

    fn spelled(part: Part, name: &str, value: u64, _tables: Option<&GrainTables>) -> String {
        spelled(part, name, value)
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        anatomy.read_vpc(image)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> Option<u64> {
        self.blocks.as_ref().map(|header| header.block_bytes.into())
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkBlocks);
        let Some(header) = &self.blocks else {
            go_on!(cover.step());
            cover.observer().event(State::WalkBlocks, Event::Normal);
            let (from, end) = (in_place(cover.position()), cover.end());
            return Ok(cover.put(end, mapping_of(Some(from))));
        };
        let data_of = |entry| header.data_of(u32::from_be_bytes(entry));
        self.table(header).walk(State::WalkBlocks, data_of, &mut pieces.first, cover)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

    block_reads!();

    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.blocks.is_none().then_some(self.image)
    }
}

impl<'s, S: Storage + ?Sized> Vpc<'s, S> {
    /// Returns the table of a dynamic disk.
    fn table(&self, header: &DynamicHeader) -> Blocks<'s, S> {
        let (table, block_bytes) = (header.table_offset, header.block_bytes.into());
        Blocks { image: self.image, table, block_bytes }
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        match &self.blocks {
            None => Ok(Some(in_place(guest))),
            Some(header) => {
                self.table(header).host_of(guest, |entry| header.data_of(u32::from_be_bytes(entry)))
            }
        }
    }
}
