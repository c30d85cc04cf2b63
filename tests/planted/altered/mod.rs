//! Images in which tests plant bugs: a copy of a built image, with the offsets of its structures.

pub mod bitmaps;
pub mod contents;
pub mod counts;
pub mod out_of_date;
pub mod snapshots;

use qcowfuzz::disk::storage::GRAIN_BYTES;
use qcowfuzz::formats::qcow2::bitmap::BitmapsExtension;
use qcowfuzz::formats::qcow2::constants::SNAPSHOT_FIXED_BYTES;
use qcowfuzz::formats::qcow2::entry;
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout, SubclusterBitmap};
use qcowfuzz::formats::qcow2::geometry::Geometry;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::formats::qcow2::snapshot::SnapshotEntry;
use test_support::prelude::*;

/// A bug in the bytes, and the fingerprints that it must have.
pub struct Case {
    pub name: &'static str,
    /// Plants the bug. Returns `None` if the image has no place for it.
    pub plant: fn(&mut Altered) -> Option<()>,
    /// The beginnings of the fingerprints that must all occur.
    pub must: &'static [&'static str],
    /// The beginnings of other fingerprints that may occur.
    pub may: &'static [&'static str],
    /// The bug has no effect in some images.
    pub harmless: bool,
}

pub const fn case(
    name: &'static str,
    plant: fn(&mut Altered) -> Option<()>,
    must: &'static [&'static str],
    may: &'static [&'static str],
) -> Case {
    Case { name, plant, must, may, harmless: false }
}

/// An L2 entry of the active disk that is not empty.
#[derive(Clone, Copy)]
pub struct Mapped {
    /// The host offset of the entry.
    pub at: u64,
    pub word: u64,
    pub bitmap: SubclusterBitmap,
    pub kind: ClusterKind,
}

impl Mapped {
    pub fn copied(&self) -> bool {
        L2Entry(self.word).copied()
    }
}

/// A copy of an image that tests can alter, with the structures of the original.
pub struct Altered {
    original: Image,
    patches: Vec<(u64, Vec<u8>)>,
    pub header: Header,
    pub bitmaps: Option<BitmapsExtension>,
    /// The active L1 entries that are not empty, each with its host offset.
    pub l1: Vec<(u64, L1Entry)>,
    pub l2: Vec<Mapped>,
    /// The index, the offset of the table entry and the offset of each refcount block.
    blocks: Vec<(u64, u64, HostOffset)>,
}

impl Altered {
    pub fn new(image: &Image) -> Self {
        let mut original = Image::default();
        image.written().for_each(|data| original.write(data.offset, data.bytes));
        original.seal(image.length_bytes());
        let Head { header, bitmaps, .. } = Head::read(&original).unwrap();
        let mut altered = Self {
            original,
            patches: Vec::new(),
            header,
            bitmaps,
            l1: Vec::new(),
            l2: Vec::new(),
            blocks: Vec::new(),
        };
        altered.survey();
        altered
    }

    fn survey(&mut self) {
        let geometry = self.header.geometry;
        let length = u64::from(self.header.l1_entries) * 8;
        let l1 = words(&self.original, self.header.l1_offset, length, 8);
        self.l1 = l1.into_iter().map(|(at, word, _)| (at, L1Entry(word))).collect();
        let cluster = geometry.cluster_size.bytes();
        for (_, entry) in &self.l1 {
            let table = entry.table().unwrap();
            let entries = words(&self.original, table, cluster, geometry.l2_entry_bytes());
            self.l2.extend(entries.into_iter().map(|(at, word, bitmap)| Mapped {
                at,
                word,
                bitmap: SubclusterBitmap(bitmap),
                kind: L2Entry(word).kind(&geometry).unwrap(),
            }));
        }
        let table = self.header.refcount_table_offset;
        let length = u64::from(self.header.refcount_table_clusters) * cluster;
        let block = |(at, word, _): (u64, u64, u64)| {
            ((at - table.get()) / 8, at, entry::refcount_block_offset(word).unwrap())
        };
        self.blocks = words(&self.original, table, length, 8).into_iter().map(block).collect();
    }

    pub fn geometry(&self) -> Geometry {
        self.header.geometry
    }

    /// Returns the first L2 entry whose kind is `wanted`.
    pub fn find(&self, wanted: impl Fn(&ClusterKind) -> bool) -> Option<Mapped> {
        self.l2.iter().copied().find(|entry| wanted(&entry.kind))
    }

    /// Returns the offsets of the refcount blocks.
    pub fn block_hosts(&self) -> Vec<HostOffset> {
        self.blocks.iter().map(|(_, _, host)| *host).collect()
    }

    /// Returns the offsets of the refcount table's entries that are not empty.
    pub fn block_entries(&self) -> Vec<u64> {
        self.blocks.iter().map(|(_, at, _)| *at).collect()
    }

    pub fn first_snapshot(&self) -> Option<SnapshotEntry> {
        let mut fixed = [0; SNAPSHOT_FIXED_BYTES];
        self.original.read_at(self.header.snapshots_offset, &mut fixed).unwrap();
        (self.header.snapshots > 0).then(|| SnapshotEntry::parse(&fixed))
    }

    pub fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.original.read_at(HostOffset::new(at), &mut word).unwrap();
        u64::from_be_bytes(word)
    }

    pub fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.original.read_at(HostOffset::new(at), &mut byte).unwrap();
        byte[0]
    }

    /// Writes bytes at any offset of the file, also past its end.
    /// Writes bytes, which is a change of the image.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Option<()> {
        self.patches.push((at, bytes.to_vec()));
        Some(())
    }

    pub fn write_word(&mut self, at: u64, word: u64) -> Option<()> {
        self.write(at, &word.to_be_bytes())
    }

    /// Returns the entry of a normal cluster.
    pub fn normal(&self) -> Option<Mapped> {
        self.find(|kind| matches!(kind, ClusterKind::Normal(_)))
    }

    /// Returns the refcount of the cluster that contains `host`, or `None` if no block counts it.
    pub fn count(&self, host: HostOffset) -> Option<u64> {
        let (block, index) = self.counted_at(host)?;
        let order = self.geometry().refcount_order;
        let mut bytes = vec![0; self.geometry().cluster_size.bytes_usize()];
        self.original.read_at(block, &mut bytes).unwrap();
        entry::refcount_at(&bytes, order, index)
    }

    /// Sets a refcount. Returns false if no block counts the cluster or the count does not fit.
    pub fn set_count(&mut self, host: HostOffset, count: u64) -> bool {
        let Some((block, index)) = self.counted_at(host) else { return false };
        if count > self.geometry().max_refcount() {
            return false;
        }
        let order = self.geometry().refcount_order;
        let bits = 1 << order;
        if bits >= 8 {
            let width = bits / 8;
            self.write(block.get() + (index * width) as u64, &count.to_be_bytes()[8 - width..]);
        } else {
            let at = block.get() + (index * bits / 8) as u64;
            let shift = index * bits % 8;
            let mask = ((1u64 << bits) - 1) << shift;
            let byte = u64::from(self.byte(at)) & !mask | count << shift;
            self.write(at, &[byte as u8]);
        }
        true
    }

    fn counted_at(&self, host: HostOffset) -> Option<(HostOffset, usize)> {
        let geometry = self.geometry();
        let cluster = geometry.cluster_size.host_cluster(host).get();
        let index = cluster / geometry.refcounts_per_block();
        let (_, _, block) = self.blocks.iter().find(|(at, _, _)| *at == index)?;
        Some((*block, (cluster % geometry.refcounts_per_block()) as usize))
    }

    /// Returns the altered image.
    pub fn image(&self) -> Image {
        let mut bytes: Vec<(u64, Vec<u8>)> =
            self.original.written().map(|data| (data.offset.get(), data.bytes.to_vec())).collect();
        for (at, patch) in &self.patches {
            for (at, value) in (*at..).zip(patch) {
                let holds = |(start, there): &(u64, Vec<u8>)| {
                    *start <= at && at - start < there.len() as u64
                };
                match bytes.iter().position(holds) {
                    Some(index) => {
                        let (start, there) = &mut bytes[index];
                        there[(at - *start) as usize] = *value;
                    }
                    None => bytes.push((at, vec![*value])),
                }
            }
        }
        let mut image = Image::default();
        bytes.iter().for_each(|(at, there)| image.write(HostOffset::new(*at), there));
        image.seal(self.original.length_bytes());
        image
    }
}

/// Returns the offset, the first word and the second word (or 0) of each entry of a table that is not empty.
fn words(image: &Image, table: HostOffset, length: u64, entry_bytes: u64) -> Vec<(u64, u64, u64)> {
    let until = table + length.next_multiple_of(GRAIN_BYTES);
    let mut scratch = vec![0; 32 << 10];
    let mut found = Vec::new();
    let mut from = table;
    while from < until
        && let Some(data) = image.next_data(from, until, &mut scratch).unwrap()
    {
        let mut at = data.offset.get();
        for entry in data.bytes.chunks_exact(entry_bytes as usize) {
            let word =
                |at: usize| entry.get(at..at + 8).map_or([0; 8], |it| it.try_into().unwrap());
            let (first, second) = (u64::from_be_bytes(word(0)), u64::from_be_bytes(word(8)));
            if first | second != 0 {
                found.push((at, first, second));
            }
            at += entry_bytes;
        }
        from = HostOffset::new(at);
    }
    found
}
