//! The block allocation table.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::images::file_plan::BlockPlaces;
use crate::images::image::Image;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};

use super::encoding::{EntryState, SECTOR_BYTES};
use super::form::VhdxForm;

/// The number of sectors whose blocks are followed by an entry for a sector bitmap.
const CHUNK_SECTORS: u64 = 1 << 23;
const BAT_ENTRY_BYTES: usize = 8;
/// The number of entries that are written together. Pages without a block stay holes, except for the first one.
const PAGE_ENTRIES: u64 = 16;
const PAGE_BYTES: usize = PAGE_ENTRIES as usize * BAT_ENTRY_BYTES;

/// The shape of a table.
pub(super) struct TableShape {
    block: ClusterSize,
    /// The number of blocks between two entries for sector bitmaps.
    chunk_blocks: u64,
    /// The number of entries that the disk needs. Blocks past its end have entries behind them.
    pub entries: u64,
}

impl TableShape {
    /// Returns the shape of the table of a disk, which has at least one block.
    pub fn new(builder: &Builder) -> Self {
        let block = builder.plan().geometry.cluster_size;
        let chunk_blocks = ((CHUNK_SECTORS * u64::from(SECTOR_BYTES)) >> block.bits()).max(1);
        let mut table = Self { block, chunk_blocks, entries: 0 };
        table.entries = table.index_of(builder.guest_clusters().saturating_sub(1)) + 1;
        table
    }

    /// Returns the index of the entry of a block.
    fn index_of(&self, block: u64) -> u64 {
        block + block / self.chunk_blocks
    }

    /// Writes the entries of `mapped`, which are sorted, and of the blocks around them.
    pub fn write(
        &self,
        image: &mut Image,
        region: HostOffset,
        mapped: &[MappedCluster],
        form: VhdxForm,
        places: &BlockPlaces,
    ) {
        let page_of = |mapped: &MappedCluster| self.index_of(mapped.cluster.get()) / PAGE_ENTRIES;
        if mapped.first().is_none_or(|first| page_of(first) > 0) {
            self.absent_page(image, region, 0, form);
        }
        for page in mapped.chunk_by(|here, then| page_of(here) == page_of(then)) {
            let first = page_of(&page[0]) * PAGE_ENTRIES;
            let out = self.absent_page(image, region, first, form);
            for mapped in page {
                let index = self.index_of(mapped.cluster.get()) - first;
                let entry = self.entry(mapped.mapping, places);
                out[index as usize * BAT_ENTRY_BYTES..][..BAT_ENTRY_BYTES]
                    .copy_from_slice(&entry.to_le_bytes());
            }
        }
    }

    /// Writes the entries from `first` on as those of blocks that the file does not store. Returns their bytes.
    fn absent_page<'i>(
        &self,
        image: &'i mut Image,
        region: HostOffset,
        first: u64,
        form: VhdxForm,
    ) -> &'i mut [u8] {
        let at = region + first * BAT_ENTRY_BYTES as u64;
        let out = image.place(at, PAGE_BYTES);
        let chunk = self.chunk_blocks;
        for (index, entry) in (first..self.entries).zip(out.chunks_exact_mut(BAT_ENTRY_BYTES)) {
            // The entry of a sector bitmap, which only disks with a parent have, is 0.
            if index % (chunk + 1) != chunk {
                entry.copy_from_slice(&(form.absent_state(index) as u64).to_le_bytes());
            }
        }
        out
    }

    fn entry(&self, mapping: ClusterMapping, places: &BlockPlaces) -> u64 {
        let with = |host, state: EntryState| places.start_of(self.block, host) | state as u64;
        match mapping {
            ClusterMapping::Normal(host, _) => with(host, EntryState::Present),
            ClusterMapping::Zero(Some(host)) => with(host, EntryState::Zero),
            ClusterMapping::Zero(None) => EntryState::Zero as u64,
            // Images of this format have no others.
            ClusterMapping::Unallocated
            | ClusterMapping::Compressed(_)
            | ClusterMapping::Extended(_) => EntryState::NotPresent as u64,
        }
    }
}
