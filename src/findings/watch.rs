//! Watched entries: the fields and entries of an image that the walker has read, and the operation of the program that
//! each depends on. If the program builds a chain, only the image at the top is watched.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::extent::{Extent, Window};
use crate::disk::file_parts::MAX_EXTENT_FILES;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::{MAX_LAYERS, MAX_WATCHED_EXTENTS};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Layer, Storage};
use crate::formats::anatomy::{Element, Part};
use crate::images::files::{FileNames, Images, LayerFile};
use crate::images::image::Image;
use crate::images::layer_anatomy::LayerAnatomy;
use crate::images::limits::Limits;
use crate::programs::operation::Class;
use crate::programs::{Effect, Program, Vm};
use crate::walkers::{Disk, WalkScratch, map_extents};

use super::provenance::Provenance;

/// A field or an entry that the walker read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
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
    /// The last operation that changed the guest range that the entry maps. If the program applied a snapshot, only
    /// operations that the snapshot contains count. `None` if no single operation determines the entry.
    pub operation: Option<usize>,
}

/// Runs programs and records the entries that the walker reads. It reuses all buffers.
#[derive(Debug, Default)]
pub struct Watch {
    vm: Vm,
    images: Images,
    names: FileNames,
    anatomy: LayerAnatomy,
    scratch: WalkScratch,
    /// The ranges that the walker read, of the image and of the files beside it.
    reads: RefCell<Vec<Range<u64>>>,
    extent_reads: [RefCell<Vec<Range<u64>>>; MAX_EXTENT_FILES],
    provenance: Provenance,
    watched: Vec<Watched>,
}

impl Watch {
    /// Runs `program`, builds its images, walks them, and returns the entries that the walker read, part by part.
    pub fn run(&mut self, program: &Program, limits: Limits) -> &[Watched] {
        self.build(program, limits);
        self.watched.clear();
        let format = self.images.top().format;
        if format == ImageFormat::Raw {
            return &self.watched;
        }
        self.walk();
        let Self { anatomy, reads, extent_reads, provenance, watched, .. } = self;
        merge(reads.get_mut());
        extent_reads.iter_mut().for_each(|reads| merge(reads.get_mut()));
        // The image that a program builds is valid.
        let read = anatomy.read(self.images.top());
        debug_assert!(read.is_ok(), "{read:?}");
        for part in Part::ALL {
            for (index, (file, element)) in anatomy.elements_of(part).enumerate() {
                let Ok(nth) = u16::try_from(index * 2) else { break };
                let reads = match file {
                    LayerFile::Extent(index) => &mut extent_reads[index],
                    LayerFile::Image | LayerFile::DataFile => &mut *reads,
                };
                if was_read(reads.get_mut(), &element) {
                    let operation = provenance.last_touching(&element.guest);
                    let (at, is_sealed) = (element.at, element.seal.is_some());
                    watched.push(Watched { file, part, nth, at, is_sealed, operation });
                }
            }
        }
        watched
    }

    fn build(&mut self, program: &Program, limits: Limits) {
        self.provenance.clear();
        self.vm.begin(&program.prologue, limits);
        for (index, operation) in program.operations.iter().enumerate() {
            let before = self.vm.journal().mark();
            let effect = self.vm.step(*operation);
            if (operation.class(), effect) == (Class::Overlays, Effect::Changed) {
                // The layer that was the top is now below the top.
                self.provenance.clear();
                continue;
            }
            self.provenance.follow(self.vm.journal(), before, index);
        }
        self.images.resize(0);
        self.vm.build(&self.names, &mut self.images, &());
    }

    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "a layer has Arcs, and they stay in this thread"
    )]
    fn walk(&mut self) {
        self.reads.get_mut().clear();
        self.extent_reads.iter_mut().for_each(|reads| reads.get_mut().clear());
        let top = Reading { image: &self.images.top().image, reads: &self.reads };
        let extents = self.images.layers().enumerate().map(|(depth, files)| match depth {
            0 => {
                let beside = files.extents.all().iter().zip(&self.extent_reads);
                let reading = beside.map(|(image, reads)| Reading { image: image.as_ref(), reads });
                reading.map(|file| Arc::new(file) as Arc<dyn Storage + '_>).collect()
            }
            _ => files.layer().erased_extents(),
        });
        let extents: SmallVec<[Vec<Arc<dyn Storage + '_>>; MAX_LAYERS]> = extents.collect();
        let layers = self.images.layers().zip(&extents).enumerate();
        let layers = layers.map(|(depth, (files, extents))| {
            let layer = files.layer().erased(extents);
            let image = if depth == 0 { &top as &dyn Storage } else { layer.image };
            Layer { image, ..layer }
        });
        let chain: SmallVec<[Layer; MAX_LAYERS]> = layers.collect();
        let mut left = MAX_WATCHED_EXTENTS;
        let mut count = |_: Extent| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if let Ok(disk) = Disk::open_as(self.images.top().format, &chain) {
            // The result does not matter: the reads of a failed walk count too.
            let _ = map_extents(&disk, Window::ALL, &mut self.scratch, &mut count);
        }
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
        let watched = watch.run(&program.unwrap(), Limits::WALKED);
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
    fn entries_of_every_format_are_watched() {
        // All fields of the structures with a checksum, except for the checksums; QEMU reads one region table of VHDX.
        for (base, sealed) in [("vpc", 12 + 6), ("vhdx", 2 * 10 + 2 + 2 * 5), ("vmdk", 0)] {
            let program = assemble(&format!(
                "image version=3 cluster_bits=16 refcount_order=4 features=none size=512<<20+0 \
                 rng_seed=0 blocks=append table=append tolerance=0 base={base}
                 write at=start+4 clusters=1
                 write at=start+5 clusters=1"
            ));
            let mut watch = Watch::default();
            let watched = watch.run(&program.unwrap(), Limits::WALKED);
            let table = watched.iter().filter(|it| it.part == Part::Table);
            let operations: Vec<_> = table.filter_map(|it| it.operation).collect();
            assert_eq!(operations, [0, 1], "{base}");
            assert_eq!(watched.iter().filter(|it| it.is_sealed).count(), sealed, "{base}");
        }
    }

    #[test]
    fn entries_of_the_files_of_extents_are_watched() {
        let program = assemble(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=40<<12+0 \
             rng_seed=0 blocks=append table=append tolerance=0 base=vmdk
             extent kind=sparse length=1<<2 lead=0
             extent kind=se_sparse length=1<<2 lead=0
             extent kind=flat length=1<<0 lead=0
             write at=start+1 clusters=1
             write at=start+5 clusters=1
             write at=start+9 clusters=1",
        );
        let mut watch = Watch::default();
        let watched = watch.run(&program.unwrap(), Limits::WALKED);
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
        let watched = watch.run(&program.unwrap(), Limits::WALKED);
        let of = |part| -> Vec<_> {
            watched.iter().filter(|it| it.part == part).map(|it| it.operation).collect()
        };
        // The snapshot undoes the write of operation 2, although that is the last write to this cluster.
        assert_eq!(of(Part::L2), [Some(0), Some(5)]);
        assert_eq!(of(Part::L1), [Some(5)]);
    }
}
