//! Where everything lies in the first cluster, and what there is no room for.

use crate::formats::qcow2::constants::{
    V2_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES,
};
use crate::formats::qcow2::geometry::{Compression, Version};
use crate::images::qcow2::encoding::bitmaps::Directory;
use crate::images::qcow2::plan::Plan;

use super::extensions::Extension;
use super::names::{Names, NamesTooLong};
use super::style::{HeaderFlags, HeaderLength, HeaderStyle};

/// The most extensions of one image: one of each kind, those that nobody knows, and one that fills
/// what is left.
const MAX_EXTENSIONS: usize = 16;

/// A name of the backing file is at most so long.
const MAX_NAME_BYTES: u64 = 1023;

/// Types of extensions that no reader knows, most of them next to one that readers know. The first
/// is that of the extension that a prologue asks for.
const UNKNOWN_KINDS: [u32; 1 + HeaderStyle::MAX_UNKNOWN as usize] = [
    0x7143_6675,
    0x0000_0001,
    0xFFFF_FFFF,
    0xE279_2ACB,
    0x6803_F856,
    0x4441_5442,
    0x0537_BE78,
    0x2385_2874,
];

/// The length of the unknown extension that a prologue asks for.
const PROLOGUE_UNKNOWN_BYTES: u32 = 13;

/// The first cluster, laid out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    /// The length of the fixed part.
    pub(super) header_bytes: u32,
    /// The extensions, in the order in which they lie; the first `count`.
    extensions: [Option<Extension>; MAX_EXTENSIONS],
    count: usize,
    /// Whether an extension marks the end.
    pub(super) end: bool,
    /// Where the backing file's name lies, 0 for no name.
    pub(super) name_offset: u64,
    /// Its length.
    pub(super) name_bytes: u64,
}

/// What is wanted of a layout, and may be cut.
struct Wanted {
    cluster_bytes: u64,
    header_bytes: u64,
    shortest_bytes: u64,
    /// Whether there is a name, perhaps of no bytes.
    named: bool,
    name_bytes: u64,
    name_at_end: bool,
    end: bool,
}

impl Layout {
    /// The layout for `plan`, `bitmaps` and `names`, cut to what the first cluster has room for.
    ///
    /// # Errors
    /// The names do not fit.
    pub(super) fn new(
        plan: &Plan,
        bitmaps: Option<Directory>,
        names: &Names,
    ) -> Result<Self, NamesTooLong> {
        let mut layout = Self::default();
        let mut wanted = Wanted::new(plan, names);
        layout.list(plan, bitmaps, names);
        while layout.room(&wanted).is_none() {
            if !layout.leave_out() && !wanted.cut(layout.extension_bytes()) {
                return Err(wanted.too_long(layout.extension_bytes()));
            }
        }
        layout.permute(plan.style.map_or(0, |style| style.order));
        layout.header_bytes = wanted.header_bytes as u32;
        layout.end = wanted.end;
        let behind = wanted.header_bytes + layout.extension_bytes();
        if wanted.named {
            layout.name_bytes = wanted.name_bytes;
            layout.name_offset = match wanted.name_at_end {
                true => wanted.cluster_bytes - wanted.name_bytes,
                false => behind + if wanted.end { 8 } else { 0 },
            };
        }
        let left = layout.room(&wanted).unwrap_or(0);
        if left == 0 && (wanted.name_at_end || !wanted.named) {
            // The area is full by itself.
            layout.end = false;
        } else if !wanted.end && left >= 8 {
            layout.add(Extension::Filler((left - 8) as u32));
        }
        Ok(layout)
    }

    /// The extensions, in order.
    pub(super) fn extensions(&self) -> impl Iterator<Item = Extension> {
        self.extensions[..self.count].iter().copied().flatten()
    }

    /// All extensions that are wanted. An extension to come is one more line here, and a variant of
    /// [`Extension`].
    fn list(&mut self, plan: &Plan, bitmaps: Option<Directory>, names: &Names) {
        let style = plan.style.unwrap_or_default();
        let unknown_names = plan.has(HeaderFlags::UNKNOWN_NAMES);
        let untold = plan.has(HeaderFlags::NO_FORMAT);
        if let Some(backing) = plan.backing.filter(|backing| backing.told && !untold) {
            self.add(Extension::BackingFormat(backing.format));
        }
        if plan.data_file.is_some() {
            let length = u32::try_from(names.data_file.len()).unwrap_or(u32::MAX);
            self.add(Extension::DataFile(length));
        }
        if let Some(bitmaps) = bitmaps {
            self.add(Extension::Bitmaps(bitmaps));
        }
        if plan.header.feature_names || unknown_names || plan.has(HeaderFlags::FEATURE_NAMES) {
            self.add(Extension::FeatureNames { unknown: unknown_names });
        }
        let (first, others) = UNKNOWN_KINDS.split_at(1);
        if plan.header.unknown_extension {
            let length_bytes = PROLOGUE_UNKNOWN_BYTES;
            self.add(Extension::Unknown { kind: first[0], length_bytes });
        }
        let count = usize::from(style.unknown.min(HeaderStyle::MAX_UNKNOWN));
        for (kind, number) in others[..count].iter().zip(0u8..) {
            let length = style.unknown_bytes.wrapping_add(number.wrapping_mul(11));
            self.add(Extension::Unknown { kind: *kind, length_bytes: u32::from(length) });
        }
    }

    fn add(&mut self, extension: Extension) {
        debug_assert!(self.count < MAX_EXTENSIONS);
        if let Some(place) = self.extensions.get_mut(self.count) {
            *place = Some(extension);
            self.count += 1;
        }
    }

    fn extension_bytes(&self) -> u64 {
        self.extensions().map(Extension::whole_bytes).sum()
    }

    /// Makes what may be left out less, from the back; false where nothing is left of it.
    fn leave_out(&mut self) -> bool {
        let Some(last) = self.count.checked_sub(1) else { return false };
        match &mut self.extensions[last] {
            Some(Extension::FeatureNames { unknown: unknown @ true }) => *unknown = false,
            Some(extension) if extension.is_optional() => self.count = last,
            _ => return false,
        }
        true
    }

    /// Orders the extensions by the digits of `code`: which of those that are left comes next.
    fn permute(&mut self, code: u8) {
        let mut code = usize::from(code);
        for at in 0..self.count {
            let left = self.count - at;
            self.extensions[at..self.count][..=code % left].rotate_right(1);
            code /= left;
        }
    }

    /// How many bytes of the extensions' area are left, where everything fits. There must be none, or
    /// enough for the next extension's type and length: readers look for it as long as there is
    /// anything.
    fn room(&self, wanted: &Wanted) -> Option<u64> {
        let behind = wanted.header_bytes + self.extension_bytes();
        if wanted.named && !wanted.name_at_end {
            let name = behind + if wanted.end { 8 } else { 0 };
            let fits = name + wanted.name_bytes <= wanted.cluster_bytes;
            return (fits && wanted.name_bytes <= MAX_NAME_BYTES).then_some(0);
        }
        let area_end = wanted.cluster_bytes.checked_sub(wanted.name_bytes)?;
        let left = area_end.checked_sub(behind)?;
        (wanted.name_bytes <= MAX_NAME_BYTES && (left == 0 || left >= 8)).then_some(left)
    }
}

impl Wanted {
    fn new(plan: &Plan, names: &Names) -> Self {
        let cluster_bytes = plan.geometry.cluster_size.bytes();
        let zstd = plan.geometry.compression == Compression::Zstd;
        let style = plan.style.unwrap_or_default();
        let (shortest, usual) = match plan.geometry.version {
            Version::V2 => (V2_LENGTH_BYTES, V2_LENGTH_BYTES),
            // The compression type is there where the header is longer than what comes before it.
            Version::V3 if zstd => (V3_LENGTH_BYTES + 1, V3_COMPRESSION_LENGTH_BYTES),
            Version::V3 if plan.header.compression_field => {
                (V3_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES)
            }
            Version::V3 => (V3_LENGTH_BYTES, V3_LENGTH_BYTES),
        };
        let shortest_bytes = u64::from(shortest);
        let longer = cluster_bytes - u64::from(V3_LENGTH_BYTES) + 1;
        let header_bytes = match style.length {
            _ if plan.geometry.version == Version::V2 => shortest_bytes,
            HeaderLength::Shortest => u64::from(usual),
            HeaderLength::Above(steps) => u64::from(V3_LENGTH_BYTES) + u64::from(steps) % longer,
            HeaderLength::Below(steps) => cluster_bytes - u64::from(steps) % longer,
        };
        let backing = plan.backing.is_some() && !names.backing.is_empty();
        Self {
            cluster_bytes,
            header_bytes: header_bytes.max(shortest_bytes),
            shortest_bytes,
            named: backing || plan.has(HeaderFlags::EMPTY_NAME),
            name_bytes: if backing { names.backing.len() as u64 } else { 0 },
            name_at_end: plan.has(HeaderFlags::NAME_AT_END),
            end: !plan.has(HeaderFlags::NO_END),
        }
    }

    /// Makes the header as much shorter as it must be, or puts the name behind the extensions without
    /// marking their end; false where that does not help.
    fn cut(&mut self, extension_bytes: u64) -> bool {
        let end = if self.named && !self.name_at_end && !self.end { 0 } else { 8 };
        let fitting = self.cluster_bytes.saturating_sub(self.name_bytes + extension_bytes + end);
        if self.header_bytes > self.shortest_bytes {
            self.header_bytes = fitting.clamp(self.shortest_bytes, self.header_bytes - 1);
            return true;
        }
        let tight = self.named && (self.name_at_end || self.end);
        if tight {
            (self.name_at_end, self.end) = (false, false);
        }
        tight
    }

    fn too_long(&self, extension_bytes: u64) -> NamesTooLong {
        match self.name_bytes > MAX_NAME_BYTES {
            true => NamesTooLong::Backing { length_bytes: self.name_bytes },
            false => NamesTooLong::Header {
                needed_bytes: self.name_bytes + extension_bytes,
                room_bytes: self.cluster_bytes - self.shortest_bytes,
            },
        }
    }
}
