//! The declarations that an image is meant to have. They come from the plan and the operations, never from a function
//! that encodes.

use crate::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, COMPATIBLE_LAZY_REFCOUNTS,
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_DIRTY,
    INCOMPATIBLE_EXTENDED_L2,
};
use crate::formats::qcow2::geometry::Compression;
use crate::images::declarations::{BitmapDeclaration, Declarations, DeclaredStrings, StringOwner};

use super::builder::Builder;
use super::header::names::Names;
use super::header::style::HeaderFlags;
use super::state::GivenString;

impl Builder {
    /// Records the declarations that the image is meant to have.
    pub(super) fn declare(&self, names: &Names, declarations: &mut Declarations) {
        let plan = &self.plan;
        if let Some(backing) = plan.backing {
            declarations.backing_name.extend_from_slice(names.backing);
            declarations.backing_format = plan.names_backing_format().then_some(backing.format);
        }
        if plan.data_file.is_some() {
            declarations.data_file_name.extend_from_slice(names.data_file);
        }
        declarations.features = self.declared_features();
        let vm_states = self.snapshots.live().iter().map(|snapshot| snapshot.vm_state_bytes);
        declarations.vm_state_bytes.extend(vm_states);
        declarations.bitmaps.extend(self.bitmaps.live().iter().map(|bitmap| BitmapDeclaration {
            in_use: bitmap.in_use,
            auto: bitmap.auto,
            granularity_bits: bitmap.granularity_bits,
        }));
        self.declare_strings(names, &mut declarations.strings);
    }

    /// Records the strings that the program gives.
    fn declare_strings(&self, names: &Names, strings: &mut DeclaredStrings) {
        let mut add = |owner, string: Option<GivenString>| {
            string.into_iter().for_each(|string| strings.add(owner, self.given.string(string)));
        };
        for (index, bitmap) in self.bitmaps.live().iter().enumerate() {
            add(StringOwner::BitmapName(index), bitmap.name);
        }
        for (index, snapshot) in self.snapshots.live().iter().enumerate() {
            add(StringOwner::SnapshotId(index), snapshot.details.id);
            add(StringOwner::SnapshotName(index), snapshot.details.name);
        }
        if let Some(kind) = self.given_extension_kind(names) {
            add(StringOwner::Extension(kind), self.plan.extension_body);
        }
    }

    /// Returns the known feature bits: incompatible, compatible, autoclear.
    fn declared_features(&self) -> [u64; 3] {
        let plan = &self.plan;
        let has_bitmaps = self.bitmaps.live > 0 || self.bitmaps.bit_left;
        let has_zstd = plan.geometry.compression == Compression::Zstd;
        let sum = |bits: &[(bool, u64)]| bits.iter().filter(|it| it.0).map(|it| it.1).sum();
        [
            sum(&[
                (plan.is_dirty(), INCOMPATIBLE_DIRTY),
                (plan.has(HeaderFlags::CORRUPT), INCOMPATIBLE_CORRUPT),
                (plan.data_file.is_some(), INCOMPATIBLE_DATA_FILE),
                (has_zstd, INCOMPATIBLE_COMPRESSION),
                (plan.geometry.extended_l2, INCOMPATIBLE_EXTENDED_L2),
            ]),
            sum(&[(plan.has_lazy_refcounts(), COMPATIBLE_LAZY_REFCOUNTS)]),
            sum(&[
                (has_bitmaps, AUTOCLEAR_BITMAPS),
                (plan.has_raw_data_file(), AUTOCLEAR_RAW_DATA_FILE),
            ]),
        ]
    }
}
