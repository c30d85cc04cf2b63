//! The anatomy of a qcow2 image.

use std::ops::{ControlFlow, Range};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, EVERYTHING, Element, FieldGroup, NOTHING, OffsetUnit, Part, StructureField,
};
use crate::formats::error::MapError;
use crate::formats::qcow2::constants::{
    EXTENSION_END, SNAPSHOT_FIXED_BYTES, SNAPSHOT_V3_EXTRA_BYTES, bitmap_entry, header,
    snapshot_entry,
};
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::{Head, HeaderExtension, each_extension};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::{HostTable, TableEntry};
use crate::formats::qcow2::{bitmap, entry, snapshot};

impl Anatomy {
    /// Takes a qcow2 image apart.
    pub(in crate::formats) fn read_qcow2<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<(), MapError> {
        let head = Head::read(storage)?;
        let header = &head.header;
        self.cluster_size = Some(header.geometry.cluster_size);
        self.header(header);
        self.extensions(storage, header)?;
        if let Some(name) = head.backing_name {
            // A name that begins with a zero byte is no name.
            self.push(Element::field(Part::Extension, "backing name", name.offset, 1, EVERYTHING));
        }
        self.disk(storage, header)?;
        self.refcounts(storage, header)?;
        self.snapshots(storage, header)?;
        self.bitmaps(storage, &head)
    }

    fn header(&mut self, head: &Header) {
        let end = u64::from(head.header_length_bytes);
        let fields = header::FIELDS.iter().filter(|field| (field.at as u64) < end);
        self.fields(Part::Header, HostOffset::ZERO, fields);
    }

    /// Adds the fields of a structure at `at`.
    fn fields(
        &mut self,
        part: Part,
        at: HostOffset,
        fields: impl IntoIterator<Item = &'static StructureField>,
    ) {
        let group = FieldGroup::new(part, at, ByteOrder::BigEndian, OffsetUnit::Byte);
        group.elements(fields).for_each(|field| self.push(field));
    }

    fn extensions<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let end = header.extension_area_end();
        each_extension(storage, header, |extension| {
            let HeaderExtension { kind, at, length_bytes } = extension;
            for (name, inside) in [("type", 0), ("length", 4)] {
                let place = HostOffset::new(at + inside);
                self.push(Element::field(Part::Extension, name, place, 4, EVERYTHING));
            }
            if kind == EXTENSION_END {
                return Ok(());
            }
            // Contents are padded to whole words, except if the area ends first.
            let content = at + HeaderExtension::FRONT_BYTES;
            let words = u64::from(length_bytes).div_ceil(8).min((end - content) / 8);
            for word in 0..words.min(EXTENSION_WORDS) {
                let place = HostOffset::new(content + word * 8);
                self.push(Element::field(Part::Extension, "data", place, 8, EVERYTHING));
            }
            Ok(())
        })
    }

    /// Adds the active L1 and L2 tables, and compressed clusters.
    fn disk<S: Storage + ?Sized>(&mut self, storage: &S, header: &Header) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let span = geometry.l2_span_bytes();
        let table = HostTable::active_l1(header);
        self.each_entry(storage, table, |anatomy, TableEntry { at, index, word, .. }| {
            let guest = index.saturating_mul(span)..(index + 1).saturating_mul(span);
            anatomy.entry(Part::L1, at, &table, guest.clone());
            let Some(l2) = L1Entry(word).table() else { return Ok(()) };
            anatomy.active.push(l2);
            anatomy.l2(storage, geometry, l2, guest.start)
        })?;
        self.active.sort_unstable();
        Ok(())
    }

    fn l2<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        l2: HostOffset,
        first: u64,
    ) -> Result<(), MapError> {
        let cluster = geometry.cluster_size.bytes();
        let table = HostTable::l2(geometry, l2);
        self.each_entry(storage, table, |anatomy, TableEntry { at, index, word, second }| {
            let start = first.saturating_add(index * cluster);
            let guest = start..start.saturating_add(cluster);
            anatomy.entry(Part::L2, at, &table, guest.clone());
            if second.is_some() {
                anatomy.entry(Part::Bitmap, at + 8, &table, guest);
            }
            if let Ok(ClusterKind::Compressed(run)) = L2Entry(word).kind(geometry) {
                // Only one byte: if the payload is short, the next byte may belong to another payload.
                let first = Element::field(Part::Payload, "first byte", run.offset, 1, NOTHING);
                anatomy
                    .push(Element { behind_bytes: run.length_bytes().saturating_sub(1), ..first });
            }
            Ok(())
        })
    }

    /// Calls `take` with every entry of a table that is not zero.
    fn each_entry<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        table: HostTable,
        mut take: impl FnMut(&mut Self, TableEntry) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let go_on = |()| ControlFlow::Continue(());
        let taken = table
            .each_entry(storage, &mut [0; WIDENED_BYTES], |entry| take(self, entry).map(go_on));
        taken.map(|_| ())
    }

    fn entry(&mut self, part: Part, at: HostOffset, table: &HostTable, guest: Range<u64>) {
        let entry = Element::field(part, "", at, 8, guest);
        self.push(entry.in_table(table.entry_bytes, table.range().end));
    }

    fn refcounts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let table = HostTable::refcounts(header);
        self.each_entry(storage, table, |anatomy, TableEntry { at, word, .. }| {
            anatomy.entry(Part::RefcountTable, at, &table, NOTHING);
            match entry::refcount_block_offset(word) {
                None => Ok(()),
                Some(block) => anatomy.block(storage, geometry, block),
            }
        })
    }

    fn block<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        block: HostOffset,
    ) -> Result<(), MapError> {
        let block = HostTable::refcount_block(geometry, block);
        // One byte if counts are shorter.
        let width_bytes = 1u8 << geometry.refcount_order.saturating_sub(3);
        let stride_bytes = u64::from(width_bytes);
        let (part, name, guest, end) = (Part::RefcountBlock, "", NOTHING, block.range().end);
        let taken = block.each_piece(storage, &mut [0; WIDENED_BYTES], |skipped, bytes| {
            for (index, count) in (0..).zip(bytes.chunks_exact(usize::from(width_bytes))) {
                if count.iter().any(|byte| *byte != 0) {
                    let at = block.start + skipped + index * stride_bytes;
                    let guest = guest.clone();
                    let entry = Element::field(part, name, at, width_bytes, guest);
                    self.push(entry.in_table(stride_bytes, end));
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        taken.map(|_| ())
    }

    fn snapshots<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let mut seen = std::mem::take(&mut self.active);
        snapshot::each_entry(storage, header, |_, at, entry| {
            // The number of a field is an operand of programs: the last one came later, and has none.
            let known = SNAPSHOT_V3_EXTRA_BYTES.min(entry.extra_bytes) as usize;
            let end = SNAPSHOT_FIXED_BYTES + known;
            let fields = snapshot_entry::FIELDS.iter().filter(|field| field.end() <= end);
            self.fields(Part::Snapshot, at, fields);
            let table = HostTable::snapshot_l1(entry);
            self.each_entry(storage, table, |anatomy, TableEntry { at, word, .. }| {
                anatomy.entry(Part::SnapshotTable, at, &table, NOTHING);
                let Some(l2) = L1Entry(word).table() else { return Ok(()) };
                let Err(place) = seen.binary_search(&l2) else { return Ok(()) };
                seen.insert(place, l2);
                let table = HostTable::l2(geometry, l2);
                anatomy.each_entry(storage, table, |anatomy, entry| {
                    anatomy.entry(Part::SnapshotTable, entry.at, &table, NOTHING);
                    Ok(())
                })
            })
        })?;
        self.active = seen;
        Ok(())
    }

    fn bitmaps<S: Storage + ?Sized>(&mut self, storage: &S, head: &Head) -> Result<(), MapError> {
        let Some(extension) = head.bitmaps else { return Ok(()) };
        bitmap::each_entry(storage, &extension, |_, at, entry| {
            self.fields(Part::BitmapDirectory, at, bitmap_entry::FIELDS);
            let table = HostTable::bitmap(entry);
            self.each_entry(storage, table, |anatomy, TableEntry { at, .. }| {
                anatomy.entry(Part::BitmapTable, at, &table, NOTHING);
                Ok(())
            })
        })
    }
}

/// The number of words of an extension's content that become elements.
const EXTENSION_WORDS: u64 = 8;

/// The length of the buffer for data that do not begin and end on grains. Images in memory lend all other data.
const WIDENED_BYTES: usize = 512;
