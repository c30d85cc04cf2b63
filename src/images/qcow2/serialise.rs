//! Writes the image's bytes from the builder's state.

use std::ops::Range;

use bytes::BufMut;

use crate::disk::clusters::{ClusterSize, SUBCLUSTERS};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::images::content::fill::{DeepCluster, between_stamps, fill};
use crate::images::content::unstamped::{MAX_UNSTAMPED_BYTES, UnstampedData};
use crate::images::content::{Look, LookOfCluster, STAMP_BYTES, WriteContent, WriteNumber, stamp};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;
use crate::images::format::looks::{self, MadeLook};

use super::builder::Builder;
use super::encoding::{Sizes, Subclusters};
use super::payload::payload;
use super::placement::Placement;
use super::plan::{HeaderFlags, Names};
use super::refcounts::RefcountStructures;
use super::refcounts::out_of_date::OutOfDate;
use super::state::L1;
use super::tables::{ClusterMapping, Compressed, Extended, L2Tables, SubclusterWrites, TableId};
use super::{encoding, tables};

/// The buffers of [`Builder::build`], reused from image to image.
#[derive(Debug, Default)]
pub struct BuildScratch {
    pub(super) placement: Placement,
    pub(super) refcounts: RefcountStructures,
    pub(super) out_of_date: OutOfDate,
    written_tables: Vec<bool>,
}

/// The destination of an image.
pub(super) struct Writer<'w> {
    pub(super) files: &'w mut LayerFiles,
    /// The L2 tables that are already written.
    written: &'w mut [bool],
}

impl Writer<'_> {
    /// Returns the file that holds guest data.
    fn data(&mut self) -> &mut Image {
        match self.files.has_data_file {
            true => &mut self.files.data_file,
            false => &mut self.files.image,
        }
    }
}

impl Builder {
    /// Allocates the refcount structures for the current state, and writes the whole image and its data file. This
    /// does not change the builder: the next build places the structures anew. `names` are the names of the other
    /// files; see [`Builder::check_names`].
    pub fn build(
        &self,
        names: &Names,
        scratch: &mut BuildScratch,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        let placement = &mut scratch.placement;
        placement.copy_from(&self.placement);
        placement.lift_limit();
        let geometry = &self.plan.geometry;
        scratch.refcounts.allocate(placement, geometry, self.plan.refcounts, observer);
        files.begin(ImageFormat::Qcow2);
        files.has_data_file = self.plan.data_file.is_some();
        files.data_file_is_raw = self.plan.has_raw_data_file();
        scratch.out_of_date.clear();
        if self.plan.has(HeaderFlags::OUT_OF_DATE) {
            self.leave_out_of_date(placement, &mut scratch.out_of_date);
        }
        files.out_of_date.extend_from_slice(scratch.out_of_date.deviations());
        let image = &mut files.image;
        observer.begin(State::Serialise);
        let names = self.write_header(*names, image, &scratch.refcounts);
        self.declare(&names, &mut files.declarations);
        scratch.written_tables.clear();
        scratch.written_tables.resize(self.tables.count(), false);
        let mut writer = Writer { files, written: &mut scratch.written_tables };
        self.write_l1(&mut writer, &self.active, true, observer);
        self.write_snapshots(&mut writer, observer);
        let LayerFiles { image, data_file, .. } = files;
        self.write_bitmaps(image);
        let runs = scratch.out_of_date.runs().unwrap_or(placement.clusters.runs());
        scratch.refcounts.serialise(image, geometry, runs);
        self.seal(image, placement);
        // A raw data file is as long as the disk, any other as long as its written bytes.
        let raw = self.plan.has_raw_data_file();
        let disk_bytes = self.plan.virtual_size_bytes();
        if raw {
            data_file.truncate(disk_bytes);
        }
        data_file.seal(if raw { disk_bytes } else { 0 });
        self.report_rare(scratch, observer);
    }

    pub(super) fn l1_offset(&self, l1: &L1) -> HostOffset {
        self.host_offset(l1.place.0)
    }

    /// Writes an L1 table and the tables below it that are not yet written. Only the active disk's tables have
    /// COPIED; in other tables it has no meaning (specification, "L1 table entry").
    pub(super) fn write_l1(&self, to: &mut Writer, l1: &L1, active: bool, observer: &dyn Observer) {
        let cluster_size = self.plan.geometry.cluster_size;
        tables::write_sparse(&mut to.files.image, self.l1_offset(l1), l1.tables(), |table| {
            let copied = active && !self.table_is_shared(table);
            encoding::l1_entry(cluster_size.host_offset(self.tables.host(table)), copied)
        });
        for (index, table) in l1.tables() {
            if std::mem::replace(&mut to.written[L2Tables::index(*table)], true) {
                observer.event(State::Serialise, Event::SharedTable);
                observer.rare(Rare::SharedTable);
            } else {
                observer.event(State::Serialise, Event::Table);
                self.write_l2(to, *index, *table, active);
            }
        }
    }

    fn write_l2(&self, to: &mut Writer, l1_index: u64, table: TableId, active: bool) {
        let geometry = &self.plan.geometry;
        let entry_bytes = geometry.l2_entry_bytes();
        let host = geometry.cluster_size.host_offset(self.tables.host(table));
        let table_guest = l1_index * geometry.l2_span_bytes();
        for (first, page) in self.tables.pages(table) {
            let length = page.len() * entry_bytes as usize;
            let out = to.files.image.place(host + first * entry_bytes, length);
            for (entry, mut out) in page.iter().zip(out.chunks_exact_mut(entry_bytes as usize)) {
                if *entry != ClusterMapping::Unallocated {
                    let (word, bitmap) = self.encode(*entry, active);
                    out.put_u64(word);
                    if geometry.extended_l2 {
                        out.put_u64(bitmap.bitmap());
                    }
                }
            }
            for (index, entry) in (first..).zip(page) {
                if *entry != ClusterMapping::Unallocated {
                    let guest = table_guest + index * geometry.cluster_size.bytes();
                    self.write_content(to.data(), GuestOffset::new(guest), *entry);
                }
            }
        }
    }

    #[inline]
    fn encode(&self, entry: ClusterMapping, active: bool) -> (u64, Subclusters) {
        let copied = |host: HostOffset| active && self.host_references(host) == 1;
        let word = match entry {
            ClusterMapping::Unallocated => 0,
            ClusterMapping::Zero(host) => encoding::zeros(host, host.is_some_and(copied)),
            ClusterMapping::Normal(host, _) => encoding::allocated(host, copied(host)),
            ClusterMapping::Compressed(Compressed { offset, length_bytes, .. }) => {
                encoding::compressed(offset, length_bytes, self.plan.geometry.cluster_size)
            }
            ClusterMapping::Extended(Extended { host, bitmap, .. }) => {
                let word = host.map_or(0, |host| encoding::allocated(host, copied(host)));
                return (word, bitmap);
            }
        };
        (word, Subclusters::default())
    }

    #[inline]
    fn write_content(&self, image: &mut Image, guest: GuestOffset, entry: ClusterMapping) {
        match entry {
            ClusterMapping::Unallocated
            | ClusterMapping::Zero(None)
            | ClusterMapping::Extended(Extended { host: None, .. }) => {}
            // The host cluster of a zero cluster contains data, so that an engine that ignores the zero flag is
            // found. A shared host cluster already contains data of another cluster.
            ClusterMapping::Zero(Some(host)) => {
                // In a raw data file, the bytes of a zero cluster are zeros.
                if self.host_references(host) == 1 && !self.plan.has_raw_data_file() {
                    let length = self.plan.geometry.cluster_size.bytes();
                    write_stamps(image, guest, host, length, WriteNumber::default());
                }
            }
            // An allocated cluster without a write.
            ClusterMapping::Normal(_, WriteNumber::NONE) => {}
            ClusterMapping::Normal(host, write) => {
                self.write_whole(image, (guest, host), write);
            }
            ClusterMapping::Compressed(Compressed {
                offset, write, given: Some(given), ..
            }) => {
                self.given.write_payload(image, offset, given, &stamp(guest, write));
            }
            ClusterMapping::Compressed(Compressed { offset, kind, write, .. }) => {
                let stamp = stamp(guest, write);
                let (parts, behind) = payload(&self.plan.geometry, kind).stamped(&stamp);
                image.write_parts(offset, &parts, behind);
            }
            ClusterMapping::Extended(Extended { host: Some(host), bitmap, writes }) => {
                // In a raw data file, the bytes of zero subclusters are zeros.
                let said = if self.plan.has_raw_data_file() { bitmap.allocated } else { !0 };
                let writes = self.tables.writes(writes);
                let is_shared = self.host_references(host) != 1;
                let cluster = DataCluster { guest, host, is_shared };
                self.write_subclusters(image, cluster, bitmap, writes, said);
            }
        }
    }

    /// Writes the data of a cluster with subclusters: the runs that begin with a subcluster of `said`.
    pub(super) fn write_subclusters(
        &self,
        image: &mut Image,
        cluster: DataCluster,
        bitmap: Subclusters,
        writes: &SubclusterWrites,
        said: u32,
    ) {
        let length = self.plan.geometry.cell_bytes() as usize;
        for run in written_runs(bitmap, writes).filter(|run| said & 1 << run.start != 0) {
            let bytes = run.start as usize * length..run.end as usize * length;
            write_run(image, cluster, bytes, length, writes[run.start as usize]);
        }
    }

    /// Writes the data of a whole cluster.
    #[inline]
    pub(super) fn write_whole(
        &self,
        image: &mut Image,
        (guest, host): (GuestOffset, HostOffset),
        write: WriteNumber,
    ) {
        let cluster_size = self.plan.geometry.cluster_size;
        match write.content() {
            WriteContent::Stamped => write_stamped(image, cluster_size, (guest, host), write),
            WriteContent::Look(look) => {
                write_look(image, cluster_size, (guest, host), (look, write));
            }
            WriteContent::Deep => {
                write_stamped(image, cluster_size, (guest, host), write);
                write_depths(image, cluster_size, (guest, host), write);
            }
            WriteContent::Unstamped(index) => {
                let data = self.unstamped.get(index as usize);
                data.into_iter().for_each(|data| write_unstamped(image, cluster_size, host, data));
            }
        }
    }
}

/// Returns runs of subclusters with the same write and the same state. Each is one piece of data with stamps at its
/// edges only. Written data stay in the file even if the subcluster is no longer allocated.
fn written_runs(
    bitmap: Subclusters,
    writes: &SubclusterWrites,
) -> impl Iterator<Item = Range<u32>> {
    // Bit i of each mask stands for subcluster i: whether it is written, and whether it differs from the one before.
    let (mut written, mut differs) = (0, 0);
    let mut before = WriteNumber::NONE;
    for (at, write) in writes.iter().enumerate() {
        written |= u32::from(*write != WriteNumber::NONE) << at;
        differs |= u32::from(*write != before) << at;
        before = *write;
    }
    differs |= bitmap.allocated ^ bitmap.allocated << 1 | bitmap.zero ^ bitmap.zero << 1;
    std::iter::from_fn(move || {
        let start = (written != 0).then(|| written.trailing_zeros())?;
        let behind = !(u32::MAX >> (SUBCLUSTERS - 1 - start));
        let end = (differs & behind).trailing_zeros();
        written &= u32::MAX.checked_shl(end).unwrap_or(0);
        Some(start..end)
    })
}

/// Writes stamps at the edges of a whole cluster, and the fill.
#[inline]
fn write_stamped(
    image: &mut Image,
    cluster_size: ClusterSize,
    (guest, host): (GuestOffset, HostOffset),
    write: WriteNumber,
) {
    let cluster = DataCluster { guest, host, is_shared: false };
    let bytes = 0..cluster_size.bytes_usize();
    write_run(image, cluster, bytes, cluster_size.bytes_usize(), write);
}

/// Writes a cluster with a look: the look, a stamp at the other edge, and the fill between them.
fn write_look(
    image: &mut Image,
    cluster_size: ClusterSize,
    (guest, host): (GuestOffset, HostOffset),
    (look, write): (Look, WriteNumber),
) {
    let MadeLook { form, sector } = looks::made(look);
    let edges = LookOfCluster::new(form.is_at_end, cluster_size);
    image.write_parts(host + edges.sector_at, &[], sector);
    if let Some(at) = edges.stamp_at {
        image.write(host + at, &stamp(guest + at, write));
    }
    let between = edges.between(cluster_size);
    let at = host + between.start as u64;
    image.write_parts(at, &[], fill(guest, write, between));
}

/// Writes what a deep cluster has beside the data of other clusters: the stamps inside, and the fill of its tail.
fn write_depths(
    image: &mut Image,
    cluster_size: ClusterSize,
    (guest, host): (GuestOffset, HostOffset),
    write: WriteNumber,
) {
    let Some(deep) = DeepCluster::new(cluster_size) else { return };
    for at in deep.inner_stamps() {
        image.write(host + at, &stamp(guest + at, write));
    }
    let (at, tail) = deep.tail_fill(guest, write);
    image.write_parts(host + at, &[], tail);
}

/// Writes the first bytes of a cluster without stamps.
fn write_unstamped(
    image: &mut Image,
    cluster_size: ClusterSize,
    host: HostOffset,
    data: &UnstampedData,
) {
    let most = cluster_size.bytes_usize().min(MAX_UNSTAMPED_BYTES);
    data.fill(0, image.place(host, data.covered_bytes(most)));
}

/// A cluster of data.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataCluster {
    /// The first guest byte.
    pub(super) guest: GuestOffset,
    /// The offset of its data in the file.
    pub(super) host: HostOffset,
    /// A snapshot shares the data, and may hold the same subclusters as other runs.
    pub(super) is_shared: bool,
}

/// Writes a part of a cluster that is one piece of data: stamps at both edges, and the fill between them. In a cluster
/// that is shared, the fill leaves room for the stamps of other runs, at the edges of the subclusters of `cell_bytes`.
#[inline]
fn write_run(
    image: &mut Image,
    cluster: DataCluster,
    bytes: Range<usize>,
    cell_bytes: usize,
    write: WriteNumber,
) {
    let DataCluster { guest, host, is_shared } = cluster;
    let stamp_at = |at: usize| stamp(guest + at as u64, write);
    let on_host = |at: usize| host + at as u64;
    let between = between_stamps(&bytes);
    let filled = fill(guest, write, between.clone());
    let (start, end) = (bytes.start, between.end);
    if !is_shared && filled.len() == between.len() {
        return image.write_around(on_host(start), &[&stamp_at(start)], filled, &stamp_at(end));
    }
    image.write(on_host(start), &stamp_at(start));
    if is_shared {
        for cell in bytes.step_by(cell_bytes) {
            let between = between_stamps(&(cell..cell + cell_bytes));
            let at = on_host(between.start);
            image.write_parts(at, &[], fill(guest, write, between));
        }
    } else {
        image.write_parts(on_host(between.start), &[], filled);
    }
    image.write(on_host(end), &stamp_at(end));
}

/// Writes stamps to the first and the last bytes of a piece of data, and nothing between them.
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
    image.write(host + last, &stamp(guest + last, write));
}
