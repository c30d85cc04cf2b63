//! The disks of an iteration.

use std::collections::BTreeMap;

use super::data::GuestData;

/// The disks of an iteration, by the names of their files.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestModel {
    pub(crate) disks: BTreeMap<String, GuestData>,
    /// The image below an image.
    pub(crate) backing: BTreeMap<String, String>,
    /// The internal snapshots, by the image and the name.
    pub(crate) snapshots: BTreeMap<(String, String), GuestData>,
}

impl GuestModel {
    /// Returns the bytes of a disk, if anything is known of them.
    pub(crate) fn disk(&self, file: &str) -> Option<&GuestData> {
        self.disks.get(file)
    }

    pub(crate) fn disk_or_unknown(&self, file: &str) -> GuestData {
        self.disks.get(file).cloned().unwrap_or_else(GuestData::unknown)
    }

    /// Forgets a disk, and those above it.
    pub(crate) fn forget(&mut self, file: &str) {
        self.disks.remove(file);
        self.snapshots.retain(|(image, _), _| image != file);
        self.forget_above(file);
    }

    /// Forgets the disks above an image, which has changed.
    pub(crate) fn forget_above(&mut self, file: &str) {
        let above: Vec<String> = self
            .backing
            .iter()
            .filter(|(_, lower)| *lower == file)
            .map(|(upper, _)| upper.clone())
            .collect();
        for upper in above {
            // The check ends the recursion if images back each other in a circle.
            if self.disks.remove(&upper).is_some() {
                self.forget_above(&upper);
            }
        }
    }
}
