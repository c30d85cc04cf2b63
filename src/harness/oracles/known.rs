//! What was found right in the last image of a run. Between two checkpoints most of a disk stays as it was.

use crate::disk::extent::Extent;
use crate::harness::model::{Model, Visible};

/// The parts of a disk, and its extents, that the oracles found right. Empty before the first image of a run.
#[derive(Debug, Default)]
pub struct Known {
    visible: Vec<Visible>,
    extents: Vec<Extent>,
}

impl Known {
    /// Forgets everything but the buffers.
    pub fn clear(&mut self) {
        self.visible.clear();
        self.extents.clear();
    }

    /// Records that all of a disk was found right.
    pub fn note(&mut self, model: &Model, extents: &[Extent]) {
        self.clear();
        self.visible.extend_from_slice(model.visible());
        self.extents.extend_from_slice(extents);
    }

    /// Returns a filter that passes only parts of the disk that differ from those that are known. It takes them in
    /// the order of the disk.
    pub fn new_visible(&self) -> impl FnMut(&Visible) -> bool {
        new_in(&self.visible, |visible| visible.start)
    }

    /// Returns the same filter for extents.
    pub fn new_extents(&self) -> impl FnMut(&Extent) -> bool {
        new_in(&self.extents, |extent| extent.start.get())
    }
}

/// Passes what is not in `known`. Both are in the order of `start`.
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
