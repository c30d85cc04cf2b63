//! References from bitmaps: the directory, the tables, and the bits.

use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap;
use crate::formats::qcow2::bitmap::{
    BitmapCluster, BitmapEntry, BitmapTableEntry, BitmapsExtension,
};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;

use super::{Recount, Role};

impl Recount {
    /// Reads the directory and the tables that it names, as QEMU does at open (`bitmap_list_load`). Does not check
    /// that names differ.
    pub(super) fn bitmaps<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
        extension: &BitmapsExtension,
    ) -> Result<(), MapError> {
        let BitmapsExtension { directory_bytes, directory_offset, .. } = *extension;
        let geometry = &header.geometry;
        self.reference(geometry, directory_offset, directory_bytes, Role::BitmapDirectory);
        bitmap::each_entry(storage, extension, |index, _, entry| {
            if let Some(what) = entry.fault(geometry, header.virtual_size_bytes()) {
                return Err(MapError::Bitmap { index, what });
            }
            self.bitmap_table(storage, geometry, entry, index)?;
            self.check_bound()
        })
    }

    fn bitmap_table<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        entry: &BitmapEntry,
        index: u32,
    ) -> Result<(), MapError> {
        let table = HostTable::bitmap(entry);
        self.reference(geometry, table.start, table.length_bytes, Role::BitmapTable);
        self.each_piece(storage, table, 0, |recount, skipped, piece| {
            recount.bitmap_entries += piece.len() / 8;
            for (at, bytes) in (skipped / 8..).zip(piece.as_chunks::<8>().0) {
                if at >= u64::from(entry.table_entries) {
                    break;
                }
                let word = BitmapTableEntry(u64::from_be_bytes(*bytes));
                let cluster = word.cluster(geometry.cluster_size);
                if let BitmapCluster::Data(host) =
                    cluster.map_err(|what| MapError::Bitmap { index, what })?
                {
                    let cluster = geometry.cluster_size.bytes();
                    recount.reference(geometry, host, cluster, Role::BitmapData);
                }
            }
            recount.check_bound()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, Walker};

    #[test]
    fn one_table_that_is_named_again_and_again_is_too_large() {
        let program = "image version=3 cluster_bits=9 refcount_order=4 features=none \
                       size=1<<24+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                       bitmap granularity=9 flags=auto name=8\n\
                       bitmap granularity=9 flags=auto name=8\n\
                       fill_bitmap index=0 entry=0 entries=8 fill=ones\n\
                       fill_bitmap index=1 entry=0 entries=8 fill=ones\n";
        let program = crate::programs::text::assemble(program).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        assert!(Recount::bounded(16).recount(image).is_ok());
        let ones = Recount::bounded(15).recount(image).map(drop);
        assert_eq!(ones, Err(MapError::TooLarge("too many entries of bitmap tables")));
    }
}
