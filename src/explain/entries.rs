//! The fields and entries of an image, with their values.

use std::ops::Range;

use crate::anatomy::{Anatomy, Element, Part};
use crate::image::Image;
use crate::images::Images;
use crate::limits::MAX_EXPLAINED_ENTRIES;
use crate::qcow2::header::Geometry;
use crate::qcow2::units::HostOffset;
use crate::storage::Storage;

use super::files::{FileKind, FileView};
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

/// Notes what became of entries in images that were damaged since.
pub(super) fn note_damage(files: &mut [FileView], images: &Images) {
    for view in files.iter_mut().filter(|view| view.kind == FileKind::Image) {
        let Some(layer) = images.layers().nth(view.depth) else { continue };
        let length_bytes = layer.image.length_bytes();
        view.cut_to_bytes = (length_bytes != view.length_bytes).then_some(length_bytes);
        let geometry = view.geometry;
        for entry in &mut view.entries {
            let now = layer.image.number(entry.at, entry.width_bytes);
            let spelled = || spelled(entry.part, entry.name, now, geometry.as_ref());
            entry.damaged = (now != entry.value).then(|| (now, spelled()));
        }
    }
}
