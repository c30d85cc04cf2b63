//! Damage: what a hostile program does to its image once it is built. Entries are changed, at once or
//! behind the back of a reader that has looked at them; the file is cut; reads fail.

mod storage;

use std::ops::Range;

use crate::anatomy::{Anatomy, EVERYTHING, Element, Part};
use crate::image::Image;
use crate::images::Images;
use crate::limits::MAX_LAYERS;
use crate::qcow2::entry::OFFSET_MASK;
use crate::qcow2::units::{ClusterSize, HostOffset};
use crate::storage::Storage;

pub use storage::DamagedFiles;

/// An element of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// What it belongs to.
    pub part: Part,
    /// How many layers down, counted over those that there are.
    pub depth: u8,
    /// Which element; see [`Anatomy::element`].
    pub nth: u16,
}

/// How an element is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// One bit is flipped: the one with the value's number, counted over the element's bits.
    #[default]
    Flip,
    /// It becomes one of the values at which readers go wrong: the value's number says which.
    Boundary,
    /// The value is added, as a signed number.
    Add,
    /// So many clusters are added.
    AddClusters,
    /// It points at another element's cluster: the one with the value's number, over all parts.
    Structure,
    /// It points at the cluster that it lies in.
    Own,
    /// It points past the end of the file, by so many clusters.
    PastEnd,
    /// What it points at is moved off its boundary, by so many sectors.
    Misalign,
    /// It is exchanged with the next element of its part; in a trap, it becomes the value.
    Swap,
    /// It becomes the value.
    Set,
}

impl Transform {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Flip,
        Self::Boundary,
        Self::Add,
        Self::AddClusters,
        Self::Structure,
        Self::Own,
        Self::PastEnd,
        Self::Misalign,
        Self::Swap,
        Self::Set,
    ];
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// An element is changed.
    Patch {
        /// Which.
        spot: Spot,
        /// How.
        transform: Transform,
        /// With what.
        value: u16,
    },
    /// An element is changed when it has been read.
    Trap {
        /// Which.
        spot: Spot,
        /// How.
        transform: Transform,
        /// With what.
        value: u16,
        /// How many reads see it as it was.
        reads: u8,
    },
    /// A read of a part fails.
    FailRead {
        /// Which part.
        part: Part,
        /// Of which layer.
        depth: u8,
        /// How many reads of it go well before.
        reads: u8,
    },
    /// Bytes are cut off the end of the file.
    Truncate {
        /// Of which layer.
        depth: u8,
        /// How many.
        bytes: u64,
    },
}

/// Bytes that change when they have been read.
#[derive(Clone, Debug)]
struct Trap {
    depth: usize,
    /// Where they lie.
    range: Range<HostOffset>,
    /// What they become, as many of the last as the range has.
    bytes: [u8; 8],
    reads: u8,
}

impl Trap {
    /// Whether it lies in `from..until`, or some of it does.
    fn meets(&self, from: HostOffset, until: HostOffset) -> bool {
        self.range.start < until && from < self.range.end
    }
}

/// A read that fails.
#[derive(Clone, Debug)]
struct Failing {
    depth: usize,
    /// Where the part's elements lie, sorted.
    ranges: Vec<Range<HostOffset>>,
    reads: u8,
}

/// What was done to the files of a program. All buffers are reused from program to program.
#[derive(Debug, Default)]
pub struct Damage {
    anatomies: [Anatomy; MAX_LAYERS],
    touched: Vec<Range<u64>>,
    traps: Vec<Trap>,
    failing: Vec<Failing>,
}

impl Damage {
    /// Does all `attacks` to `images`, in order. Elements are counted as they were before the first.
    pub fn apply(&mut self, images: &mut Images, attacks: &[Attack]) {
        self.touched.clear();
        self.traps.clear();
        self.failing.clear();
        if attacks.is_empty() {
            return;
        }
        for (anatomy, files) in self.anatomies.iter_mut().zip(images.layers()) {
            if files.raw {
                *anatomy = Anatomy::default();
                continue;
            }
            // What a program builds is sound.
            let read = anatomy.read(&files.image);
            debug_assert!(read.is_ok(), "{read:?}");
        }
        for attack in attacks {
            self.attack(images, *attack);
        }
        self.touched.sort_unstable_by_key(|range| range.start);
    }

    /// Which guest bytes may be mapped otherwise than was meant: sorted by their start.
    pub fn touched(&self) -> &[Range<u64>] {
        &self.touched
    }

    /// Whether an image changes while it is read.
    pub fn is_trapped(&self) -> bool {
        !self.traps.is_empty()
    }

    /// Whether the same question may be answered otherwise, or not at all, when it is asked again.
    pub fn is_unsteady(&self) -> bool {
        self.is_trapped() || !self.failing.is_empty()
    }

    fn attack(&mut self, images: &mut Images, attack: Attack) {
        let layers = images.layers().len();
        let depth_of = |depth: u8| usize::from(depth) % layers;
        match attack {
            Attack::Patch { spot, transform, value } => {
                let depth = depth_of(spot.depth);
                self.patch(&mut images.at_depth_mut(depth).image, depth, spot, transform, value);
            }
            Attack::Trap { spot, transform, value, reads } => {
                let depth = depth_of(spot.depth);
                let anatomy = &self.anatomies[depth];
                let Some(element) = anatomy.element(spot.part, spot.nth) else { return };
                let image = &images.at_depth_mut(depth).image;
                let value = changed(anatomy, image, &element, transform, value);
                let (range, bytes) = (element.range(), value.to_be_bytes());
                self.traps.push(Trap { depth, range, bytes, reads });
                self.touched.push(element.guest);
            }
            Attack::FailRead { part, depth, reads } => {
                let depth = depth_of(depth);
                let elements = self.anatomies[depth].of(part).iter();
                let mut ranges: Vec<_> = elements.map(Element::range).collect();
                ranges.sort_unstable_by_key(|range| range.start);
                if !ranges.is_empty() {
                    self.failing.push(Failing { depth, ranges, reads });
                }
            }
            Attack::Truncate { depth, bytes } => self.truncate(images, depth_of(depth), bytes),
        }
    }

    fn patch(
        &mut self,
        image: &mut Image,
        depth: usize,
        spot: Spot,
        transform: Transform,
        value: u16,
    ) {
        let anatomy = &self.anatomies[depth];
        let Some(element) = anatomy.element(spot.part, spot.nth) else { return };
        if transform != Transform::Swap {
            let changed = changed(anatomy, image, &element, transform, value);
            put(image, &element, changed);
            self.touched.push(element.guest);
            return;
        }
        let Some(other) = anatomy.element(spot.part, spot.nth.wrapping_add(2)) else { return };
        let (one, two) = (value_of(image, &element), value_of(image, &other));
        put(image, &element, two);
        put(image, &other, one);
        self.touched.extend([element.guest, other.guest]);
    }

    /// What lies past the end reads as zeros: an entry there is empty.
    fn truncate(&mut self, images: &mut Images, depth: usize, bytes: u64) {
        let files = images.at_depth_mut(depth);
        let length = files.image.length_bytes().saturating_sub(bytes);
        if files.raw {
            // It is as long as the disk that it holds.
            self.touched.push(EVERYTHING);
        }
        let elements = self.anatomies[depth].elements().iter();
        let lost = elements.filter(|element| element.range().end.get() > length);
        self.touched.extend(lost.map(|element| element.guest.clone()));
        files.image.cut(length);
    }
}

fn value_of(image: &Image, element: &Element) -> u64 {
    image.number(element.at, element.width_bytes)
}

fn put(image: &mut Image, element: &Element, value: u64) {
    let width = usize::from(element.width_bytes);
    image.overwrite(element.at, &value.to_be_bytes()[8 - width..]);
}

/// What becomes of the value of an element.
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
    // What is no offset has no flags to keep.
    let pointing = |to: u64| if bits == 64 { old & !OFFSET_MASK | to & OFFSET_MASK } else { to };
    let new = match transform {
        Transform::Flip => old ^ 1 << (u32::from(value) % bits),
        Transform::Boundary => boundary(value, bits, cluster),
        Transform::Add => old.wrapping_add_signed(signed),
        Transform::AddClusters => {
            old.wrapping_add_signed(signed.wrapping_mul(cluster.cast_signed()))
        }
        Transform::Structure => {
            let all = anatomy.elements();
            let other = all.get(usize::from(value) % all.len().max(1));
            pointing(other.map_or(0, |other| other.at.get() & !cluster_size.mask()))
        }
        Transform::Own => pointing(element.at.get() & !cluster_size.mask()),
        Transform::PastEnd => {
            let end = cluster_size.clusters_for(image.length_bytes());
            pointing(cluster_size.saturating_bytes(end.saturating_add(number)))
        }
        Transform::Misalign => old.wrapping_add((number % 64 + 1) * 512),
        Transform::Set | Transform::Swap => number,
    };
    if bits == 64 { new } else { new & ((1 << bits) - 1) }
}

/// Values at which readers go wrong, for an element of so many bits.
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
