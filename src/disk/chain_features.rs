//! Features of chains of images.

/// Features of a chain of images that not every engine supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainFeatures {
    /// Some image has extended L2 entries.
    pub extended_l2: bool,
    /// Some image has zstd-compressed clusters.
    pub zstd: bool,
    /// Some image has an external data file.
    pub data_files: bool,
    /// There is more than one layer.
    pub backing_files: bool,
}
