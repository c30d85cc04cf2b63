//! The parts of the last image that the oracles have found correct. Between two checkpoints, most of a disk does not
//! change.

use crate::disk::extent::Extent;
use crate::harness::model::{Model, Visible};

/// The parts and the extents of a disk that the oracles have found correct. Empty before the first image of a run.
#[derive(Debug, Default)]
pub struct VerifiedParts {
    visible: Vec<Visible>,
    extents: Vec<Extent>,
}

impl VerifiedParts {
    /// Removes everything, and keeps the buffers.
    pub fn clear(&mut self) {
        self.visible.clear();
        self.extents.clear();
    }

    /// Records that all of a disk is correct.
    pub fn note(&mut self, model: &Model, extents: &[Extent]) {
        self.clear();
        self.visible.extend_from_slice(model.visible());
        self.extents.extend_from_slice(extents);
    }

    /// Returns a filter that passes the parts of the disk that differ from the known ones. The caller must pass parts
    /// in the order of the disk.
    pub fn new_visible(&self) -> impl FnMut(&Visible) -> bool {
        new_in(&self.visible, |visible| visible.start)
    }

    /// Returns the same filter for extents.
    pub fn new_extents(&self) -> impl FnMut(&Extent) -> bool {
        new_in(&self.extents, |extent| extent.start.get())
    }
}

/// Returns a filter that passes values that are not in `known`. Both are in the order of `start`.
fn new_in<T: PartialEq>(known: &[T], start: impl Fn(&T) -> u64) -> impl FnMut(&T) -> bool {
    let mut rest = known;
    move |item| {
        while let Some((first, behind)) = rest.split_first() {
            if start(first) >= start(item) {
                return first != item;
            }
            rest = behind;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_new() {
        let start = |item: &(u64, char)| item.0;
        let known = [(0, 'a'), (4, 'b'), (8, 'c'), (9, 'd')];
        let now = [(0, 'a'), (3, 'b'), (4, 'b'), (8, 'x'), (9, 'd'), (12, 'a')];
        let mut is_new = new_in(&known, start);
        let new: Vec<_> = now.iter().filter(|item| is_new(item)).collect();
        assert_eq!(new, [&(3, 'b'), &(8, 'x'), &(12, 'a')]);
        let is_new = new_in(&[], start);
        assert!(now.iter().all(is_new));
    }
}
