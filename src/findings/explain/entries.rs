//! The fields and entries of an image, with their values.

use std::ops::Range;

use crate::base::limits::MAX_EXPLAINED_ENTRIES;
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{Anatomy, ByteOrder, Element, Part};
use crate::images::image::Image;

use super::spelled::{ImageFacts, spelled};

/// A field or an entry.
#[derive(Clone, Debug)]
pub struct ExplainedEntry {
    /// The part of the image that contains it.
    pub part: Part,
    /// The name of a field in the specification; empty for an entry.
    pub name: &'static str,
    /// The host offset of its first byte.
    pub at: HostOffset,
    /// Its width in bytes: 1, 2, 4 or 8.
    pub width_bytes: u8,
    /// The order of its bytes.
    pub order: ByteOrder,
    /// The guest range that it maps: empty if it maps nothing, the whole disk if it affects all of it.
    pub guest: Range<u64>,
    /// The value that the build wrote.
    pub value: u64,
    /// The value that a hostile program wrote over it, and the meaning of that value's bits.
    pub damaged: Option<(u64, String)>,
    /// The meaning of the value's bits.
    pub spelled: String,
    /// The last operation that changed the guest range that it maps.
    pub operation: Option<usize>,
    /// True if the walker reads it.
    pub read: bool,
}

/// Returns the entries of an image, part by part, at most [`MAX_EXPLAINED_ENTRIES`].
pub(super) fn of(
    image: &Image,
    anatomy: &Anatomy,
    facts: &ImageFacts,
    operation: impl Fn(&Range<u64>) -> Option<usize>,
) -> Vec<ExplainedEntry> {
    let entry = |element: &Element| {
        let Element { part, name, at, width_bytes, order, .. } = *element;
        let value = order.in_order(image.number(at, width_bytes), width_bytes);
        let guest = element.guest.clone();
        let spelled = spelled(part, name, value, facts);
        let operation = operation(&guest);
        let (damaged, read) = (None, false);
        ExplainedEntry {
            part,
            name,
            at,
            width_bytes,
            order,
            guest,
            value,
            damaged,
            spelled,
            operation,
            read,
        }
    };
    anatomy.elements().take(MAX_EXPLAINED_ENTRIES).map(entry).collect()
}
