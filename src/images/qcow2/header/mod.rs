//! The header of an image: the fixed part, unknown fields, the extensions, and the name of the backing file.
//!
//! Everything lies in the first cluster, which may have only 512 bytes. If there is too little room, the layout is
//! cut in this order, each step only as far as necessary. First, unknown extensions are left out, beginning with the
//! last. Then the unknown features of the feature name table are left out, and then the whole table. Then the header
//! becomes shorter. Then the backing file's name moves right after the extensions. Data that a reader needs (names,
//! formats, directories) are never left out while anything else can be: see [`Builder::check_names`].

pub(super) mod layout;

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    AUTOCLEAR_RAW_DATA_FILE, COMPATIBLE_LAZY_REFCOUNTS, INCOMPATIBLE_COMPRESSION,
    INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_DIRTY, INCOMPATIBLE_EXTENDED_L2,
    V3_COMPRESSION_LENGTH_BYTES,
};
use crate::formats::qcow2::geometry::Compression;
use crate::images::files::image::Image;

use super::builder::Builder;
use super::encoding::FixedPart;
use super::plan::{HeaderFlags, HeaderStyle, Names, NamesTooLong};
use super::refcounts::RefcountStructures;
use layout::{Extension, HeaderLayout};

/// The number of junk bytes at each end of an ignored range. A header may be as long as a cluster, so the middle
/// stays a hole.
const JUNK_BYTES: u64 = 24;

impl Builder {
    /// Selects the form of the header. Version 2 headers have fewer choices. Returns false if nothing changed.
    pub fn set_header(&mut self, style: HeaderStyle) -> bool {
        self.plan.style.replace(style) != Some(style)
    }

    /// Checks whether an image with these names can be built. If not, the image is built without names.
    ///
    /// # Errors
    /// The names do not fit, even if everything optional is left out.
    pub fn check_names(&self, names: &Names) -> Result<(), NamesTooLong> {
        HeaderLayout::new(&self.plan, self.bitmaps_extension(), names).map(drop)
    }

    /// Writes the header, and returns the names that it has: `names` or none.
    pub(super) fn write_header<'n>(
        &self,
        names: Names<'n>,
        image: &mut Image,
        refcounts: &RefcountStructures,
    ) -> Names<'n> {
        let nameless = Names { backing: b"", data_file: b"" };
        let (names, layout) = match HeaderLayout::new(&self.plan, self.bitmaps_extension(), &names)
        {
            Ok(layout) => (names, layout),
            // The remainder takes less than 300 bytes.
            Err(_) => (
                nameless,
                HeaderLayout::new(&self.plan, self.bitmaps_extension(), &nameless)
                    .unwrap_or_default(),
            ),
        };
        let fixed_part = self.fixed_part(refcounts, &layout, &names);
        let length = u64::from(layout.header_bytes);
        let known = length.min(u64::from(V3_COMPRESSION_LENGTH_BYTES));
        fixed_part.write(image.place(HostOffset::ZERO, known as usize));
        if self.plan.has(HeaderFlags::JUNK) && length > known {
            let front = (length - known).min(JUNK_BYTES);
            let back = (length - known - front).min(JUNK_BYTES);
            image.place(HostOffset::new(known), front as usize).fill(0x5A);
            if back > 0 {
                image.place(HostOffset::new(length - back), back as usize).fill(0x5A);
            }
        }
        let mut at = HostOffset::new(length);
        let body = self.plan.extension_body.map_or(&[][..], |body| self.given.string(body));
        for extension in layout.extensions() {
            at = extension.write(image, at, (&names, body), self.plan.has(HeaderFlags::JUNK));
        }
        if layout.end {
            image.place(at, 8);
        }
        if layout.name_bytes > 0 {
            image.write(HostOffset::new(layout.name_offset), names.backing);
        }
        names
    }

    /// Returns the type of the extension whose body the program gives, if the header has room for it.
    pub(super) fn given_extension_kind(&self, names: &Names) -> Option<u32> {
        self.plan.extension_body?;
        let layout = HeaderLayout::new(&self.plan, self.bitmaps_extension(), names).ok()?;
        layout.extensions().find_map(Extension::given_kind)
    }

    fn fixed_part(
        &self,
        refcounts: &RefcountStructures,
        layout: &HeaderLayout,
        names: &Names,
    ) -> FixedPart {
        let Self { plan, active, .. } = self;
        let geometry = plan.geometry;
        let (table, table_clusters) = refcounts.table();
        let [incompatible, compatible, autoclear] = self.feature_bits();
        let backing_file_bytes = if layout.name_bytes > 0 { names.backing.len() } else { 0 };
        FixedPart {
            geometry,
            size_bytes: plan.size_bytes,
            l1_entries: u32::try_from(active.entries).unwrap_or(u32::MAX),
            l1_offset: self.l1_offset(active),
            refcount_table_offset: geometry.cluster_size.host_offset(table),
            refcount_table_clusters: u32::try_from(table_clusters).unwrap_or(u32::MAX),
            snapshots: self.snapshot_count() as u32,
            snapshots_offset: self.snapshot_table(),
            backing_file_offset: HostOffset::new(layout.name_offset),
            backing_file_bytes: u32::try_from(backing_file_bytes).unwrap_or(u32::MAX),
            incompatible,
            compatible,
            autoclear,
            header_length_bytes: layout.header_bytes,
        }
    }

    /// Returns the incompatible, compatible and autoclear feature bits.
    fn feature_bits(&self) -> [u64; 3] {
        let Self { plan, .. } = self;
        let bit = |there: bool, bit: u64| if there { bit } else { 0 };
        let stale = plan.has(HeaderFlags::OUT_OF_DATE);
        let zstd = plan.geometry.compression == Compression::Zstd;
        let incompatible = bit(zstd, INCOMPATIBLE_COMPRESSION)
            | bit(plan.geometry.extended_l2, INCOMPATIBLE_EXTENDED_L2)
            | bit(plan.data_file.is_some(), INCOMPATIBLE_DATA_FILE)
            | bit(stale || plan.has(HeaderFlags::DIRTY), INCOMPATIBLE_DIRTY)
            | bit(plan.has(HeaderFlags::CORRUPT), INCOMPATIBLE_CORRUPT);
        let mut entropy = plan.style.unwrap_or_default().entropy();
        // Unknown bits: the lowest, the highest, and random ones between.
        let mut unknown = |lowest: u32| entropy.next_u64() << lowest | 1 << lowest | 1 << 63;
        let compatible = bit(plan.header.lazy_refcounts || stale, COMPATIBLE_LAZY_REFCOUNTS)
            | bit(plan.has(HeaderFlags::COMPATIBLE_BITS), unknown(1));
        let autoclear = bit(plan.has_raw_data_file(), AUTOCLEAR_RAW_DATA_FILE)
            | bit(plan.has(HeaderFlags::AUTOCLEAR_BITS), unknown(2))
            | self.bitmaps_autoclear();
        [incompatible, compatible, autoclear]
    }
}
