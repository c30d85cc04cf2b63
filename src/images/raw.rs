//! Raw files. The builder of qcow2 images writes them ([`Builder::build_raw`]).

use crate::disk::clusters::ClusterSize;
use crate::disk::observer::Observer;

use super::content::unstamped::EntryForm;
use super::damage::FieldChange;
use super::damage::rules::{BrokenEntry, BrokenRule};
use super::files::LayerFiles;
use super::files::image::Image;
use super::format::file_plan::{FilePlan, TableReach};
use super::format::{BuildBuffers, ImageDrawer, NewLayer};
use super::qcow2;
use super::qcow2::Builder;

/// The drawer of the format.
pub struct Drawer;

/// Each file is a valid raw image.
impl ImageDrawer for Drawer {
    fn plan(&self, _form: u16, _reach: TableReach, _block: ClusterSize) -> FilePlan {
        FilePlan::default()
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        _buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        _observer: &dyn Observer,
    ) {
        layer.builder.build_raw(layer.has_holes, files);
    }

    /// The image at the top is never a raw file.
    fn report_vitals(&self, _builder: &Builder, _buffers: &BuildBuffers, _observer: &dyn Observer) {
    }

    fn entry_form(&self) -> EntryForm {
        qcow2::Drawer.entry_form()
    }

    /// Data are read only by reads.
    fn structure_bytes(&self, _files: usize) -> u64 {
        4 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        Vec::new()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        &[]
    }

    fn broken_at_open(&self, _image: &Image) -> Option<BrokenRule> {
        None
    }

    fn broken_entries(&self, _image: &Image, _take: &mut dyn FnMut(BrokenEntry)) {}

    fn has_signature(&self, _image: &Image, _rule: BrokenRule) -> bool {
        true
    }

    /// A program with a raw base builds a qcow2 image if it lays no overlay on the base.
    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        qcow2::Drawer.attacks()
    }

    fn begins_with_data(&self) -> bool {
        true
    }

    fn created_of_20(&self) -> u64 {
        2
    }
}
