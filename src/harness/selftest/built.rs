//! A plain image of the self-test, built, and the reference model of its disk.

use crate::harness::chain::Chain;
use crate::harness::model::Model;
use crate::harness::rounded::DiskSizes;
use crate::harness::{Harness, Walker};

/// A plain image that was built, and its model.
pub(super) struct BuiltImage {
    pub(super) chain: Chain,
    pub(super) model: Model,
}

impl BuiltImage {
    /// Builds the image of a program.
    pub(super) fn new(program: &[u8]) -> Self {
        let mut harness = Harness::new(Walker::default());
        harness.build(program);
        let mut model = Model::new();
        model.replay(harness.vm().journals());
        Self { chain: Chain::new(harness.images()), model }
    }

    /// Returns the sizes of its disks, as the image stores them.
    pub(super) fn sizes(&self) -> DiskSizes {
        let snapshots = self.model.stored_snapshot_sizes_bytes().collect();
        DiskSizes { active: self.model.stored_size_bytes(), snapshots }
    }
}
