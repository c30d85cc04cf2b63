//! The fields and entries of an image, with their values.

use std::ops::Range;

use crate::disk::limits::MAX_EXPLAINED_ENTRIES;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::anatomy::{Anatomy, Element, Part};
use crate::formats::qcow2::geometry::Geometry;
use crate::images::image::Image;

use super::spelled::spelled;

/// A field or an entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it belongs to.
    pub part: Part,
    /// What a field is called in the specification; an entry has no name.
    pub name: &'static str,
    /// Where it lies.
    pub at: HostOffset,
    /// How many bytes it has: 1, 2, 4 or 8.
    pub width_bytes: u8,
    /// Which guest bytes it maps; nothing, or everything where it is of no one's in particular.
    pub guest: Range<u64>,
    /// Its value, as the build wrote it.
    pub value: u64,
    /// What a hostile program made of it: the value, and its bits in words.
    pub damaged: Option<(u64, String)>,
    /// The value's bits in words.
    pub spelled: String,
    /// The last operation that touched what it maps.
    pub operation: Option<usize>,
    /// Whether the walker reads it.
    pub read: bool,
}

/// The entries of an image, part by part, as far as [`MAX_EXPLAINED_ENTRIES`] go.
pub(super) fn of(
    image: &Image,
    anatomy: &Anatomy,
    geometry: Option<&Geometry>,
    operation: impl Fn(&Range<u64>) -> Option<usize>,
) -> Vec<Entry> {
    let entry = |element: &Element| {
        let Element { part, name, at, width_bytes, .. } = *element;
        let (value, guest) = (image.number(at, width_bytes), element.guest.clone());
        let spelled = spelled(part, name, value, geometry);
        let operation = operation(&guest);
        let (damaged, read) = (None, false);
        Entry { part, name, at, width_bytes, guest, value, damaged, spelled, operation, read }
    };
    anatomy.elements().iter().take(MAX_EXPLAINED_ENTRIES).map(entry).collect()
}
