//! The places of damaged images at which every reader must refuse.

use crate::disk::image_format::ImageFormat;
use std::ops::Range;

use crate::formats::anatomy::{EVERYTHING, Element, Part};
use crate::images::files::{Images, LayerFile, LayerFiles};
use crate::images::image::Image;
use crate::images::list::drawer;
use crate::images::qcow2::EntryRules;
use crate::images::rule::{BrokenEntry, BrokenRule};

use super::apply::Damage;

/// The largest number of entries of images in other formats than qcow2 that are judged.
const MAX_REFUSALS: usize = 8;

/// A guest range of a layer that no reader may answer with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the layer, counted down from the top.
    pub depth: usize,
    /// The guest range. If QEMU does not open the layer, this is the whole disk.
    pub guest: Range<u64>,
    /// The rule that the damage breaks.
    pub rule: BrokenRule,
    /// QEMU reports a mapping of the range all the same. Only reads must fail.
    pub is_mapped: bool,
}

impl Refusal {
    /// Reports whether QEMU does not open the image at the top.
    pub fn is_of_image(&self) -> bool {
        self.depth == 0 && self.guest == EVERYTHING
    }
}

impl Damage {
    /// Puts the places of `images` at which readers must refuse into `into`. `images` are the damaged ones. A layer is
    /// judged only if the layers above it still name it.
    pub(crate) fn refusals(&self, images: &Images, into: &mut Vec<Refusal>) {
        into.clear();
        // Bytes that change during reads have no single meaning.
        if self.is_trapped() || self.touched().is_empty() {
            return;
        }
        let mut above = None;
        for (depth, files) in images.layers().enumerate() {
            let (format, image) = (files.format, &files.image);
            // QEMU opens the parent of a VMDK image as VMDK, and does not probe it.
            let is_probed = above.replace(format).is_some_and(|above| above != ImageFormat::Vmdk);
            match drawer(format).broken_at_open(image) {
                Some(rule) if is_probed && !drawer(format).has_signature(image, rule) => return,
                Some(rule) => {
                    return into.push(Refusal { depth, guest: EVERYTHING, rule, is_mapped: false });
                }
                None => {}
            }
            if let Some(rule) = self.broken_extent(depth, files) {
                return into.push(Refusal { depth, guest: EVERYTHING, rule, is_mapped: false });
            }
            let mut all = self.changed().iter().filter(|changed| changed.depth == depth);
            if format != ImageFormat::Qcow2 {
                let most = into.len() + MAX_REFUSALS;
                let mut take = |BrokenEntry { rule, guest, is_mapped }| {
                    if into.len() < most {
                        into.push(Refusal { depth, guest, rule, is_mapped });
                    }
                };
                drawer(format).broken_entries(image, &mut take);
                // A damaged descriptor may name no layer below.
                if all.next().is_some() {
                    return;
                }
            } else if all.any(|changed| changed.element.guest == EVERYTHING) {
                return;
            } else {
                self.refused_entries(depth, image, into);
            }
        }
    }

    /// Returns a rule that a file beside the image of the layer at `depth` breaks. A damaged image may not name it.
    fn broken_extent(&self, depth: usize, files: &LayerFiles) -> Option<BrokenRule> {
        let place = (depth, LayerFile::Image);
        match self.changed().iter().any(|changed| (changed.depth, changed.file) == place) {
            true => None,
            false => {
                files.extents.all().iter().find_map(|file| drawer(files.format).broken_extent(file))
            }
        }
    }

    /// Adds the changed entries of a qcow2 image that QEMU does not use.
    fn refused_entries(&self, depth: usize, image: &Image, into: &mut Vec<Refusal>) {
        let all = || self.changed().iter().filter(|changed| changed.depth == depth);
        let rules = EntryRules::new(image);
        for changed in all() {
            let Element { part, at, guest, .. } = &changed.element;
            let moved = || {
                let tables = all().filter(|other| other.element.part == Part::L1);
                tables.into_iter().any(|table| overlap(&table.element.guest, guest))
            };
            let broken = match part {
                Part::L1 => rules.broken_l1(*at),
                Part::L2 if !moved() => rules.broken_l2(*at, guest),
                Part::Bitmap if !moved() => rules.broken_bitmap(*at, guest),
                _ => None,
            };
            let guest = guest.clone();
            into.extend(broken.map(|rule| Refusal { depth, guest, rule, is_mapped: false }));
        }
    }

    /// Reports whether damage of a layer above `depth` can change the mapping of `guest`.
    pub(crate) fn is_touched_above(&self, depth: usize, guest: &Range<u64>) -> bool {
        let above = self.changed().iter().filter(|changed| changed.depth < depth);
        above.into_iter().any(|changed| overlap(&changed.element.guest, guest))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
