//! From the builder's state to the image's bytes.

use std::ops::Range;

use bytes::BufMut;

use crate::content::{STAMP_BYTES, WriteNumber, stamp};
use crate::image::Image;
use crate::qcow2::entry::{CompressedRun, L1Entry, L2Entry, SubclusterBitmap};
use crate::qcow2::header::{
    COMPATIBLE_LAZY_REFCOUNTS, Compression, EXTENSION_END, EXTENSION_FEATURE_NAMES, Header,
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_EXTENDED_L2, V2_LENGTH_BYTES,
    V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES, Version,
};
use crate::qcow2::units::{GuestOffset, HostCluster, HostOffset};

use super::Builder;
use super::l1::L1;
use super::placement::Placement;
use super::refcounts::Refcounts;
use super::sparse_table;
use super::tables::{Compressed, Entry, Extended, TableId, Tables};

/// What the header says beyond the geometry. A version 2 header has room for none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderOptions {
    /// The compatible feature bit; the counts are kept up to date all the same.
    pub lazy_refcounts: bool,
    /// The compression type field is there also where it says zlib.
    pub compression_field: bool,
    /// A feature name table.
    pub feature_names: bool,
    /// An extension of a type that no reader knows.
    pub unknown_extension: bool,
}

/// A header extension type that QEMU does not know.
const EXTENSION_UNKNOWN: u32 = 0x7143_6675;

/// Buffers for [`Builder::build`], reused from image to image.
#[derive(Debug, Default)]
pub struct Scratch {
    placement: Placement,
    refcounts: Refcounts,
    written_tables: Vec<bool>,
}

impl Builder {
    /// Allocates the refcount structures for what has been built so far and writes the whole image.
    /// The builder itself is not changed: the next build places them anew.
    pub fn build(&self, scratch: &mut Scratch, image: &mut Image) {
        let placement = &mut scratch.placement;
        placement.copy_from(&self.placement);
        placement.lift_limit();
        let geometry = &self.plan.geometry;
        scratch.refcounts.allocate(placement, geometry, self.plan.refcounts);
        image.clear();
        self.write_header(image, &scratch.refcounts);
        scratch.written_tables.clear();
        scratch.written_tables.resize(self.tables.count(), false);
        self.write_l1(image, &self.active, true, &mut scratch.written_tables);
        self.write_snapshots(image, &mut scratch.written_tables);
        scratch.refcounts.serialise(image, geometry, placement.clusters.runs());
        image.seal(geometry.cluster_size.saturating_bytes(placement.clusters.end()));
    }

    fn header(&self, refcounts: &Refcounts) -> Header {
        let Self { plan, active, .. } = self;
        let geometry = plan.geometry;
        let (table, table_clusters) = refcounts.table();
        let zstd = geometry.compression == Compression::Zstd;
        let mut incompatible = 0;
        if zstd {
            incompatible |= INCOMPATIBLE_COMPRESSION;
        }
        if geometry.extended_l2 {
            incompatible |= INCOMPATIBLE_EXTENDED_L2;
        }
        Header {
            geometry,
            size_bytes: plan.size_bytes,
            l1_entries: u32::try_from(active.entries).unwrap_or(u32::MAX),
            l1_offset: self.l1_offset(active),
            refcount_table_offset: geometry.cluster_size.host_offset(table),
            refcount_table_clusters: u32::try_from(table_clusters).unwrap_or(u32::MAX),
            snapshots: self.snapshot_count() as u32,
            snapshots_offset: self.snapshot_table(),
            backing_file_offset: HostOffset::ZERO,
            backing_file_bytes: 0,
            incompatible,
            compatible: if plan.header.lazy_refcounts { COMPATIBLE_LAZY_REFCOUNTS } else { 0 },
            autoclear: 0,
            header_length_bytes: match geometry.version {
                Version::V2 => V2_LENGTH_BYTES,
                Version::V3 if zstd || plan.header.compression_field => V3_COMPRESSION_LENGTH_BYTES,
                Version::V3 => V3_LENGTH_BYTES,
            },
        }
    }

    fn write_header(&self, image: &mut Image, refcounts: &Refcounts) {
        let header = self.header(refcounts);
        let length = header.header_length_bytes as usize;
        header.write(image.place(HostOffset::ZERO, length));
        if header.geometry.version == Version::V2 {
            return;
        }
        let mut at = HostOffset::new(length as u64);
        if self.plan.header.feature_names {
            at = write_extension(image, at, EXTENSION_FEATURE_NAMES, 3 * 48, |out| {
                let names = [(0, 0, "dirty bit"), (0, 1, "corrupt bit"), (1, 0, "lazy refcounts")];
                for (mut row, (kind, bit, name)) in out.chunks_mut(48).zip(names) {
                    row.put_u8(kind);
                    row.put_u8(bit);
                    row.put_slice(name.as_bytes());
                }
            });
        }
        if self.plan.header.unknown_extension {
            at = write_extension(image, at, EXTENSION_UNKNOWN, 13, |out| out.fill(0xA5));
        }
        write_extension(image, at, EXTENSION_END, 0, |_| {});
    }

    pub(super) fn l1_offset(&self, l1: &L1) -> HostOffset {
        match l1.clusters {
            0 => HostOffset::ZERO,
            _ => self.plan.geometry.cluster_size.host_offset(HostCluster::new(l1.first)),
        }
    }

    /// Writes an L1 table and the tables below it that are not written yet. COPIED is said in the
    /// active disk's tables only: elsewhere it means nothing (specification, "L1 table entry").
    pub(super) fn write_l1(&self, image: &mut Image, l1: &L1, active: bool, written: &mut [bool]) {
        let cluster_size = self.plan.geometry.cluster_size;
        sparse_table::write(image, self.l1_offset(l1), l1.tables(), |table| {
            let copied = active && !self.table_is_shared(table);
            L1Entry::new(cluster_size.host_offset(self.tables.host(table)), copied).0
        });
        for (index, table) in l1.tables() {
            if !std::mem::replace(&mut written[Tables::index(*table)], true) {
                self.write_l2(image, *index, *table, active);
            }
        }
    }

    fn write_l2(&self, image: &mut Image, l1_index: u64, table: TableId, active: bool) {
        let geometry = &self.plan.geometry;
        let entry_bytes = geometry.l2_entry_bytes();
        let host = geometry.cluster_size.host_offset(self.tables.host(table));
        let table_guest = l1_index * geometry.l2_span_bytes();
        for (first, page) in self.tables.pages(table) {
            let length = page.len() * entry_bytes as usize;
            let out = image.place(host.saturating_add(first * entry_bytes), length);
            for (entry, mut out) in page.iter().zip(out.chunks_exact_mut(entry_bytes as usize)) {
                if *entry != Entry::Unallocated {
                    let (word, bitmap) = self.encode(*entry, active);
                    out.put_u64(word);
                    if geometry.extended_l2 {
                        out.put_u64(bitmap.0);
                    }
                }
            }
            for (index, entry) in (first..).zip(page) {
                if *entry != Entry::Unallocated {
                    let guest = table_guest + index * geometry.cluster_size.bytes();
                    self.write_content(image, GuestOffset::new(guest), *entry);
                }
            }
        }
    }

    #[inline]
    fn encode(&self, entry: Entry, active: bool) -> (u64, SubclusterBitmap) {
        let copied = |host: HostOffset| active && self.host_references(host) == 1;
        let word = match entry {
            Entry::Unallocated => L2Entry(0),
            Entry::Zero(host) => L2Entry::zero(host, host.is_some_and(copied)),
            Entry::Normal(host, _) => L2Entry::normal(host, copied(host)),
            Entry::Compressed(Compressed { offset, length_bytes, .. }) => {
                let run = CompressedRun::new(offset, u64::from(length_bytes));
                L2Entry::compressed(run, self.plan.geometry.cluster_size)
            }
            Entry::Extended(Extended { host, bitmap, .. }) => {
                let word = host.map_or(L2Entry(0), |host| L2Entry::normal(host, copied(host)));
                return (word.0, bitmap);
            }
        };
        (word.0, SubclusterBitmap::default())
    }

    #[inline]
    fn write_content(&self, image: &mut Image, guest: GuestOffset, entry: Entry) {
        match entry {
            Entry::Unallocated
            | Entry::Zero(None)
            | Entry::Extended(Extended { host: None, .. }) => {}
            // What lies where zeros are read is not zeros: who reads through the flag is found out.
            // A cluster that is shared holds somebody's data already.
            Entry::Zero(Some(host)) => {
                if self.host_references(host) == 1 {
                    let length = self.plan.geometry.cluster_size.bytes();
                    write_stamps(image, guest, host, length, WriteNumber::default());
                }
            }
            Entry::Normal(host, write) => {
                let length = self.plan.geometry.cluster_size.bytes();
                write_stamps(image, guest, host, length, write);
            }
            Entry::Compressed(Compressed { offset, shape, write, length_bytes }) => {
                let payload = self.payloads.made(&self.plan.geometry, shape);
                let out = image.place(offset, length_bytes as usize);
                payload.write(out, &stamp(guest, write));
            }
            Entry::Extended(Extended { host: Some(host), bitmap, writes }) => {
                let length = self.plan.geometry.cell_bytes();
                let writes = self.tables.writes(writes);
                for run in written_runs(bitmap, writes) {
                    let delta = run.start as u64 * length;
                    let guest = guest.saturating_add(delta);
                    let run_bytes = run.len() as u64 * length;
                    write_stamps(
                        image,
                        guest,
                        host.saturating_add(delta),
                        run_bytes,
                        writes[run.start],
                    );
                }
            }
        }
    }
}

/// Runs of subclusters that were written by the same write and say the same: each is one piece of
/// data, with stamps at its edges only. What was written stays in the file, allocated now or not.
fn written_runs(
    bitmap: SubclusterBitmap,
    writes: &[WriteNumber],
) -> impl Iterator<Item = Range<usize>> {
    let (allocated, zero) = (bitmap.allocated(), bitmap.zero());
    let says = move |at: usize| (allocated & 1 << at != 0, zero & 1 << at != 0, writes[at]);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..writes.len()).find(|at| writes[*at] != WriteNumber::default())?;
        at = start + (start..writes.len()).take_while(|next| says(*next) == says(start)).count();
        Some(start..at)
    })
}

/// Writes a header extension; returns where the next one begins.
fn write_extension(
    image: &mut Image,
    at: HostOffset,
    kind: u32,
    length_bytes: usize,
    content: impl FnOnce(&mut [u8]),
) -> HostOffset {
    let whole = 8 + length_bytes.next_multiple_of(8);
    let mut out = image.place(at, whole);
    out.put_u32(kind);
    out.put_u32(length_bytes as u32);
    content(&mut out[..length_bytes]);
    at.saturating_add(whole as u64)
}

/// Stamps the first and the last bytes of a piece of data.
#[inline]
fn write_stamps(
    image: &mut Image,
    guest: GuestOffset,
    host: HostOffset,
    length_bytes: u64,
    write: WriteNumber,
) {
    image.write(host, &stamp(guest, write));
    let last = length_bytes - STAMP_BYTES as u64;
    image.write(host.saturating_add(last), &stamp(guest.saturating_add(last), write));
}
