//! The structures of all images of a chain, judged without an engine: of qcow2, refcounts, declarations and raw
//! data files; of the other formats, their layout. Does not check the content of the tables: the model does.

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::head::Head;
use crate::harness::cases::case::Case;
use crate::harness::model::Model;
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::bounds::{self, TableBytes};

use super::super::layout::LayoutJudge;
use super::recount::Recount;
use super::{declarations, raw_data_file, refcounts};

/// The results of a layer's recount.
#[derive(Debug, Default)]
struct RecountedLayer {
    /// `None` if the layer is no qcow2 image.
    head: Option<Head>,
    /// The bytes of the tables of the disk: of qcow2's active L1 and L2 tables, holes not counted.
    table_bytes: u64,
    /// The number of bytes that a walk may read of the layer.
    walk_bytes: u64,
}

/// Judges the images of a chain, and measures their tables on the way.
#[derive(Debug, Default)]
pub struct Structures {
    recount: Recount,
    layout: LayoutJudge,
    declarations: declarations::DeclarationReader,
    /// The disk that a raw data file must contain.
    model: Model,
    /// The layers that were judged, from the lowest up.
    layers: SmallVec<[RecountedLayer; MAX_LAYERS]>,
    table_bytes: TableBytes,
}

impl Structures {
    /// Judges the images of a chain. Recounts only the layers that have changed since the last chain of the same run.
    /// Judges declarations and raw data files only where the case is judged in full.
    pub fn check(&mut self, case: &Case) -> OracleResult {
        self.recount(case)?;
        if !case.in_full {
            return Ok(());
        }
        for (files, layer) in case.images.layers().rev().zip(&self.layers) {
            if let Some(head) = &layer.head {
                self.declarations.check(head, &files.image, &files.declarations)?;
            }
        }
        let Some(file) = case.images.raw_data_file() else { return Ok(()) };
        self.model.replay(case.journals.iter().copied());
        raw_data_file::check(file, &self.model)
    }

    fn recount(&mut self, case: &Case) -> OracleResult {
        let images = case.images;
        self.layers.truncate(images.unchanged());
        self.table_bytes.of_a_snapshot = 0;
        let mut layers = images.layers().rev();
        let mut below = images.unchanged().checked_sub(1).and_then(|last| layers.nth(last));
        for files in layers {
            let mut layer = RecountedLayer::default();
            if files.format == ImageFormat::Qcow2 {
                refcounts::check(&mut self.recount, &files.image, &files.out_of_date, &mut Err)?;
                layer.head = self.recount.take_head();
                layer.table_bytes = self.recount.active_table_bytes();
                self.table_bytes.of_a_snapshot = self.recount.snapshot_table_bytes();
            } else {
                layer.table_bytes = {
                    let below = below.map(AsRef::as_ref);
                    match files.extents.all() {
                        [] => self.layout.check(files.format, &files.image, below)?,
                        _ => self.layout.check_extents(files, below)?,
                    }
                };
            }
            let count = files.extents.all().len();
            layer.walk_bytes = bounds::layer_bytes(files.format, layer.table_bytes, count);
            below = Some(files);
            self.layers.push(layer);
        }
        let sum = |layers: &[RecountedLayer]| layers.iter().map(|layer| layer.table_bytes).sum();
        self.table_bytes.active = sum(&self.layers);
        self.table_bytes.walk = self.layers.iter().map(|layer| layer.walk_bytes).sum();
        let below: u64 = self.layers.split_last().map_or(0, |(_, below)| sum(below));
        self.table_bytes.of_a_snapshot += below;
        Ok(())
    }

    /// Returns the bytes of tables in the chain that was judged last.
    pub fn table_bytes(&self) -> TableBytes {
        self.table_bytes
    }
}
