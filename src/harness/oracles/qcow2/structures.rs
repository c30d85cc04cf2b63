//! The structures of all images of a chain: the refcounts of each are right, and each declares what was meant. Does not
//! check the content of the tables: the model does.

use smallvec::SmallVec;

use crate::disk::limits::MAX_LAYERS;
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::bounds::TableBytes;
use crate::images::files::Images;

use super::declarations;
use super::recount::Recount;
use super::refcounts;

/// Recounts the images of a chain, and measures their tables on the way.
#[derive(Debug, Default)]
pub struct Structures {
    recount: Recount,
    declarations: declarations::Reader,
    /// Bytes of the active L1 and L2 tables of each layer, holes not counted, from the lowest layer up.
    layer_table_bytes: SmallVec<[u64; MAX_LAYERS]>,
    table_bytes: TableBytes,
}

impl Structures {
    /// Judges the images of a chain. It skips the layers that did not change since the last chain of the same run: it
    /// has judged them. It judges the declarations only `in_full`.
    pub fn check(&mut self, images: &Images, in_full: bool) -> OracleResult {
        self.layer_table_bytes.truncate(images.unchanged());
        self.table_bytes.of_a_snapshot = 0;
        for files in images.layers().rev().skip(images.unchanged()) {
            let mut active_bytes = 0;
            if !files.raw {
                refcounts::check(&mut self.recount, &files.image, &files.out_of_date)?;
                active_bytes = self.recount.active_table_bytes();
                self.table_bytes.of_a_snapshot = self.recount.snapshot_table_bytes();
            }
            self.layer_table_bytes.push(active_bytes);
        }
        self.table_bytes.active = self.layer_table_bytes.iter().sum();
        let below = self.layer_table_bytes.split_last().map_or(0, |(_, below)| below.iter().sum());
        self.table_bytes.of_a_snapshot += below;
        if in_full {
            for files in images.layers().rev().filter(|files| !files.raw) {
                self.declarations.check(&files.image, &files.declarations)?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of tables in the chain that was judged last.
    pub fn table_bytes(&self) -> TableBytes {
        self.table_bytes
    }
}
