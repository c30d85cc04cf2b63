//! Applies attacks to the files of a program, and names the places of damaged images at which every reader must refuse.
//!
//! # Arithmetic
//! The value of an attacked field wraps, so that a field near its largest value can become a small one. An attack that
//! points past the end of the file points at most to the last cluster boundary below 2^64. A cut of more bytes than the
//! file has leaves an empty file.

use std::ops::Range;

use crate::base::limits::MAX_LAYERS;
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{Anatomy, EVERYTHING, Element, OffsetUnit, Part};
use crate::formats::qcow2::constants::OFFSET_MASK;
use crate::images::files::image::Image;
use crate::images::files::{Images, LayerFile, LayerFiles};
use crate::images::format::layer_anatomy::LayerAnatomy;
use crate::images::format::list::{broken_at_open, drawer, is_judged};
use crate::images::qcow2::EntryRules;

use super::attacks::{Attack, Spot, Transform};
use super::read_faults::{Failing, ReadFaults, Trap};
use super::rules::{BrokenEntry, BrokenRule};

/// The unit of `misalign`, and of the offsets that count sectors.
const SECTOR_BYTES: u64 = 512;

/// The type in a number of [`OffsetUnit::Typed`].
const TYPE_MASK: u64 = 0xf << 60;

/// The damage to the files of a program. All buffers are reused from program to program.
#[derive(Debug, Default)]
pub struct Damage {
    anatomies: [LayerAnatomy; MAX_LAYERS],
    touched: Vec<Range<u64>>,
    /// A structure whose checksum is computed.
    structure: Vec<u8>,
    changed: Vec<ChangedElement>,
    is_cut: bool,
    traps: Vec<Trap>,
    failing: Vec<Failing>,
}

/// An element whose bytes an attack has changed for all reads.
#[derive(Clone, Debug)]
struct ChangedElement {
    /// The number of the layer, counted down from the top.
    depth: usize,
    /// The file of the layer.
    file: LayerFile,
    element: Element,
}

impl Damage {
    /// Returns the faults that reads of a file of the layer at `depth` meet; `None` if they meet none.
    pub fn read_faults(&self, depth: usize, file: LayerFile) -> Option<ReadFaults> {
        let place = (depth, file);
        ReadFaults::of(
            self.traps.iter().filter(|trap| (trap.depth, trap.file) == place),
            self.failing.iter().filter(|failing| (failing.depth, failing.file) == place),
        )
    }

    /// Makes all `attacks` on `images`, in order. Elements are counted as they were before the first attack.
    pub fn apply(&mut self, images: &mut Images, attacks: &[Attack]) {
        self.touched.clear();
        self.changed.clear();
        self.is_cut = false;
        self.traps.clear();
        self.failing.clear();
        if attacks.is_empty() {
            return;
        }
        for (anatomy, files) in self.anatomies.iter_mut().zip(images.layers()) {
            // A program's images are sound, so reading cannot fail.
            let read = anatomy.read(files);
            debug_assert!(read.is_ok(), "{read:?}");
        }
        for attack in attacks {
            self.attack(images, *attack);
        }
        self.touched.sort_unstable_by_key(|range| range.start);
    }

    /// Returns the guest ranges whose mapping may have changed, sorted by their start.
    pub fn touched(&self) -> &[Range<u64>] {
        &self.touched
    }

    /// Returns the elements whose bytes have changed. If a cut has removed elements, this returns only the ones on
    /// which other elements depend.
    fn changed(&self) -> &[ChangedElement] {
        &self.changed
    }

    /// Reports whether an image may no longer fit its parent, so that a guest cannot read what the parent has.
    pub fn may_change_identities(&self, images: &Images) -> bool {
        let has_own_parent = |depth: usize| {
            images.layers().nth(depth).is_some_and(|files| files.format.facts().has_own_parents)
        };
        let in_descriptor = |changed: &ChangedElement| {
            changed.element.part == Part::Metadata && has_own_parent(changed.depth)
        };
        self.changed.iter().any(in_descriptor)
    }

    /// Reports whether an extent of an image may end inside a grain. A walk then maps the whole grain, as QEMU
    /// does, and a question that begins behind the end of the extent is about the next extent.
    pub fn may_split_grains(&self) -> bool {
        let in_header = |changed: &ChangedElement| {
            matches!(changed.file, LayerFile::Extent(_)) && changed.element.guest == EVERYTHING
        };
        self.changed.iter().any(in_header)
    }

    /// Reports whether an image has lost its end, and perhaps data with it.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reports whether an engine that writes to the image at the top may destroy data, through no fault of its own, in
    /// guest ranges that the damage has not touched: it has touched more than entries that map guest ranges. A wrong
    /// refcount, say, makes a cluster free that is in use.
    pub fn may_mislead_writers(&self) -> bool {
        let maps = |changed: &ChangedElement| {
            let Element { part, guest, .. } = &changed.element;
            matches!(part, Part::L1 | Part::L2 | Part::Bitmap)
                && !guest.is_empty()
                && *guest != EVERYTHING
        };
        self.is_unsteady() || self.is_cut || !self.changed.iter().all(maps)
    }

    /// Reports whether bytes of an image change during reads.
    pub fn is_trapped(&self) -> bool {
        !self.traps.is_empty()
    }

    /// Reports whether a second answer to the same question may differ or fail.
    pub fn is_unsteady(&self) -> bool {
        self.is_trapped() || !self.failing.is_empty()
    }

    fn attack(&mut self, images: &mut Images, attack: Attack) {
        let layers = images.layers().len();
        let depth_of = |depth: u8| usize::from(depth) % layers;
        match attack {
            Attack::Patch { spot, transform, value } => {
                self.patch(images, depth_of(spot.depth), spot, transform, value);
            }
            Attack::Trap { spot, transform, value, reads } => {
                let depth = depth_of(spot.depth);
                let anatomy = &self.anatomies[depth];
                let Some((file, element)) = anatomy.element(spot.part, spot.nth) else { return };
                let Some(anatomy) = anatomy.of_file(file) else { return };
                let image = images.at_depth_mut(depth).file(file);
                let element = element.inside(spot.inside.into(), image.length_bytes());
                let value = changed(anatomy, image, &element, transform, value);
                let value = element.order.in_order(value, element.width_bytes);
                let (range, bytes) = (element.range(), value.to_be_bytes());
                self.traps.push(Trap { depth, file, range, bytes, reads });
                self.touched.push(element.guest);
            }
            Attack::FailRead { part, depth, reads } => {
                let depth = depth_of(depth);
                for (file, anatomy) in self.anatomies[depth].files() {
                    let elements = anatomy.of(part).iter();
                    let mut ranges: Vec<_> = elements.map(Element::range).collect();
                    ranges.sort_unstable_by_key(|range| range.start);
                    if !ranges.is_empty() {
                        self.failing.push(Failing { depth, file, ranges, reads });
                    }
                }
            }
            Attack::Truncate { depth, bytes } => self.truncate(images, depth_of(depth), bytes),
        }
    }

    fn patch(
        &mut self,
        images: &mut Images,
        depth: usize,
        spot: Spot,
        transform: Transform,
        value: u16,
    ) {
        let anatomies = &self.anatomies[depth];
        let Some((file, element)) = anatomies.element(spot.part, spot.nth) else { return };
        let files = images.at_depth_mut(depth);
        let inside = |element: Element, files: &LayerFiles, file| {
            element.inside(spot.inside.into(), files.file(file).length_bytes())
        };
        let element = inside(element, files, file);
        if transform != Transform::Swap {
            let Some(anatomy) = anatomies.of_file(file) else { return };
            let image = files.file_mut(file);
            let changed = changed(anatomy, image, &element, transform, value);
            put(image, &element, changed, &mut self.structure);
            self.record(depth, file, element);
            return;
        }
        // The next element may lie in the next file.
        let Some((next_file, other)) = anatomies.element(spot.part, spot.nth.wrapping_add(2))
        else {
            return;
        };
        let other = inside(other, files, next_file);
        let one = value_of(files.file(file), &element);
        let two = value_of(files.file(next_file), &other);
        put(files.file_mut(file), &element, two, &mut self.structure);
        put(files.file_mut(next_file), &other, one, &mut self.structure);
        self.record(depth, file, element);
        self.record(depth, next_file, other);
    }

    fn record(&mut self, depth: usize, file: LayerFile, element: Element) {
        self.touched.push(element.guest.clone());
        self.changed.push(ChangedElement { depth, file, element });
    }

    /// Cuts the end of an image. Entries past the end read as zeros, so they are empty.
    fn truncate(&mut self, images: &mut Images, depth: usize, bytes: u64) {
        self.is_cut |= bytes > 0;
        let files = images.at_depth_mut(depth);
        let length = files.image.length_bytes().saturating_sub(bytes);
        if files.format != ImageFormat::Qcow2 {
            // A raw file is as long as the disk that it holds, and some readers check that the file has all blocks.
            self.touched.push(EVERYTHING);
        }
        let file = LayerFile::Image;
        let elements = self.anatomies[depth].of_file(file).into_iter().flat_map(Anatomy::elements);
        let lost = elements.filter(|element| element.range().end.get() > length);
        for element in lost {
            self.touched.push(element.guest.clone());
            if element.part == Part::L1 || element.guest == EVERYTHING {
                self.changed.push(ChangedElement { depth, file, element: element.clone() });
            }
        }
        files.image.cut(length);
    }
}

fn value_of(image: &Image, element: &Element) -> u64 {
    element.order.in_order(image.number(element.at, element.width_bytes), element.width_bytes)
}

/// Writes a value, and then the checksum that the element asks for. `structure` is a buffer.
fn put(image: &mut Image, element: &Element, value: u64, structure: &mut Vec<u8>) {
    let width = usize::from(element.width_bytes);
    let value = element.order.in_order(value, element.width_bytes);
    image.overwrite(element.at, &value.to_be_bytes()[8 - width..]);
    let Some(seal) = element.seal else { return };
    structure.resize(seal.length_bytes, 0);
    // Reads from memory do not fail.
    let _ = image.read_at(seal.start, structure);
    image.overwrite(seal.place(), &seal.kind.of(structure, seal.inside));
}

/// Returns the new value of an element.
fn changed(
    anatomy: &Anatomy,
    image: &Image,
    element: &Element,
    transform: Transform,
    value: u16,
) -> u64 {
    let bits = u32::from(element.width_bytes) * 8;
    let old = value_of(image, element);
    let number = u64::from(value);
    let signed = i64::from(value.cast_signed());
    let cluster_size = anatomy.cluster_size().unwrap_or(ClusterSize::SMALLEST);
    let cluster = cluster_size.bytes();
    // The unit of offsets, and the distance between two places to which attacks point.
    let (unit, stride) = match element.unit {
        OffsetUnit::Byte => (1, cluster),
        OffsetUnit::Sector => (SECTOR_BYTES, SECTOR_BYTES),
        OffsetUnit::Typed => (cluster, cluster),
    };
    let place_of = |at: HostOffset| at.get() / stride * stride / unit;
    // A number that is no offset has no flags to keep.
    let pointing = |to: u64| match element.unit {
        OffsetUnit::Byte if bits == 64 => old & !OFFSET_MASK | to & OFFSET_MASK,
        OffsetUnit::Byte | OffsetUnit::Sector => to,
        OffsetUnit::Typed => old & TYPE_MASK | to & !TYPE_MASK,
    };
    let new = match transform {
        Transform::Flip => old ^ 1 << (u32::from(value) % bits),
        Transform::Boundary => boundary(value, bits, cluster),
        Transform::Add => old.wrapping_add_signed(signed),
        Transform::AddClusters => {
            old.wrapping_add_signed(signed.wrapping_mul((cluster / unit).cast_signed()))
        }
        Transform::Structure => {
            let other = anatomy.elements().nth(usize::from(value) % anatomy.count().max(1));
            pointing(other.map_or(0, |other| place_of(other.at)))
        }
        Transform::Own => pointing(place_of(element.at)),
        Transform::PastEnd => {
            let end = cluster_size.clusters_for(image.length_bytes());
            pointing(cluster_size.saturating_bytes(end.saturating_add(number)) / unit)
        }
        // A number of clusters has no other boundary.
        Transform::Misalign => old.wrapping_add((number % 64 + 1) * (SECTOR_BYTES / unit).max(1)),
        Transform::Set | Transform::Swap => number,
    };
    if bits == 64 { new } else { new & ((1 << bits) - 1) }
}

/// Returns a value at which readers go wrong, for an element of `bits` bits.
fn boundary(number: u16, bits: u32, cluster: u64) -> u64 {
    let most = u64::MAX >> (64 - bits);
    let values = [
        0,
        most,
        most >> 1,
        (most >> 1) + 1,
        1,
        most - 1,
        OFFSET_MASK & most,
        most & !511,
        cluster,
        cluster - 1,
        cluster + 1,
        4 << 20,
        (4 << 20) + 1,
        8 << 20,
        65_536,
        1 << 30,
        (1 << 40) - 512,
        1 << 56,
        (1 << 62) | 1,
        1 << 62,
    ];
    values[usize::from(number) % values.len()] & most
}

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
    /// judged only if the layers above it still name it. Limits of QEMU count only if `with_limits` is true.
    pub(crate) fn refusals(&self, images: &Images, with_limits: bool, into: &mut Vec<Refusal>) {
        into.clear();
        // Bytes that change during reads have no single meaning.
        if self.is_trapped() || self.touched().is_empty() {
            return;
        }
        let mut above = None;
        for (depth, files) in images.layers().enumerate() {
            let (format, image) = (files.format, &files.image);
            // QEMU does not probe a parent that must have the format of its child.
            let is_probed =
                above.replace(format).is_some_and(|above| !above.facts().has_own_parents);
            match broken_at_open(format, image, with_limits) {
                Some(rule) if is_probed && !drawer(format).has_signature(image, rule) => return,
                Some(rule) => {
                    return into.push(Refusal { depth, guest: EVERYTHING, rule, is_mapped: false });
                }
                None => {}
            }
            if let Some(rule) = self.broken_extent(depth, files, with_limits) {
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
    fn broken_extent(
        &self,
        depth: usize,
        files: &LayerFiles,
        with_limits: bool,
    ) -> Option<BrokenRule> {
        let place = (depth, LayerFile::Image);
        if self.changed().iter().any(|changed| (changed.depth, changed.file) == place) {
            return None;
        }
        let mut all = files.extents.all().iter();
        let broken = all.find_map(|file| drawer(files.format).broken_extent(file));
        broken.filter(|rule| is_judged(files.format, rule, with_limits))
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
