//! Oracles of the structures of images: they judge the bytes without an engine. The structures of all images of a chain
//! are judged here: of qcow2, refcounts, declarations and raw data files; of the other formats, their layout. Does not
//! check the content of the tables: the model does.
//!
//! `raw_data_file`: a raw data file contains the whole disk: a reader that opens it as a raw image gets the guest's
//! bytes (qcow2 specification, "Autoclear features", bit 1). An engine that reads through the tables cannot show that.
//! Checks the edges of every piece, as `data` does; if an engine has written the file, the edges that `written` checks.
//! The file of an engine may end with the last cluster of the disk: QEMU writes this cluster as a whole. Does not check
//! a raw data file below an overlay, and the length of the file after a cut.

pub mod bitmaps;
pub mod declarations;
pub mod kept;
pub mod recount;
pub mod refcounts;

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::qcow2::head::Head;
use crate::harness::cases::case::Case;
use crate::harness::engine::EngineError;
use crate::harness::files::chain::ChainFile;
use crate::harness::model::Model;
use crate::images::files::image::Image;

use super::bounds::{self, TableBytes};
use super::layout::LayoutJudge;
use super::written::{BeyondEdges, DiskReader, ExpectedDisk, Moment, WrittenBuffers};
use super::{OracleResult, SetAside, Violation, data, violation};

use recount::Recount;

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
        check_raw_data_file(file, &self.model)
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
                layer.table_bytes = self.layout.check(files, below.map(AsRef::as_ref))?;
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

const RAW_DATA_FILE: &str = "raw_data_file";

/// Compares a raw data file with the disk that `model` expects.
pub fn check_raw_data_file(file: &Image, model: &Model) -> OracleResult {
    let size_bytes = model.virtual_size_bytes();
    check_raw_length(file, size_bytes..=size_bytes)?;
    data::edges::check(&mut read_of(file), model, |_| true, &mut Err)
        .map_err(|violation| violation.attributed_to(RAW_DATA_FILE))
}

/// Compares a raw data file that an engine has written with the disk that the guest expects.
pub(crate) fn check_written_raw(
    file: &ChainFile,
    disk: &impl ExpectedDisk,
    moment: Moment,
    buffers: &mut WrittenBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    let set_aside = &mut |found: Box<Violation>| set_aside(found.attributed_to(RAW_DATA_FILE));
    let read = &mut read_of(file);
    DiskReader { read, disk, moment, buffers }.check(BeyondEdges::Nothing, set_aside)
}

/// Checks the length of a raw data file: a reader that opens it as a raw image gets the size of the disk from it.
pub(crate) fn check_raw_length(file: &impl Storage, expected: RangeInclusive<u64>) -> OracleResult {
    let actual_bytes = file.length_bytes();
    match expected.contains(&actual_bytes) {
        true => Ok(()),
        false => violation(RAW_DATA_FILE, "length", ("that of the disk", "another"), || {
            let (least, most) = expected.into_inner();
            format!("expected {least} to {most} bytes, found {actual_bytes}")
        }),
    }
}

/// Reads the disk as a reader does that opens the file as a raw image.
fn read_of(file: &impl Storage) -> impl FnMut(GuestOffset, &mut [u8]) -> Result<(), EngineError> {
    |guest, into| Ok(file.read_at(HostOffset::new(guest.get()), into)?)
}
