//! Watched entries: the fields and entries of the images of a chain that an implementation has read, our walker or
//! another one, and the operation of the program that each depends on. Some entries that it has not read are kept, too.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::{MAX_LAYERS, MAX_WATCHED_EXTENTS};
use crate::disk::clusters::ClusterSize;
use crate::disk::error::StorageError;
use crate::disk::extent::{Extent, Window};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Data, Layer, Storage};
use crate::findings::explain::provenance::Provenance;
use crate::formats::anatomy::{Element, Part};
use crate::harness::cases::tracer::AccessedRange;
use crate::images::files::image::Image;
use crate::images::files::{FileNames, Images, LayerFile};
use crate::images::format::layer_anatomy::LayerAnatomy;
use crate::images::limits::Limits;
use crate::programs::operation::Class;
use crate::programs::{Effect, Program, Vm};
use crate::walkers::{Disk, WalkScratch, map_extents};

use super::refcounts::RefcountEntry;

/// The number of entries of a part that were not read and that are kept, for each layer.
const MAX_UNREAD: usize = 64;

/// A field or an entry of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The layer, counted from the top.
    pub depth: usize,
    /// The file of the layer that contains it.
    pub file: LayerFile,
    /// The part of the file that contains it.
    pub part: Part,
    /// The number of the entry, as [`LayerAnatomy::element`] takes it.
    pub nth: u16,
    /// The host offset of its first byte.
    pub at: HostOffset,
    /// A checksum covers it.
    pub is_sealed: bool,
    /// The first guest byte that the entry maps, if it maps any.
    pub guest: Option<GuestOffset>,
    /// The last operation on the layer that changed the guest range that the entry maps. If the program applied a
    /// snapshot, only operations that the snapshot contains count. `None` if no single operation determines the entry.
    pub operation: Option<usize>,
}

/// Runs programs and records the entries that an implementation reads. It reuses all buffers.
#[derive(Debug, Default)]
pub struct Watch {
    vm: Vm,
    images: Images,
    names: FileNames,
    anatomy: LayerAnatomy,
    scratch: WalkScratch,
    /// The reads of each layer, the top first.
    reads: Vec<LayerReads>,
    /// The mappings of each layer, the bottom first.
    provenance: Vec<Provenance>,
    read: Vec<Watched>,
    unread: Vec<Watched>,
}

/// The ranges that were read, of the image of a layer and of the files beside it.
#[derive(Debug, Default)]
struct LayerReads {
    image: RefCell<Vec<Range<u64>>>,
    extents: [RefCell<Vec<Range<u64>>>; MAX_EXTENT_FILES],
}

impl Watch {
    /// Runs `program`, builds its images, walks them, and notes the entries that the walker read, and others.
    pub fn run(&mut self, program: &Program, limits: Limits) -> &Self {
        self.build(program, limits);
        self.forget_reads();
        self.walk();
        self.note_all()
    }

    /// Does the same, but another implementation has read the images: it has accessed these ranges.
    pub fn run_accessed(
        &mut self,
        program: &Program,
        limits: Limits,
        accessed: &[AccessedRange],
    ) -> &Self {
        self.build(program, limits);
        self.forget_reads();
        for AccessedRange { depth, file, bytes } in accessed {
            // A data file has no entries.
            if *file != LayerFile::DataFile
                && let Some(reads) = self.reads.get_mut(*depth)
            {
                reads.of_file(*file).get_mut().push(bytes.clone());
            }
        }
        self.note_all()
    }

    /// Runs `program`, builds its images, and returns the entries of refcount structures that are not zero, of the
    /// image at the top.
    pub fn refcounts(&mut self, program: &Program, limits: Limits) -> Vec<RefcountEntry> {
        self.build(program, limits);
        let top = self.images.top();
        if top.format != ImageFormat::Qcow2 {
            return Vec::new();
        }
        // The images that a program builds are valid.
        let entries = super::refcounts::entries(&top.image);
        debug_assert!(entries.is_ok(), "{entries:?}");
        entries.unwrap_or_default()
    }

    /// Returns the operations that wrote clusters in these bytes of the last image at the top, in order.
    pub fn operations_in(&self, bytes: &Range<u64>) -> Vec<usize> {
        self.provenance.last().map_or_else(Vec::new, |top| top.lying_in(bytes))
    }

    /// Forgets all ranges, and makes room for those of all layers.
    fn forget_reads(&mut self) {
        let Self { images, reads, .. } = self;
        reads.resize_with(images.layers().count().max(reads.len()), LayerReads::default);
        reads.iter_mut().flat_map(LayerReads::files_mut).for_each(|reads| reads.get_mut().clear());
    }

    /// Notes the entries of all layers.
    fn note_all(&mut self) -> &Self {
        self.read.clear();
        self.unread.clear();
        for depth in 0..self.images.layers().count() {
            self.note_entries(depth);
        }
        self
    }

    /// Notes the entries of a layer, part by part.
    fn note_entries(&mut self, depth: usize) {
        let Self { anatomy, reads, provenance, read, unread, images, .. } = self;
        let mut layers = images.layers().zip(reads).zip(provenance.iter().rev());
        let Some(((files, reads), provenance)) = layers.nth(depth) else { return };
        if files.format == ImageFormat::Raw {
            return;
        }
        reads.files_mut().for_each(|reads| merge(reads.get_mut()));
        // The images that a program builds are valid.
        let taken_apart = anatomy.read(files);
        debug_assert!(taken_apart.is_ok(), "{taken_apart:?}");
        for part in Part::ALL {
            let first_unread = unread.len();
            for (index, (file, element)) in anatomy.elements_of(part).enumerate() {
                let Ok(nth) = u16::try_from(index * 2) else { break };
                let entries = match was_read(reads.of_file(file).get_mut(), &element) {
                    true => &mut *read,
                    false if unread.len() - first_unread < MAX_UNREAD => &mut *unread,
                    false => continue,
                };
                let maps_any = !element.guest.is_empty();
                entries.push(Watched {
                    depth,
                    file,
                    part,
                    nth,
                    at: element.at,
                    is_sealed: element.seal.is_some(),
                    guest: maps_any.then(|| GuestOffset::new(element.guest.start)),
                    operation: provenance.last_touching(&element.guest),
                });
            }
        }
    }

    /// Returns the entries that were read in the last run, layer by layer and part by part.
    pub fn read(&self) -> &[Watched] {
        &self.read
    }

    /// Returns entries that were not read in the last run, in the same order; of each part of a layer, the first ones.
    pub fn unread(&self) -> &[Watched] {
        &self.unread
    }

    /// Returns the cluster size of the image at the top.
    pub fn cluster_size(&self) -> ClusterSize {
        self.vm.builder().plan().geometry.cluster_size
    }

    fn build(&mut self, program: &Program, limits: Limits) {
        self.provenance.clear();
        self.provenance.push(Provenance::default());
        self.vm.begin(&program.prologue, limits);
        for (index, operation) in program.operations.iter().enumerate() {
            let before = self.vm.journal().mark();
            let effect = self.vm.step(*operation);
            if (operation.class(), effect) == (Class::Overlays, Effect::Changed) {
                self.provenance.push(Provenance::default());
            } else if let Some(top) = self.provenance.last_mut() {
                top.follow(self.vm.journal(), before, index);
            }
        }
        self.images.resize(0);
        self.vm.build(&self.names, &mut self.images, &());
    }

    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "a layer has Arcs, and they stay in this thread"
    )]
    fn walk(&mut self) {
        let Self { images, reads, scratch, .. } = self;
        let layer_images = images.layers().zip(&*reads);
        let layer_images: SmallVec<[Reading; MAX_LAYERS]> = layer_images
            .map(|(files, reads)| Reading { image: &files.image, reads: &reads.image })
            .collect();
        let extents = images.layers().zip(&*reads).map(|(files, reads)| {
            let beside = files.extents.all().iter().zip(&reads.extents);
            let reading = beside.map(|(image, reads)| Reading { image: image.as_ref(), reads });
            reading.map(|file| Arc::new(file) as Arc<dyn Storage + '_>).collect()
        });
        let extents: SmallVec<[Vec<Arc<dyn Storage + '_>>; MAX_LAYERS]> = extents.collect();
        let layers = images.layers().zip(&layer_images).zip(&extents);
        let layers = layers.map(|((files, image), extents)| {
            let layer = files.layer().erased(extents);
            Layer { image: image as &dyn Storage, ..layer }
        });
        let chain: SmallVec<[Layer; MAX_LAYERS]> = layers.collect();
        let mut left = MAX_WATCHED_EXTENTS;
        let mut count = |_: Extent| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if let Ok(disk) = Disk::open_as(images.top().format, &chain) {
            // The result does not matter: the reads of a failed walk count too.
            let _ = map_extents(&disk, Window::ALL, scratch, &mut count);
        }
    }
}

impl LayerReads {
    fn of_file(&mut self, file: LayerFile) -> &mut RefCell<Vec<Range<u64>>> {
        match file {
            LayerFile::Extent(index) => &mut self.extents[index],
            LayerFile::Image | LayerFile::DataFile => &mut self.image,
        }
    }

    fn files_mut(&mut self) -> impl Iterator<Item = &mut RefCell<Vec<Range<u64>>>> {
        std::iter::once(&mut self.image).chain(&mut self.extents)
    }
}

/// Sorts ranges, and merges neighbouring and overlapping ones.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let meets = next.start <= last.end;
        if meets {
            last.end = last.end.max(next.end);
        }
        meets
    });
}

fn was_read(reads: &[Range<u64>], element: &Element) -> bool {
    let Range { start, end } = element.range();
    let next = reads.partition_point(|range| range.end <= start.get());
    reads.get(next).is_some_and(|range| range.start < end.get())
}

/// An image that records its reads.
struct Reading<'r> {
    image: &'r Image,
    reads: &'r RefCell<Vec<Range<u64>>>,
}

impl Reading<'_> {
    fn note(&self, offset: HostOffset, length: usize) {
        let end = offset.get().saturating_add(length as u64);
        self.reads.borrow_mut().push(offset.get()..end);
    }
}

impl Storage for Reading<'_> {
    fn length_bytes(&self) -> u64 {
        self.image.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.note(offset, into.len());
        self.image.read_at(offset, into)
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let data = self.image.next_data(from, until, scratch)?;
        if let Some(Data { offset, bytes }) = &data {
            self.note(*offset, bytes.len());
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::operand::Base;
    use crate::programs::text::assemble;

    #[test]
    fn what_is_read_goes_back_to_what_wrote_it() {
        let program = assemble(
            "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 \
             rng_seed=0 blocks=append table=append tolerance=0
             write at=start+4 clusters=2
             snapshot
             zero at=start+5 clusters=1 keep=no
             discard at=start+4 clusters=1
             write at=start+4 clusters=1",
        );
        let mut watch = Watch::default();
        let watched = watch.run(&program.unwrap(), Limits::WALKED).read();
        let of = |part| -> Vec<_> {
            watched.iter().filter(|it| it.part == part).map(|it| it.operation).collect()
        };
        assert_eq!(of(Part::L2), [Some(4), Some(2)]);
        assert_eq!(of(Part::L1), [Some(4)]);
        // The walker reads the header in full, only the entry of a snapshot, and no refcounts.
        assert_eq!(of(Part::Header).len(), 18);
        assert!(of(Part::Header).iter().all(Option::is_none));
        assert_eq!(of(Part::RefcountBlock), []);
        assert_eq!(of(Part::Snapshot).len(), 9);
        assert_eq!(of(Part::SnapshotTable), []);
    }

    #[test]
    fn entries_of_all_layers_are_watched() {
        let program = assemble(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 \
             rng_seed=0 blocks=append table=append tolerance=0
             write at=start+4 clusters=1
             overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same
             write at=start+9 clusters=1",
        );
        let mut watch = Watch::default();
        let watched = watch.run(&program.unwrap(), Limits::WALKED).read();
        let tables = watched.iter().filter(|it| it.part == Part::L2);
        let written: Vec<_> = tables.filter_map(|it| Some((it.depth, it.operation?))).collect();
        assert_eq!(written, [(0, 2), (1, 0)]);
        // The walker reads no refcounts, but other readers do.
        for depth in [0, 1] {
            let of_layer = |it: &&Watched| it.depth == depth && it.part == Part::RefcountBlock;
            assert!(watch.unread().iter().any(|it| of_layer(&it)), "{depth}");
        }
    }

    #[test]
    fn entries_of_every_format_are_watched() {
        // All fields of the structures with a checksum, except for the checksums, in the order of the formats; QEMU
        // reads one of two directories.
        let sealed = [12 + 6, 2 * 10 + 2 + 2 * 5, 0, 0];
        assert_eq!(Base::other_formats().count(), sealed.len());
        for (format, sealed) in Base::other_formats().zip(sealed) {
            let base = format.name();
            let program = assemble(&format!(
                "image version=3 cluster_bits=16 refcount_order=4 features=none size=512<<20+0 \
                 rng_seed=0 blocks=append table=append tolerance=0 base={base}
                 write at=start+4 clusters=1
                 write at=start+5 clusters=1"
            ));
            let mut watch = Watch::default();
            let watched = watch.run(&program.unwrap(), Limits::WALKED).read();
            let table = watched.iter().filter(|it| it.part == Part::Table);
            let operations: Vec<_> = table.filter_map(|it| it.operation).collect();
            assert_eq!(operations, [0, 1], "{base}");
            assert_eq!(watched.iter().filter(|it| it.is_sealed).count(), sealed, "{base}");
        }
    }

    #[test]
    fn entries_of_the_files_of_extents_are_watched() {
        let base = ImageFormat::with_extents().next().unwrap().name();
        let program = assemble(&format!(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=40<<12+0 \
             rng_seed=0 blocks=append table=append tolerance=0 base={base}
             extent kind=sparse length=1<<2 lead=0
             extent kind=se_sparse length=1<<2 lead=0
             extent kind=flat length=1<<0 lead=0
             write at=start+1 clusters=1
             write at=start+5 clusters=1
             write at=start+9 clusters=1"
        ));
        let mut watch = Watch::default();
        let watched = watch.run(&program.unwrap(), Limits::WALKED).read();
        let table = watched.iter().filter(|it| it.part == Part::Table);
        let table: Vec<_> = table.map(|it| (it.file, it.operation)).collect();
        let [sparse, se_sparse] = [0, 1].map(LayerFile::Extent);
        assert_eq!(table, [(sparse, Some(3)), (se_sparse, Some(4))]);
        let of = |file| watched.iter().filter(|it| it.file == file).count();
        assert!(of(sparse) > 10 && of(se_sparse) > 30 && of(LayerFile::Image) > 20);
        assert_eq!(of(LayerFile::Extent(2)), 0);
    }

    #[test]
    fn an_entry_that_a_snapshot_brought_back_goes_back_to_the_operation_before_the_snapshot() {
        let program = assemble(
            "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 \
             rng_seed=0 blocks=append table=append tolerance=0
             write at=start+4 clusters=1
             snapshot
             write at=start+4 clusters=1
             write at=start+5 clusters=1
             apply_snapshot index=0
             write at=start+6 clusters=1",
        );
        let mut watch = Watch::default();
        let watched = watch.run(&program.unwrap(), Limits::WALKED).read();
        let of = |part| -> Vec<_> {
            watched.iter().filter(|it| it.part == part).map(|it| it.operation).collect()
        };
        // The snapshot undoes the write of operation 2, although that is the last write to this cluster.
        assert_eq!(of(Part::L2), [Some(0), Some(5)]);
        assert_eq!(of(Part::L1), [Some(5)]);
    }
}
