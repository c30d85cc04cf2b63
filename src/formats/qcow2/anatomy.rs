//! What an image consists of, field by field and entry by entry: where each lies, how long it is, and
//! which part of the disk is mapped by it. Read from the bytes alone, so that whoever wants to change an
//! image finds everything that a reader looks at.

mod fields;

use crate::formats::qcow2::constants::BITMAP_FIXED_BYTES;
use crate::formats::qcow2::layout::Layout;
use std::ops::{ControlFlow, Range};

use super::constants::EXTENSION_END;
use super::geometry::{Geometry, Version};
use crate::disk::limits::MAX_ELEMENTS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{GRAIN_BYTES, Storage, each_data};
use crate::formats::qcow2::bitmap::BitmapEntry;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry};
use crate::formats::qcow2::error::MapError;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::units::ClusterSize;
use crate::formats::qcow2::{refcount, snapshot_table};

use fields::{DIRECTORY_FIELDS, HEADER_FIELDS, HEADER_FIELDS_V2, SNAPSHOT_FIELDS, SNAPSHOT_FIXED};

/// What a field or an entry belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Entries of the active disk's L2 tables.
    #[default]
    L2,
    /// Their subcluster bitmaps, under extended L2.
    Bitmap,
    /// Entries of the active L1 table.
    L1,
    /// Fields of the header.
    Header,
    /// Header extensions: types, lengths, contents; and the first byte of the backing file's name.
    Extension,
    /// Entries of the refcount table.
    RefcountTable,
    /// Counts; of counts with less than eight bits, a byte of them.
    RefcountBlock,
    /// Fields of the snapshot table.
    Snapshot,
    /// Entries of the tables that only snapshots have.
    SnapshotTable,
    /// Fields of the bitmap directory.
    BitmapDirectory,
    /// Entries of bitmap tables.
    BitmapTable,
    /// The first bytes of compressed clusters.
    Payload,
}

impl Part {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::L2,
        Self::Bitmap,
        Self::L1,
        Self::Header,
        Self::Extension,
        Self::RefcountTable,
        Self::RefcountBlock,
        Self::Snapshot,
        Self::SnapshotTable,
        Self::BitmapDirectory,
        Self::BitmapTable,
        Self::Payload,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "L2 table",
            Self::Bitmap => "subcluster bitmap",
            Self::L1 => "L1 table",
            Self::Header => "header",
            Self::Extension => "header extension",
            Self::RefcountTable => "refcount table",
            Self::RefcountBlock => "refcount block",
            Self::Snapshot => "snapshot",
            Self::SnapshotTable => "table of a snapshot",
            Self::BitmapDirectory => "bitmap directory",
            Self::BitmapTable => "bitmap table",
            Self::Payload => "payload",
        }
    }
}

/// All of the disk: what depends on a field of the header.
pub const EVERYTHING: Range<u64> = 0..u64::MAX;
/// None of it.
const NOTHING: Range<u64> = 0..0;

/// A field or an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// What it belongs to.
    pub part: Part,
    /// What a field is called in the specification; an entry has no name.
    pub name: &'static str,
    /// Its first byte.
    pub at: HostOffset,
    /// How many bytes it has: 1, 2, 4 or 8. They are big-endian.
    pub width_bytes: u8,
    /// Which guest bytes may be mapped otherwise where it is changed, and the image still opens.
    pub guest: Range<u64>,
    /// From one entry of its table to the next; 0 for a field.
    stride_bytes: u64,
    /// Where its table ends.
    end: HostOffset,
}

impl Element {
    fn field(
        part: Part,
        name: &'static str,
        at: HostOffset,
        width_bytes: u8,
        guest: Range<u64>,
    ) -> Self {
        Self { part, name, at, width_bytes, guest, stride_bytes: 0, end: at }
    }

    /// Its bytes in the file.
    pub fn range(&self) -> Range<HostOffset> {
        self.at..self.at.saturating_add(u64::from(self.width_bytes))
    }

    /// The entry right behind it, empty or not, where its table has one.
    fn beside(&self) -> Option<Self> {
        let at = self.at.checked_add(self.stride_bytes)?;
        let inside = self.stride_bytes > 0 && at < self.end;
        let span = self.guest.end.saturating_sub(self.guest.start);
        let guest = self.guest.end..self.guest.end.saturating_add(span);
        inside.then(|| Self { at, guest, ..self.clone() })
    }
}

/// The elements of an image, of tables those that are not zero, in buffers that are reused from image to image.
#[derive(Debug, Default)]
pub struct Anatomy {
    elements: Vec<Element>,
    cluster_size: Option<ClusterSize>,
    active: Vec<HostOffset>,
}

impl Anatomy {
    /// Takes the image in `storage` apart, as far as [`MAX_ELEMENTS`] go.
    ///
    /// # Errors
    /// What is malformed in the header, the extensions or the snapshot table, or a failing read. What was
    /// found before is there.
    pub fn read<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<(), MapError> {
        self.elements.clear();
        self.active.clear();
        let head = Head::read(storage)?;
        let header = &head.header;
        self.cluster_size = Some(header.geometry.cluster_size);
        self.header(header);
        self.extensions(storage, header)?;
        if let Some(name) = head.backing_name {
            // One that begins with a zero is none.
            self.push(Element::field(Part::Extension, "backing name", name.offset, 1, EVERYTHING));
        }
        self.disk(storage, header)?;
        self.refcounts(storage, header)?;
        self.snapshots(storage, header)?;
        self.bitmaps(storage, &head)?;
        // Stable: in a part, elements stay in the order in which they were found.
        self.elements.sort_by_key(|element| element.part);
        Ok(())
    }

    /// The elements of a part, in the order in which a reader comes to them.
    pub fn of(&self, part: Part) -> &[Element] {
        let first = self.elements.partition_point(|element| element.part < part);
        let end = self.elements.partition_point(|element| element.part <= part);
        &self.elements[first..end]
    }

    /// All elements, part by part.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The size of the image's clusters; `None` where it has no valid header.
    pub fn cluster_size(&self) -> Option<ClusterSize> {
        self.cluster_size
    }

    /// An element of a part by a number of any size: an even one counts them, over and over; an odd one is
    /// the entry right behind that of the number before, empty or not, where its table has one.
    pub fn element(&self, part: Part, nth: u16) -> Option<Element> {
        let all = self.of(part);
        let one = all.get(usize::from(nth / 2).checked_rem(all.len())?)?;
        match nth % 2 {
            1 => Some(one.beside().unwrap_or_else(|| one.clone())),
            _ => Some(one.clone()),
        }
    }

    fn push(&mut self, element: Element) {
        if self.elements.len() < MAX_ELEMENTS {
            self.elements.push(element);
        }
    }

    fn header(&mut self, header: &Header) {
        let fields = match header.geometry.version {
            Version::V2 => &HEADER_FIELDS[..HEADER_FIELDS_V2],
            Version::V3 => HEADER_FIELDS,
        };
        for (name, at, width_bytes, maps) in fields {
            if *at < u64::from(header.header_length_bytes) {
                let guest = if *maps { EVERYTHING } else { NOTHING };
                let at = HostOffset::new(*at);
                self.push(Element::field(Part::Header, name, at, *width_bytes, guest));
            }
        }
    }

    fn extensions<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let end = header.extension_area_end();
        let mut at = u64::from(header.header_length_bytes);
        while at < end {
            let mut front = [0; 8];
            storage.read_at(HostOffset::new(at), &mut front)?;
            let [a, b, c, d, length @ ..] = front;
            let length = u64::from(u32::from_be_bytes(length));
            for (name, inside) in [("type", 0), ("length", 4)] {
                let place = HostOffset::new(at + inside);
                self.push(Element::field(Part::Extension, name, place, 4, EVERYTHING));
            }
            if u32::from_be_bytes([a, b, c, d]) == EXTENSION_END {
                break;
            }
            // Padded to whole words, but for one that ends where the area does.
            let words = length.div_ceil(8).min(end.saturating_sub(at + 8) / 8);
            for word in 0..words.min(EXTENSION_WORDS) {
                let place = HostOffset::new(at + 8 + word * 8);
                self.push(Element::field(Part::Extension, "data", place, 8, EVERYTHING));
            }
            at = at.saturating_add(8).saturating_add(length.next_multiple_of(8));
        }
        Ok(())
    }

    /// The active tables.
    fn disk<S: Storage + ?Sized>(&mut self, storage: &S, header: &Header) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let span = geometry.l2_span_bytes();
        let table = entries(header.l1_offset, u64::from(header.l1_entries));
        each_word(storage, &table, 8, |at, index, word, _| {
            let guest = index.saturating_mul(span)..(index + 1).saturating_mul(span);
            self.entry(Part::L1, at, 8, &table, guest.clone());
            let Some(l2) = L1Entry(word).table() else { return Ok(()) };
            self.active.push(l2);
            self.l2(storage, geometry, l2, guest.start)
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
        let (width, cluster) = (geometry.l2_entry_bytes(), geometry.cluster_size.bytes());
        let table = l2..l2.saturating_add(cluster);
        each_word(storage, &table, width, |at, index, word, bitmap| {
            let start = first.saturating_add(index.saturating_mul(cluster));
            let guest = start..start.saturating_add(cluster);
            self.entry(Part::L2, at, width, &table, guest.clone());
            if bitmap.is_some() {
                self.entry(Part::Bitmap, at.saturating_add(8), width, &table, guest);
            }
            if let Ok(ClusterKind::Compressed(run)) = L2Entry(word).kind(geometry) {
                // One byte: what follows may be anything, if the payload is short.
                self.push(Element::field(Part::Payload, "first byte", run.offset, 1, NOTHING));
            }
            Ok(())
        })
    }

    fn entry(
        &mut self,
        part: Part,
        at: HostOffset,
        stride_bytes: u64,
        table: &Range<HostOffset>,
        guest: Range<u64>,
    ) {
        let (name, width_bytes) = ("", 8);
        self.push(Element { part, name, at, width_bytes, guest, stride_bytes, end: table.end });
    }

    fn refcounts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let cluster_size = header.geometry.cluster_size;
        let clusters = u64::from(header.refcount_table_clusters);
        let start = header.refcount_table_offset;
        let table = start..start.saturating_add(cluster_size.saturating_bytes(clusters));
        let width_bytes = 1u64 << header.geometry.refcount_order.saturating_sub(3);
        each_word(storage, &table, 8, |at, _, word, _| {
            self.entry(Part::RefcountTable, at, 8, &table, NOTHING);
            let Some(block) = refcount::block_offset(word) else { return Ok(()) };
            let block = block..block.saturating_add(cluster_size.bytes());
            each_data_of(storage, &block, |at, bytes| {
                for (index, count) in bytes.chunks_exact(width_bytes as usize).enumerate() {
                    if count.iter().any(|byte| *byte != 0) {
                        let at = at.saturating_add(index as u64 * width_bytes);
                        self.push(Element {
                            part: Part::RefcountBlock,
                            name: "",
                            at,
                            width_bytes: width_bytes as u8,
                            guest: NOTHING,
                            stride_bytes: width_bytes,
                            end: block.end,
                        });
                    }
                }
                Ok(())
            })
        })
    }

    fn snapshots<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let mut seen = std::mem::take(&mut self.active);
        snapshot_table::each_entry(storage, header, |_, at, entry| {
            let extra = u64::from(entry.extra_bytes / 8).min(2) as usize;
            for (name, inside, width) in &SNAPSHOT_FIELDS[..SNAPSHOT_FIXED + extra] {
                let at = at.saturating_add(*inside);
                self.push(Element::field(Part::Snapshot, name, at, *width, NOTHING));
            }
            let table = entries(entry.l1_offset, u64::from(entry.l1_entries));
            each_word(storage, &table, 8, |at, _, word, _| {
                self.entry(Part::SnapshotTable, at, 8, &table, NOTHING);
                let Some(l2) = L1Entry(word).table() else { return Ok(()) };
                let Err(place) = seen.binary_search(&l2) else { return Ok(()) };
                seen.insert(place, l2);
                let width = geometry.l2_entry_bytes();
                let table = l2..l2.saturating_add(geometry.cluster_size.bytes());
                each_word(storage, &table, width, |at, _, _, _| {
                    self.entry(Part::SnapshotTable, at, width, &table, NOTHING);
                    Ok(())
                })
            })
        })?;
        self.active = seen;
        Ok(())
    }

    fn bitmaps<S: Storage + ?Sized>(&mut self, storage: &S, head: &Head) -> Result<(), MapError> {
        let Some(extension) = head.bitmaps else { return Ok(()) };
        let mut at = extension.directory_offset;
        for _ in 0..extension.bitmaps {
            let mut fixed = [0; BITMAP_FIXED_BYTES];
            storage.read_at(at, &mut fixed)?;
            for (name, inside, width) in DIRECTORY_FIELDS {
                let at = at.saturating_add(inside);
                self.push(Element::field(Part::BitmapDirectory, name, at, width, NOTHING));
            }
            let entry = BitmapEntry::parse(&fixed);
            let table = entries(entry.table_offset, u64::from(entry.table_entries));
            each_word(storage, &table, 8, |at, _, _, _| {
                self.entry(Part::BitmapTable, at, 8, &table, NOTHING);
                Ok(())
            })?;
            at = at.saturating_add(entry.length_bytes());
        }
        Ok(())
    }
}

/// How much of an extension's content is an element each.
const EXTENSION_WORDS: u64 = 8;

/// Where a table with so many entries of eight bytes lies.
fn entries(table: HostOffset, count: u64) -> Range<HostOffset> {
    table..table.saturating_add(count * 8)
}

/// Calls `take` with every entry of a table that is not zero: where it lies, its index, its first word,
/// and its second one where entries have 16 bytes.
fn each_word<S: Storage + ?Sized>(
    storage: &S,
    table: &Range<HostOffset>,
    entry_bytes: u64,
    mut take: impl FnMut(HostOffset, u64, u64, Option<u64>) -> Result<(), MapError>,
) -> Result<(), MapError> {
    each_data_of(storage, table, |at, bytes| {
        for (nth, entry) in bytes.chunks_exact(entry_bytes as usize).enumerate() {
            let at = at.saturating_add(nth as u64 * entry_bytes);
            let (words, _) = entry.as_chunks::<8>();
            let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
            let (first, second) = (words.next().unwrap_or(0), words.next());
            if at < table.end && (first != 0 || second.unwrap_or(0) != 0) {
                let index = at.distance_from(table.start).unwrap_or(0) / entry_bytes;
                take(at, index, first, second)?;
            }
        }
        Ok(())
    })
}

/// Room for data that do not lie on grains: images in memory give the rest as it lies.
const WIDENED_BYTES: usize = 512;

/// Calls `take` with the data in a range, in whole grains.
fn each_data_of<S: Storage + ?Sized>(
    storage: &S,
    range: &Range<HostOffset>,
    mut take: impl FnMut(HostOffset, &[u8]) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let length = range.end.distance_from(range.start).unwrap_or(0);
    let until = range.start.saturating_add(length.next_multiple_of(GRAIN_BYTES));
    let mut piece = [0; WIDENED_BYTES];
    let _ = each_data(storage, range.start..until, &mut piece, |data| {
        take(data.offset, data.bytes).map(|()| ControlFlow::Continue(()))
    })?;
    Ok(())
}
