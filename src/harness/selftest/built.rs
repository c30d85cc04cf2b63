//! A plain image of the self-test, built, and the reference model of its disk.

use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
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
}
