//! The rules by which QEMU refuses a qcow2 image: one rule for each reason, in the order of QEMU's checks. At open,
//! they judge the image as a whole. When an entry of a table is used, they judge the words of the entry alone.
//!
//! Not among the rules: the files that an image names, because a caller chooses them; the bitmap directory, because the
//! mapping does not depend on it.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::StructureField;
use crate::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, BITMAPS_EXTENSION_BYTES, COPIED,
    EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_CRYPTO, EXTENSION_END,
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_EXTENDED_L2, L2_COMPRESSED,
    L2_ZERO, MAGIC, MAX_FILE_BYTES, OFFSET_MASK, SNAPSHOT_FIXED_BYTES, bitmaps_extension, header,
    snapshot_entry,
};
use crate::images::damage::rules::BrokenRule;
use crate::images::files::image::Image;

/// A reason for which QEMU refuses to open an image.
struct OpenRule {
    name: BrokenRule,
    /// Reports whether an image breaks the rule. It keeps the rules before this one.
    is_broken: fn(&FirstBytes) -> bool,
}

const fn rule(name: BrokenRule, is_broken: fn(&FirstBytes) -> bool) -> OpenRule {
    OpenRule { name, is_broken }
}

pub(super) const MAGIC_RULE: BrokenRule = "magic";
pub(super) const VERSION_RULE: BrokenRule = "version";

/// The length of the header's fields that have a meaning.
const READ_BYTES: usize = header::COMPRESSION_TYPE.end();
/// The number of snapshots whose entries are judged: as many as QEMU opens.
const JUDGED_SNAPSHOTS: u64 = 65_536;

/// The fields of the header (QEMU `block/qcow2.c`, `qcow2_do_open`).
const HEADER_RULES: &[OpenRule] = &[
    rule(MAGIC_RULE, |it| it.number(header::MAGIC) != u64::from(MAGIC)),
    rule(VERSION_RULE, |it| !matches!(it.version(), 2 | 3)),
    rule("cluster_bits", |it| it.number(header::CLUSTER_BITS) < 9),
    rule(CLUSTER_LIMIT, |it| it.number(header::CLUSTER_BITS) > 21),
    rule("header_length", |it| {
        it.is_v3() && !(104..=it.cluster_bytes()).contains(&it.header_end())
    }),
    rule("backing_file_offset", |it| it.name_offset() > it.cluster_bytes()),
    rule("incompatible_features", |it| it.incompatible() >> 5 != 0),
    rule("compression_type", |it| it.compression() != u64::from(it.has(INCOMPATIBLE_COMPRESSION))),
    rule("subclusters below 512 bytes", |it| {
        it.has(INCOMPATIBLE_EXTENDED_L2) && it.cluster_bytes() / 32 < 512
    }),
    rule("refcount_order", |it| it.is_v3() && it.number(header::REFCOUNT_ORDER) > 6),
    rule("crypt_method above 2", |it| it.number(header::CRYPT_METHOD) > 2),
    rule("AES encryption", |it| it.number(header::CRYPT_METHOD) == 1),
    rule("LUKS encryption", |it| it.number(header::CRYPT_METHOD) == 2),
    rule("refcount_table_clusters 0", |it| it.number(header::REFCOUNT_TABLE_CLUSTERS) == 0),
    // QCOW_MAX_REFTABLE_SIZE
    rule(REFCOUNT_TABLE_LIMIT, |it| it.refcount_table_bytes() > 8 << 20),
    rule("refcount_table_offset", |it| {
        it.is_misplaced(it.number(header::REFCOUNT_TABLE_OFFSET), it.refcount_table_bytes())
    }),
    // QCOW_MAX_SNAPSHOTS
    rule(SNAPSHOT_LIMIT, |it| it.snapshots() > 65_536),
    rule("snapshots_offset", |it| {
        it.is_misplaced(it.snapshots_offset(), it.snapshots() * SNAPSHOT_FIXED_BYTES as u64)
    }),
    // QCOW_MAX_L1_SIZE
    rule(L1_LIMIT, |it| it.l1_entries() * 8 > 32 << 20),
    rule("l1_table_offset", |it| {
        it.is_misplaced(it.number(header::L1_TABLE_OFFSET), it.l1_entries() * 8)
    }),
    // `bdrv_getlength` returns a signed number.
    rule("size of 2^63 or more", |it| it.number(header::SIZE) >> 63 != 0),
    rule("l1_size below the size", |it| it.l1_entries() < it.needed_l1_entries()),
    rule("backing_file_size", |it| {
        it.name_offset() != 0
            && it.number(header::BACKING_FILE_SIZE)
                > 1023.min(it.cluster_bytes() - it.name_offset())
    }),
    rule("raw data file without a data file", |it| {
        it.autoclear() & AUTOCLEAR_RAW_DATA_FILE != 0 && !it.has(INCOMPATIBLE_DATA_FILE)
    }),
];

/// Returns the first rule that the image breaks; `None` if it keeps all of them.
pub fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let first = FirstBytes::read(image);
    let field = HEADER_RULES.iter().find(|rule| (rule.is_broken)(&first)).map(|rule| rule.name);
    field.or_else(|| first.broken_extension()).or_else(|| first.broken_snapshot())
}

/// Returns the names of all rules.
pub fn open_rule_names() -> impl Iterator<Item = BrokenRule> {
    let others = EXTENSION_RULES.iter().chain([&SNAPSHOT_RULE]);
    HEADER_RULES.iter().map(|rule| rule.name).chain(others.copied())
}

const EXTENSION_LENGTH: BrokenRule = "extension's length";
const BACKING_FORMAT_LENGTH: BrokenRule = "backing format's length";
const CRYPTO_EXTENSION: BrokenRule = "crypto extension without LUKS";
const BITMAPS_LENGTH: BrokenRule = "bitmaps extension's length";
const BITMAPS_RESERVED: BrokenRule = "bitmaps extension's reserved field";
const BITMAPS_COUNT: BrokenRule = "nb_bitmaps";
const DIRECTORY_OFFSET: BrokenRule = "bitmap_directory_offset";
const DIRECTORY_SIZE: BrokenRule = "bitmap_directory_size";
const EXTENSION_RULES: [BrokenRule; 10] = [
    EXTENSION_LENGTH,
    BACKING_FORMAT_LENGTH,
    CRYPTO_EXTENSION,
    BITMAPS_LENGTH,
    BITMAPS_RESERVED,
    BITMAPS_COUNT,
    BITMAPS_LIMIT,
    DIRECTORY_OFFSET,
    DIRECTORY_SIZE,
    DIRECTORY_LIMIT,
];
const SNAPSHOT_RULE: BrokenRule = "snapshot's extra data above 1024 bytes";

const CLUSTER_LIMIT: BrokenRule = "cluster_bits above 21";
const REFCOUNT_TABLE_LIMIT: BrokenRule = "refcount table above 8 MiB";
const SNAPSHOT_LIMIT: BrokenRule = "nb_snapshots";
const L1_LIMIT: BrokenRule = "l1_size above 32 MiB";
const BITMAPS_LIMIT: BrokenRule = "nb_bitmaps above 65535";
const DIRECTORY_LIMIT: BrokenRule = "bitmap directory above 64 MiB";

/// The rules that are limits of QEMU (`block/qcow2.h`, `block/qcow2-bitmap.c`): the specification does not state them,
/// or calls them limits of QEMU.
pub const QCOW2_LIMITS: &[BrokenRule] = &[
    CLUSTER_LIMIT,
    REFCOUNT_TABLE_LIMIT,
    SNAPSHOT_LIMIT,
    L1_LIMIT,
    BACKING_FORMAT_LENGTH,
    BITMAPS_LIMIT,
    DIRECTORY_LIMIT,
    SNAPSHOT_RULE,
];

/// The first bytes of an image, and the image.
pub(super) struct FirstBytes<'i> {
    first_bytes: [u8; READ_BYTES],
    image: &'i Image,
}

impl<'i> FirstBytes<'i> {
    /// Reads the first bytes of an image.
    pub(super) fn read(image: &'i Image) -> Self {
        let mut first_bytes = [0; READ_BYTES];
        // Reads from memory do not fail. Bytes past the end are zeros, as in QEMU.
        let _ = image.read_at(HostOffset::ZERO, &mut first_bytes);
        Self { first_bytes, image }
    }

    /// Returns the image.
    pub(super) fn image(&self) -> &'i Image {
        self.image
    }

    /// Returns the number in a field of the header.
    fn number(&self, field: StructureField) -> u64 {
        let bytes = self.first_bytes.iter().skip(field.at).take(field.width_bytes);
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn version(&self) -> u64 {
        self.number(header::VERSION)
    }

    pub(super) fn is_v3(&self) -> bool {
        self.version() == 3
    }

    /// Returns the number in a field of version 3; in version 2, 0.
    fn v3_number(&self, field: StructureField) -> u64 {
        if self.is_v3() { self.number(field) } else { 0 }
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        // Without the limit of QEMU, the field may have any value.
        1 << self.number(header::CLUSTER_BITS).min(63)
    }

    fn header_end(&self) -> u64 {
        if self.is_v3() { self.number(header::HEADER_LENGTH) } else { 72 }
    }

    fn name_offset(&self) -> u64 {
        self.number(header::BACKING_FILE_OFFSET)
    }

    fn incompatible(&self) -> u64 {
        self.v3_number(header::INCOMPATIBLE_FEATURES)
    }

    pub(super) fn has(&self, incompatible: u64) -> bool {
        self.incompatible() & incompatible != 0
    }

    fn autoclear(&self) -> u64 {
        self.v3_number(header::AUTOCLEAR_FEATURES)
    }

    /// Returns the compression type. A header of 104 bytes ends before it.
    fn compression(&self) -> u64 {
        if self.header_end() > 104 { self.v3_number(header::COMPRESSION_TYPE) } else { 0 }
    }

    fn refcount_table_bytes(&self) -> u64 {
        self.number(header::REFCOUNT_TABLE_CLUSTERS) * self.cluster_bytes()
    }

    fn snapshots(&self) -> u64 {
        self.number(header::NB_SNAPSHOTS)
    }

    fn snapshots_offset(&self) -> u64 {
        self.number(header::SNAPSHOTS_OFFSET)
    }

    fn l1_entries(&self) -> u64 {
        self.number(header::L1_SIZE)
    }

    /// Returns the number of L1 entries that the disk needs. A table of L2 entries has one cluster.
    fn needed_l1_entries(&self) -> u64 {
        let entry_bytes = if self.has(INCOMPATIBLE_EXTENDED_L2) { 16 } else { 8 };
        let span = self.cluster_bytes() / entry_bytes * self.cluster_bytes();
        self.number(header::SIZE).div_ceil(span)
    }

    /// Reports whether QEMU refuses a table at `offset` (`qcow2_validate_table`). It reads a table that is not empty,
    /// which fails past the end of the longest file.
    fn is_misplaced(&self, offset: u64, length_bytes: u64) -> bool {
        let longest = if length_bytes == 0 { i64::MAX as u64 } else { MAX_FILE_BYTES };
        !offset.is_multiple_of(self.cluster_bytes())
            || offset.saturating_add(length_bytes) > longest
    }

    /// Returns the number in a field of the structure at `start`.
    fn number_at(&self, start: u64, field: StructureField) -> u64 {
        // No structure is longer than 2^16 bytes, and no field than 8.
        let at = HostOffset::new(start + field.at as u64);
        self.image.number(at, field.width_bytes as u8)
    }

    /// Returns the first rule that a header extension breaks (QEMU `block/qcow2.c`, `qcow2_read_extensions`).
    fn broken_extension(&self) -> Option<BrokenRule> {
        let end = if self.name_offset() == 0 { self.cluster_bytes() } else { self.name_offset() };
        let mut at = self.header_end();
        while at < end {
            let [kind, length] = [at, at + 4].map(|at| self.image.number(HostOffset::new(at), 4));
            let content = at + 8;
            if content.saturating_add(length) > end {
                return Some(EXTENSION_LENGTH);
            }
            let broken = match u32::try_from(kind).unwrap_or(EXTENSION_END) {
                EXTENSION_END => break,
                EXTENSION_BACKING_FORMAT if length > 15 => Some(BACKING_FORMAT_LENGTH),
                // No image that is encrypted by LUKS comes here.
                EXTENSION_CRYPTO => Some(CRYPTO_EXTENSION),
                EXTENSION_BITMAPS => self.broken_bitmaps(content, length),
                _ => None,
            };
            if broken.is_some() {
                return broken;
            }
            at = content + length.next_multiple_of(8);
        }
        None
    }

    /// Returns the first rule that the bitmaps extension breaks. If its autoclear bit is not set, only its length
    /// counts. `bitmap_list_load` (QEMU `block/qcow2-bitmap.c`) refuses an empty directory, and cannot read one past
    /// the end of all files.
    fn broken_bitmaps(&self, content: u64, length: u64) -> Option<BrokenRule> {
        let number = |field| self.number_at(content, field);
        let directory_bytes = number(bitmaps_extension::BITMAP_DIRECTORY_SIZE);
        let directory = number(bitmaps_extension::BITMAP_DIRECTORY_OFFSET);
        if length != BITMAPS_EXTENSION_BYTES as u64 {
            Some(BITMAPS_LENGTH)
        } else if self.autoclear() & AUTOCLEAR_BITMAPS == 0 {
            None
        } else if number(bitmaps_extension::RESERVED) != 0 {
            Some(BITMAPS_RESERVED)
        } else if number(bitmaps_extension::NB_BITMAPS) == 0 {
            Some(BITMAPS_COUNT)
        } else if number(bitmaps_extension::NB_BITMAPS) > 65_535 {
            Some(BITMAPS_LIMIT)
        } else if directory_bytes == 0 {
            Some(DIRECTORY_SIZE)
        } else if directory_bytes > 65_535 * 1024 {
            // QCOW2_MAX_BITMAP_DIRECTORY_SIZE
            Some(DIRECTORY_LIMIT)
        } else if !directory.is_multiple_of(self.cluster_bytes())
            || directory.saturating_add(directory_bytes) > i64::MAX as u64
        {
            Some(DIRECTORY_OFFSET)
        } else {
            None
        }
    }

    /// Returns the rule that an entry of the snapshot table breaks (QEMU `block/qcow2-snapshot.c`,
    /// `qcow2_do_read_snapshots`).
    fn broken_snapshot(&self) -> Option<BrokenRule> {
        let mut at = self.snapshots_offset();
        for _ in 0..self.snapshots().min(JUDGED_SNAPSHOTS) {
            if at >= self.image.length_bytes() {
                // The entries past the end of the file are zeros, and break no rule.
                break;
            }
            let number = |field| self.number_at(at, field);
            let extra = number(snapshot_entry::EXTRA_DATA_SIZE);
            // QCOW_MAX_SNAPSHOT_EXTRA_DATA
            if extra > 1024 {
                return Some(SNAPSHOT_RULE);
            }
            let strings = number(snapshot_entry::ID_STR_SIZE) + number(snapshot_entry::NAME_SIZE);
            let length = SNAPSHOT_FIXED_BYTES as u64 + extra + strings;
            at += length.next_multiple_of(8);
        }
        None
    }
}

/// The header on which the meaning of table entries depends. QEMU opens the image.
pub struct EntryRules<'i>(FirstBytes<'i>);

const L2_TABLE_OFFSET: BrokenRule = "L2 table off a cluster boundary";
const CLUSTER_OFFSET: BrokenRule = "cluster off a cluster boundary";
const ZERO_IN_V2: BrokenRule = "zero flag in version 2";
const BITMAP: BrokenRule = "contradictory subcluster bitmap";
const DATA_FILE_OFFSET: BrokenRule = "cluster at another offset of the data file";
const DATA_FILE_COMPRESSED: BrokenRule = "compressed cluster with a data file";

/// The names of all rules.
pub const ENTRY_RULES: [BrokenRule; 6] =
    [L2_TABLE_OFFSET, CLUSTER_OFFSET, ZERO_IN_V2, BITMAP, DATA_FILE_OFFSET, DATA_FILE_COMPRESSED];

impl<'i> EntryRules<'i> {
    /// Reads the header of an image.
    pub fn new(image: &'i Image) -> Self {
        Self(FirstBytes::read(image))
    }

    fn word(&self, at: HostOffset) -> u64 {
        self.0.image().number(at, 8)
    }

    fn is_off_boundary(&self, offset: u64) -> bool {
        !offset.is_multiple_of(self.0.cluster_bytes())
    }

    /// Returns the rule that the L1 entry at `at` breaks (QEMU `block/qcow2-cluster.c`, `qcow2_get_host_offset`).
    pub fn broken_l1(&self, at: HostOffset) -> Option<BrokenRule> {
        self.is_off_boundary(self.word(at) & OFFSET_MASK).then_some(L2_TABLE_OFFSET)
    }

    /// Returns the rule that the L2 entry breaks whose subcluster bitmap lies at `bitmap`.
    pub fn broken_bitmap(&self, bitmap: HostOffset, guest: &Range<u64>) -> Option<BrokenRule> {
        let at = bitmap.get().checked_sub(8)?;
        self.broken_l2(HostOffset::new(at), guest)
    }

    /// Returns the rule that the L2 entry at `at`, for the cluster `guest`, breaks (QEMU `block/qcow2.h`,
    /// `qcow2_get_cluster_type`; `block/qcow2-cluster.c`, `qcow2_get_subcluster_range_type` and
    /// `qcow2_get_host_offset`).
    pub fn broken_l2(&self, at: HostOffset, guest: &Range<u64>) -> Option<BrokenRule> {
        let word = self.word(at);
        let data_file = self.0.has(INCOMPATIBLE_DATA_FILE);
        if word & L2_COMPRESSED != 0 {
            return data_file.then_some(DATA_FILE_COMPRESSED);
        }
        let host = word & OFFSET_MASK;
        let mut allocated = host != 0 || data_file && word & COPIED != 0;
        if self.0.has(INCOMPATIBLE_EXTENDED_L2) {
            let bitmap = self.word(at + 8);
            let (stored, zero) = (bitmap & 0xFFFF_FFFF, bitmap >> 32);
            if stored & zero != 0 || !allocated && stored != 0 {
                return Some(BITMAP);
            }
        } else if word & L2_ZERO != 0 {
            if !self.0.is_v3() {
                return Some(ZERO_IN_V2);
            }
            allocated = host != 0;
        }
        if !allocated {
            None
        } else if self.is_off_boundary(host) {
            Some(CLUSTER_OFFSET)
        } else {
            (data_file && host != guest.start).then_some(DATA_FILE_OFFSET)
        }
    }
}
