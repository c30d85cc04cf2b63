//! The drawer of qcow2.

use crate::disk::clusters::ClusterSize;
use crate::disk::observer::Observer;
use crate::images::damage::FieldChange;
use crate::images::file_plan::{FilePlan, TableReach};
use crate::images::files::LayerFiles;
use crate::images::format::{BuildBuffers, ImageDrawer, NewLayer};
use crate::images::image::Image;
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::unstamped::EntryForm;

use super::{Builder, attacks, rules, rules_of_entries};

/// The drawer of the format. The builder itself places the structures of an image.
pub struct Drawer;

impl ImageDrawer for Drawer {
    fn plan(&self, _form: u16, _reach: TableReach, _block: ClusterSize) -> FilePlan {
        FilePlan::default()
    }

    fn build(
        &self,
        layer: NewLayer<'_>,
        buffers: &mut BuildBuffers,
        files: &mut LayerFiles,
        observer: &dyn Observer,
    ) {
        layer.builder.build(&layer.names, &mut buffers.qcow2, files, observer);
    }

    fn report_vitals(&self, builder: &Builder, buffers: &BuildBuffers, observer: &dyn Observer) {
        builder.report_vitals(&buffers.qcow2, observer);
    }

    /// An L2 entry with the bit COPIED.
    fn entry_form(&self) -> EntryForm {
        EntryForm { width_bytes: 8, is_big_endian: true, unit_bits: 0, flags: 1 << 63 }
    }

    /// The header's cluster. Larger ones are mostly empty.
    fn structure_bytes(&self, _files: usize) -> u64 {
        64 << 10
    }

    fn open_rules(&self) -> Vec<BrokenRule> {
        rules::open_rule_names().collect()
    }

    fn entry_rules(&self) -> &'static [BrokenRule] {
        &rules_of_entries::ENTRY_RULES
    }

    fn broken_at_open(&self, image: &Image) -> Option<BrokenRule> {
        rules::broken_at_open(image)
    }

    /// Only the entries that an attack has changed are judged, with [`EntryRules`](super::EntryRules).
    fn broken_entries(&self, _image: &Image, _take: &mut dyn FnMut(BrokenEntry)) {}

    fn has_signature(&self, _image: &Image, rule: BrokenRule) -> bool {
        ![rules::MAGIC_RULE, rules::VERSION_RULE].contains(&rule)
    }

    fn attacks(&self) -> &'static [&'static [FieldChange]] {
        attacks::ATTACKS
    }
}
