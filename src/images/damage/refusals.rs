//! The places of damaged images at which every reader must refuse.

use crate::disk::image_format::ImageFormat;
use std::ops::Range;

use crate::formats::anatomy::{EVERYTHING, Element, Part};
use crate::images::files::Images;

use super::apply::Damage;
use super::entry_rules::EntryRules;
use super::open_rules::{BrokenRule, broken_at_open};

/// A guest range of a layer that no reader may answer with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the layer, counted down from the top.
    pub depth: usize,
    /// The guest range. If QEMU does not open the layer, this is the whole disk.
    pub guest: Range<u64>,
    /// The rule that the damage breaks.
    pub rule: BrokenRule,
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
        if self.is_trapped() || self.changed().is_empty() {
            return;
        }
        for (depth, files) in
            images.layers().enumerate().take_while(|(_, files)| files.format == ImageFormat::Qcow2)
        {
            let image = &files.image;
            match broken_at_open(image) {
                // QEMU may probe the format of a layer below, and take a file without the magic number for a raw one.
                Some("magic" | "version") if depth > 0 => return,
                Some(rule) => return into.push(Refusal { depth, guest: EVERYTHING, rule }),
                None => {}
            }
            let all = || self.changed().iter().filter(|changed| changed.depth == depth);
            if all().any(|changed| changed.element.guest == EVERYTHING) {
                return;
            }
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
                into.extend(broken.map(|rule| Refusal { depth, guest: guest.clone(), rule }));
            }
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
