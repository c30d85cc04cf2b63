//! The anatomy of an image, and its fields and entries in words.

use std::ops::ControlFlow;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{Anatomy, ByteOrder, Element, FieldGroup, OffsetUnit, Part};
use crate::formats::blocks::BLOCK_ENTRY_BYTES;
use crate::formats::entries::{EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::words::field;

use super::constants::{VDI_BLOCK_BYTES, VDI_DISCARDED, VDI_HEADER_BYTES, header};
use super::header::VdiHeader;

/// The number of bytes of the block map that are read at a time.
const MAP_PIECE_BYTES: usize = 512;

/// Adds the header, the block map and the stored blocks.
pub(super) fn take_apart<S: Storage + ?Sized>(
    anatomy: &mut Anatomy,
    image: &S,
) -> Result<(), MapError> {
    let (order, unit) = (ByteOrder::LittleEndian, OffsetUnit::Byte);
    let group = FieldGroup::new(Part::Header, HostOffset::ZERO, order, unit);
    anatomy.add_structure(Part::Header, HostOffset::ZERO, VDI_HEADER_BYTES as u64);
    group.declared(header::FIELDS).for_each(|field| anatomy.push(field));
    let header = VdiHeader::read(image)?;
    anatomy.cluster_size = ClusterSize::from_bits(VDI_BLOCK_BYTES.ilog2());
    let entries = u64::from(header.entries);
    anatomy.add_structure(Part::Table, header.map, entries * BLOCK_ENTRY_BYTES);
    let end = header.map + entries * BLOCK_ENTRY_BYTES;
    let mut scratch = [0; MAP_PIECE_BYTES];
    let _ = each_entries(image, header.map, 0..entries, &mut scratch, |piece| -> Flow {
        for EntryRun { indices, entry } in piece.runs() {
            if entry == [0xff; 4] {
                continue;
            }
            for index in indices {
                let start = index.saturating_mul(VDI_BLOCK_BYTES);
                let guest = start..start.saturating_add(VDI_BLOCK_BYTES);
                let at = header.map + index * BLOCK_ENTRY_BYTES;
                let element = Element::field(Part::Table, "", at, 4, guest).little_endian();
                // Entries are numbers of blocks.
                anatomy.push(element.in_table(BLOCK_ENTRY_BYTES, end));
                if let Some(data) = header.data_of(entry) {
                    anatomy.add_structure(Part::Payload, data, VDI_BLOCK_BYTES);
                }
                if anatomy.room().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}

/// Returns the meaning of a field or an entry in words.
pub(super) fn spelled(part: Part, name: &str, value: u64) -> String {
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
        _ => field(name, value, ByteOrder::LittleEndian),
    }
}
