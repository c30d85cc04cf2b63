//! The VDI format of VirtualBox: a header, a block map, and blocks. All numbers are little-endian. There is no public
//! specification; the facts come from QEMU (`block/vdi.c`) and its behaviour.
//!
//! The answers are those of QEMU 10.0.2, with one exception: an image whose block map reaches past the end of the file
//! is refused. QEMU reads zeros there, so that each of these blocks would lie at the place of block 0, and a short file
//! would have hundreds of millions of extents.

pub mod constants;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use crate::disk::clusters::ClusterSize;
use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage, read_array};
use crate::formats::Tables as GrainTables;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, FieldGroup, OffsetUnit, Part, StructureField, field_in_words,
};
use crate::formats::entries::{Blocks, EntryRun, block_reads, each_entries, mapping_of};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, FormatLayer, Named, OPEN_PIECE_BYTES, ProbedBytes, TablePieces, WalkStates,
    whole_sectors,
};
use crate::formats::vdi::constants::{
    MAX_VDI_BLOCKS, TYPE_STATIC, VDI_BLOCK_BYTES, VDI_DISCARDED, VDI_HEADER_BYTES,
    VDI_SECTOR_BYTES, VDI_SIGNATURE, VDI_VERSION, header,
};

/// The fields of a header that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VdiHeader {
    /// The size of the disk in bytes, rounded up to a multiple of 512.
    size_bytes: u64,
    /// The host offset of the block map.
    map: HostOffset,
    /// The host offset of block 0.
    data: HostOffset,
    /// The number of entries of the block map.
    entries: u32,
    /// The number of stored blocks that the header states.
    allocated: u32,
    /// The image stores all blocks.
    is_static: bool,
}

impl VdiHeader {
    /// Reads the header, with the checks that QEMU makes, in its order (`block/vdi.c`, `vdi_open`).
    ///
    /// # Errors
    /// QEMU refuses the image, its block map reaches past the end of the file, or a read failed.
    fn read<S: Storage + ?Sized>(image: &S) -> Result<Self, MapError> {
        let bytes: [u8; VDI_HEADER_BYTES] = read_array(image, HostOffset::ZERO)?;
        let stated_bytes = header::DISK_SIZE.little(&bytes);
        let entries = header::BLOCKS_IN_IMAGE.little_32(&bytes);
        let most_bytes = u64::from(MAX_VDI_BLOCKS) * VDI_BLOCK_BYTES;
        demand(stated_bytes <= most_bytes, "disk_size", stated_bytes, "at most 562949819203584")?;
        let size_bytes = whole_sectors(stated_bytes);
        let number = |field: StructureField| field.little(&bytes);
        if number(header::SIGNATURE) != VDI_SIGNATURE.into() {
            let what = "the signature is not 0xbeda107f";
            return Err(MapError::NotImage { format: "vdi", what });
        }
        let is_sector = |offset: u64| offset.is_multiple_of(VDI_SECTOR_BYTES);
        let (map, data) = (number(header::OFFSET_BMAP), number(header::OFFSET_DATA));
        let room = u64::from(entries) * VDI_BLOCK_BYTES;
        let is_zero = |one, other| number(one) == 0 && number(other) == 0;
        let (version, block) = (number(header::VERSION), number(header::BLOCK_SIZE));
        demand(version == VDI_VERSION.into(), "version", version, "65537, which is 1.1")?;
        demand(is_sector(map), "offset_bmap", map, "a multiple of 512")?;
        demand(is_sector(data), "offset_data", data, "a multiple of 512")?;
        let sector = number(header::SECTOR_SIZE);
        demand(sector == VDI_SECTOR_BYTES, "sector_size", sector, "512")?;
        demand(block == VDI_BLOCK_BYTES, "block_size", block, "1048576")?;
        demand(size_bytes <= room, "blocks_in_image", entries.into(), "one for each block")?;
        if !is_zero(header::UUID_LINK, header::UUID_LINK_END) {
            return Err(MapError::Unsupported("VDI image with a link to another one"));
        }
        if !is_zero(header::UUID_PARENT, header::UUID_PARENT_END) {
            return Err(MapError::Unsupported("VDI image with a parent"));
        }
        let most = "at most 536870784";
        demand(entries <= MAX_VDI_BLOCKS, "blocks_in_image", entries.into(), most)?;
        let map_end = map + u64::from(entries) * 4;
        let file_end = whole_sectors(image.length_bytes());
        demand(
            map_end <= file_end,
            "end of the block map",
            map_end,
            "the end of the file at most",
        )?;
        Ok(Self {
            size_bytes,
            map: HostOffset::new(map),
            data: HostOffset::new(data),
            entries,
            allocated: header::BLOCKS_ALLOCATED.little_32(&bytes),
            is_static: number(header::IMAGE_TYPE) == TYPE_STATIC.into(),
        })
    }

    /// Returns the host offset of a block by its entry. `None` if the file does not store the block.
    fn data_of(&self, entry: [u8; 4]) -> Option<HostOffset> {
        let entry = u32::from_le_bytes(entry);
        is_stored(entry).then(|| self.data + u64::from(entry) * VDI_BLOCK_BYTES)
    }
}

/// Reports whether an entry names a block of the file.
fn is_stored(entry: u32) -> bool {
    entry < VDI_DISCARDED
}

/// Returns an error unless a field has a value that QEMU accepts.
fn demand(
    is_met: bool,
    field: &'static str,
    found: u64,
    expected: &'static str,
) -> Result<(), MapError> {
    match is_met {
        true => Ok(()),
        false => Err(MapError::Header { field, found, expected }),
    }
}

/// An open VDI image.
#[derive(Debug)]
pub(crate) struct Vdi<'s, S: Storage + ?Sized> {
    image: &'s S,
    header: VdiHeader,
}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Vdi<'s, S> {
    type Buffers = ();

    const STATES: WalkStates = WalkStates { outer: State::WalkBlocks, inner: State::WalkBlocks };

    const PARTS: &'static [Part] = &[Part::Header, Part::Table];

    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        header::SIGNATURE.little_32(first_bytes) == VDI_SIGNATURE
    }

    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError> {
        let header = VdiHeader::read(layer.image)?;
        observer.event(State::Open, Event::Header);
        Ok((Self { image: layer.image, header }, None))
    }

    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        let (order, unit) = (ByteOrder::LittleEndian, OffsetUnit::Byte);
        let group = FieldGroup::new(Part::Header, HostOffset::ZERO, order, unit);
        anatomy.add_structure(Part::Header, HostOffset::ZERO, VDI_HEADER_BYTES as u64);
        anatomy.add_fields(group, header::FIELDS);
        let header = VdiHeader::read(image)?;
        anatomy.cluster_size = ClusterSize::from_bits(VDI_BLOCK_BYTES.ilog2());
        let (table, blocks) = ((header.map, header.entries.into()), (VDI_BLOCK_BYTES, order));
        anatomy.add_blocks(image, table, blocks, |anatomy, _, entry| {
            if let Some(data) = header.data_of(entry) {
                anatomy.add_structure(Part::Payload, data, VDI_BLOCK_BYTES);
            }
        })
    }

    fn spelled(part: Part, name: &str, value: u64, _tables: Option<&GrainTables>) -> String {
        match (part, name) {
            (Part::Table, _) if value == u64::from(u32::MAX) => "not stored".to_string(),
            (Part::Table, _) if value == u64::from(VDI_DISCARDED) => "discarded".to_string(),
            (Part::Table, _) => format!("block {value} of the file"),
            (_, "image_type") => match value {
                1 => "dynamic".to_string(),
                2 => "static".to_string(),
                3 => "undo".to_string(),
                4 => "differencing".to_string(),
                _ => format!("{value}: no meaning"),
            },
            (_, "version") => format!("{}.{}", value >> 16, value & 0xffff),
            (_, "signature" | "image_flags") => format!("{value:#x}"),
            _ if name.starts_with("uuid") => format!("{value:#x}"),
            _ => field_in_words(name, value, ByteOrder::LittleEndian),
        }
    }

    fn check(
        layer: &Layer<'s, S>,
        report: &mut dyn FnMut(&dyn fmt::Display),
    ) -> Option<Result<(), MapError>> {
        Some(check(layer.image, report))
    }

    fn size_bytes(&self) -> u64 {
        self.header.size_bytes
    }

    fn block_bytes(&self) -> Option<u64> {
        Some(VDI_BLOCK_BYTES)
    }

    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        cover.observer().begin(State::WalkBlocks);
        let data_of = |entry| self.header.data_of(entry);
        self.blocks().walk(State::WalkBlocks, data_of, &mut pieces.first, cover)
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        Ok(mapping_of(self.host_of(guest)?))
    }

    block_reads!();

    /// QEMU looks for holes in the file only if the image is static.
    fn file_with_holes(&self, _guest: GuestOffset) -> Option<&'s S> {
        self.header.is_static.then_some(self.image)
    }
}

impl<'s, S: Storage + ?Sized> Vdi<'s, S> {
    fn blocks(&self) -> Blocks<'s, S> {
        Blocks { image: self.image, table: self.header.map, block_bytes: VDI_BLOCK_BYTES }
    }

    /// Returns the host offset of a guest byte, or `None` if the file does not store its block.
    fn host_of(&self, guest: GuestOffset) -> Result<Option<HostOffset>, MapError> {
        self.blocks().host_of(guest, |entry| self.header.data_of(entry))
    }
}

/// The largest number of faults that are reported. An image may have one fault for each entry of its block map, and
/// entries in holes of the file take no space.
const MAX_FAULTS: u64 = 1 << 20;

/// A fault of the block map. The texts are those of QEMU.
enum VdiFault {
    Shared { block: u32 },
    TooLarge { index: u64, block: u32 },
    Count { found: u64, stated: u32 },
}

impl fmt::Display for VdiFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared { block } => write!(f, "block index {block} also used by {block}"),
            Self::TooLarge { index, block } => {
                write!(f, "block index {index} too large, is {block}")
            }
            Self::Count { found, stated } => {
                write!(f, "allocated blocks mismatch, is {found}, should be {stated}")
            }
        }
    }
}

/// Checks the block map as QEMU does (`block/vdi.c`, `vdi_co_check`): each stored block has a place of its own with a
/// number below that of blocks, and counts them.
///
/// # Errors
/// There are too many faults, QEMU refuses the image, or a read failed.
fn check<S: Storage + ?Sized>(
    image: &S,
    report: &mut dyn FnMut(&dyn fmt::Display),
) -> Result<(), MapError> {
    let header = VdiHeader::read(image)?;
    let (mut seen, mut faults, mut found) = (BTreeSet::new(), 0u64, 0u64);
    let mut report = |fault: VdiFault| {
        faults = faults.saturating_add(1);
        report(&fault);
        match faults > MAX_FAULTS {
            true => Err(MapError::TooLarge("too many faults in the block map")),
            false => Ok(()),
        }
    };
    let mut scratch = [0; OPEN_PIECE_BYTES];
    let entries = 0..u64::from(header.entries);
    let _ = each_entries(image, header.map, entries, &mut scratch, |piece| -> Flow {
        for EntryRun { indices, entry } in piece.runs() {
            let block = u32::from_le_bytes(entry);
            if !is_stored(block) {
                continue;
            }
            for index in indices {
                if block >= header.entries {
                    report(VdiFault::TooLarge { index, block })?;
                    continue;
                }
                found = found.saturating_add(1);
                if !seen.insert(block) {
                    report(VdiFault::Shared { block })?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    match found == u64::from(header.allocated) {
        true => Ok(()),
        false => report(VdiFault::Count { found, stated: header.allocated }),
    }
}
