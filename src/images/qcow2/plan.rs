//! The settings that a program fixes before its first operation.

use crate::formats::qcow2::geometry::{Geometry, Version};
use crate::images::format::file_plan::FilePlan;

use super::header::style::{
    BackingPlan, DataFilePlan, HeaderFlags, HeaderOptions, HeaderStyle, NamesFormat,
};
use super::refcounts::RefcountPlacement;
use super::state::GivenString;

/// The size of the largest disk: whole sectors, less than 2^63 bytes.
pub const MAX_SIZE_BYTES: u64 = (1 << 63) - 512;

/// The settings that a program fixes before its first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Version, cluster size, refcount width, extended L2 and compression type.
    pub geometry: Geometry,
    /// The size of the disk as the header stores it.
    pub size_bytes: u64,
    /// The other parts of the header.
    pub header: HeaderOptions,
    /// The form of the header, if the program selects one.
    pub style: Option<HeaderStyle>,
    /// The body of the first unknown extension of that form, if the program gives it.
    pub extension_body: Option<GivenString>,
    /// The backing file.
    pub backing: Option<BackingPlan>,
    /// The external data file.
    pub data_file: Option<DataFilePlan>,
    /// The placement of the refcount structures.
    pub refcounts: RefcountPlacement,
    /// The seed of all random placement.
    pub rng_seed: u64,
    /// The file: qcow2, or another format that follows the decisions of this builder.
    pub file: FilePlan,
}

impl ImagePlan {
    /// Returns the size of the disk in whole sectors, as readers see it.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes & !511
    }

    /// Reports whether the image has an external data file that is a raw image of the disk.
    pub(super) fn has_raw_data_file(&self) -> bool {
        self.data_file.is_some_and(|data_file| data_file.raw)
    }

    /// Reports whether the image is meant to have the dirty bit.
    pub(super) fn is_dirty(&self) -> bool {
        self.has(HeaderFlags::DIRTY) || self.has(HeaderFlags::OUT_OF_DATE)
    }

    /// Reports whether the image is meant to have the bit for lazy refcounts.
    pub(super) fn has_lazy_refcounts(&self) -> bool {
        self.header.lazy_refcounts || self.has(HeaderFlags::OUT_OF_DATE)
    }

    /// Reports whether an extension is meant to name the format of the backing file.
    pub(super) fn names_backing_format(&self) -> bool {
        self.backing.is_some_and(|backing| match backing.names_format {
            NamesFormat::Never => false,
            NamesFormat::Usually => !self.has(HeaderFlags::NO_FORMAT),
            NamesFormat::Always => true,
        })
    }

    /// Creates a plain image in one file. Clusters are appended to its end.
    pub fn new(geometry: Geometry, size_bytes: u64) -> Self {
        Self {
            geometry,
            size_bytes,
            header: HeaderOptions::default(),
            style: None,
            extension_body: None,
            backing: None,
            data_file: None,
            refcounts: RefcountPlacement::default(),
            rng_seed: 0,
            file: FilePlan::default(),
        }
    }

    /// Reports whether the program sets this flag. Feature bits and unknown fields need version 3.
    pub(super) fn has(&self, flag: HeaderFlags) -> bool {
        const ANY_VERSION: HeaderFlags = HeaderFlags::FEATURE_NAMES
            .with(HeaderFlags::UNKNOWN_NAMES)
            .with(HeaderFlags::JUNK)
            .with(HeaderFlags::NO_END)
            .with(HeaderFlags::NAME_AT_END)
            .with(HeaderFlags::EMPTY_NAME)
            .with(HeaderFlags::NO_FORMAT);
        let possible = self.geometry.version == Version::V3 || ANY_VERSION.has(flag);
        possible && self.style.is_some_and(|style| style.flags.has(flag))
    }
}
