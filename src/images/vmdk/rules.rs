//! The rules about VMDK images in one file, and about the files of sparse and seSparse extents, in the order of QEMU's
//! checks (`block/vmdk.c`): those of `vmdk_open`, those about the front of compressed grains (`vmdk_read_extent`), and
//! those of `vmdk_open_se_sparse`.
//!
//! If a footer replaces the header, a reader may still take all fields from the header except for the place of the
//! directory. If the directory has a copy, a reader may use that. An image breaks a rule only if none of these choices
//! is left. Not among the rules: extents without a magic number, extents that name a footer or a descriptor of their
//! own, and descriptors in files of their own; grains that the redundant directory puts elsewhere; the bytes of a
//! compressed stream after the first two; directories of ESX that are too short, where QEMU reports no mapping and
//! reads zeros; the entries of seSparse tables.
//!
//! # Arithmetic
//! As in QEMU, products and sums have the lower 64 bits, and numbers of entries the lower 32.

use crate::formats::anatomy::StructureField;
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_REDUNDANT_DIRECTORY,
    GRAIN_MARKER_BYTES, HEADER_BYTES, IDENTITY_BYTES, MARKER_FOOTER, MAX_DIRECTORY_ENTRIES,
    MAX_GRAIN_SECTORS, MAX_GRAIN_TABLE_ENTRIES, MAX_LENGTH_BYTES, MAX_PARENT_NAME_BYTES,
    MAX_VERSION, SE_SPARSE_ENTRY_BYTES, SE_SPARSE_GRAIN_SECTORS, SE_SPARSE_MAGIC,
    SE_SPARSE_TABLE_SECTORS, SE_SPARSE_VERSION, SE_SPARSE_VOLATILE_MAGIC, SECTOR_BYTES,
    SPARSE_MAGIC, STREAM_FOOTER_BYTES, const_header, cowd_header, grain_marker, marker,
    sparse_header, volatile_header,
};
use crate::images::damage::rules::{BrokenEntry, BrokenRule, Bytes, if_no_reading_is_left, rules};
use crate::images::files::image::Image;

use super::grain_tables::{GrainTables, offset_of};

rules! {
    /// The rules about whole images.
    VMDK_OPEN_RULES {
        VMDK_MAGIC = "VMDK magic",
        VMDK_NO_CAPACITY = "VMDK capacity 0",
        VMDK_FOOTER = "VMDK footer",
        VMDK_VERSION = "VMDK version",
        VMDK_TABLE_SIZE = "VMDK table of more than 512 entries",
        VMDK_EMPTY_TABLE = "VMDK table that maps no sector",
        VMDK_TRUNCATED = "VMDK overhead past the end of the file",
        VMDK_GRAIN_SIZE = "VMDK grain above 1 GiB",
        VMDK_DIRECTORY_SIZE = "VMDK directory above 128 MiB",
        VMDK_DIRECTORY = "VMDK directory past 2^63",
        VMDK_PARENT_NAME = "VMDK parentFileNameHint",
        VMDK_IDENTITY = "VMDK CID",
        VMDK_PARENT_IDENTITY = "VMDK parentCID",
    }
    /// The rules about entries.
    VMDK_ENTRY_RULES {
        VMDK_MARKER = "VMDK length in a marker",
        VMDK_ZLIB = "VMDK zlib header",
    }
    /// The rules about seSparse extents.
    SE_SPARSE_OPEN_RULES {
        SE_SPARSE_VERSION_RULE = "seSparse version",
        SE_SPARSE_GRAIN = "seSparse grain",
        SE_SPARSE_TABLE = "seSparse table",
        SE_SPARSE_FLAGS = "seSparse flags",
        SE_SPARSE_RESERVED = "seSparse reserved field",
        SE_SPARSE_PADDING = "seSparse padding",
        SE_SPARSE_VOLATILE = "seSparse volatile header",
        SE_SPARSE_JOURNAL = "seSparse journal to replay",
        SE_SPARSE_DIRECTORY_SIZE = "seSparse directory above 256 MiB",
        SE_SPARSE_DIRECTORY = "seSparse directory past 2^63",
    }
}

/// The rules that are limits of QEMU (`block/vmdk.c`, `vmdk_add_extent`, `vmdk_open_se_sparse`).
pub(super) const VMDK_LIMITS: &[BrokenRule] =
    &[VMDK_GRAIN_SIZE, VMDK_DIRECTORY_SIZE, SE_SPARSE_DIRECTORY_SIZE];

/// The number of bytes of a text in which the type of a disk is searched.
const JUDGED_TEXT_BYTES: usize = 1 << 14;

/// Returns the rule that an image breaks.
pub(super) fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let file = VmdkFile(Bytes::new(image));
    if file.0.array(0) == COWD_MAGIC {
        return file.broken_cowd().or_else(|| file.broken_descriptor());
    }
    if file.0.array(0) != SPARSE_MAGIC {
        return file.lacks_type(0).then_some(VMDK_MAGIC);
    }
    let header = HeaderOffsets { fields: 0, directory: 0 };
    if file.names_text() {
        let text = file.number(0, sparse_header::DESCRIPTOR_OFFSET).wrapping_mul(SECTOR_BYTES);
        return file.lacks_type(text).then_some(VMDK_NO_CAPACITY);
    }
    let of_headers = match file.names_footer() {
        false => file.broken_header(header),
        true => match file.footer() {
            None => Some(VMDK_FOOTER),
            Some(footer) => {
                let mixed = HeaderOffsets { directory: footer, ..header };
                let whole = HeaderOffsets { fields: footer, directory: footer };
                let other = std::iter::once_with(|| file.broken_header(mixed));
                if_no_reading_is_left(VMDK_OPEN_RULES, file.broken_header(whole), other)
            }
        },
    };
    of_headers.or_else(|| file.broken_descriptor())
}

/// Returns the rule that the file of a sparse extent breaks, which a descriptor names.
pub(super) fn broken_extent(image: &Image) -> Option<BrokenRule> {
    let file = VmdkFile(Bytes::new(image));
    match file.0.array(0) {
        COWD_MAGIC => file.broken_cowd(),
        SPARSE_MAGIC => {
            let header = HeaderOffsets { fields: 0, directory: 0 };
            (!file.names_footer() && !file.names_text()).then(|| file.broken_header(header))?
        }
        _ => broken_sesparse(&file.0),
    }
}

/// Returns the offset of the header that counts in a file that begins like a sparse extent.
pub(super) fn header_of(image: &Image) -> Option<u64> {
    let file = VmdkFile(Bytes::new(image));
    match file.0.array(0) == SPARSE_MAGIC {
        true if file.names_footer() => file.footer(),
        true => Some(0),
        false => None,
    }
}

/// Returns the same offset if QEMU opens the image.
fn opened_header_of(image: &Image) -> Option<u64> {
    let (file, at) = (VmdkFile(Bytes::new(image)), header_of(image)?);
    let header = HeaderOffsets { fields: at, directory: at };
    let broken = file.broken_header(header).or_else(|| file.broken_descriptor());
    broken.is_none().then_some(at)
}

/// The offsets of the headers that state the place of the directory, and all other fields.
#[derive(Clone, Copy)]
struct HeaderOffsets {
    fields: u64,
    directory: u64,
}

/// A file.
struct VmdkFile<'i>(Bytes<'i>);

impl VmdkFile<'_> {
    fn number(&self, header: u64, field: StructureField) -> u64 {
        self.0.little_field(header, field)
    }

    /// Reports whether the header leaves the place of the directory to a footer.
    fn names_footer(&self) -> bool {
        self.number(0, sparse_header::GD_OFFSET) == DIRECTORY_AT_END
    }

    /// Reports whether the header names a descriptor instead of a disk.
    fn names_text(&self) -> bool {
        self.number(0, sparse_header::CAPACITY) == 0
            && self.number(0, sparse_header::DESCRIPTOR_OFFSET) != 0
    }

    /// Returns the offset of the header in a valid footer.
    fn footer(&self) -> Option<u64> {
        let start = self.0.end_of_sectors().checked_sub(STREAM_FOOTER_BYTES as u64)?;
        let (header, end) = (start + SECTOR_BYTES, start + 2 * SECTOR_BYTES);
        let kind = |at| [marker::MARKER_SIZE, marker::MARKER_TYPE].map(|it| self.number(at, it));
        let is_valid = self.0.array(header) == SPARSE_MAGIC
            && kind(start) == [0, u64::from(MARKER_FOOTER)]
            && kind(end) == [0, 0]
            && self.number(end, marker::MARKER_SECTORS) == 0;
        is_valid.then_some(header)
    }

    /// Returns the first rule that the fields of a header break (`vmdk_open_vmdk4`).
    fn broken_header(&self, header: HeaderOffsets) -> Option<BrokenRule> {
        use sparse_header as field;
        let number = |field| self.number(header.fields, field);
        let (capacity, grain) = (number(field::CAPACITY), number(field::GRAIN_SIZE));
        let table = number(field::GTES_PER_GT);
        let span = table.wrapping_mul(grain) & 0xffff_ffff;
        if number(field::VERSION) > u64::from(MAX_VERSION) {
            return Some(VMDK_VERSION);
        }
        if table > u64::from(MAX_GRAIN_TABLE_ENTRIES) {
            return Some(VMDK_TABLE_SIZE);
        }
        if span == 0 {
            return Some(VMDK_EMPTY_TABLE);
        }
        let entries = (capacity.wrapping_add(span - 1) / span) & 0xffff_ffff;
        if number(field::OVERHEAD) > self.0.end_of_sectors() / SECTOR_BYTES {
            Some(VMDK_TRUNCATED)
        } else if grain > MAX_GRAIN_SECTORS {
            Some(VMDK_GRAIN_SIZE)
        } else if entries > u64::from(MAX_DIRECTORY_ENTRIES) {
            Some(VMDK_DIRECTORY_SIZE)
        } else {
            let is_past_end = |field| {
                let start = self.number(header.directory, field).wrapping_mul(SECTOR_BYTES);
                start.checked_add(entries * 4).is_none_or(|end| end > MAX_LENGTH_BYTES)
            };
            let has_no_copy = number(field::FLAGS) & u64::from(FLAG_REDUNDANT_DIRECTORY) == 0;
            (is_past_end(field::GD_OFFSET) && (has_no_copy || is_past_end(field::RGD_OFFSET)))
                .then_some(VMDK_DIRECTORY)
        }
    }

    /// Returns the first rule that the header of ESX breaks (`vmdk_open_vmfs_sparse`).
    fn broken_cowd(&self) -> Option<BrokenRule> {
        if self.number(0, cowd_header::GRAIN_SIZE) > MAX_GRAIN_SECTORS {
            Some(VMDK_GRAIN_SIZE)
        } else {
            (self.number(0, cowd_header::GD_ENTRIES) > u64::from(MAX_DIRECTORY_ENTRIES))
                .then_some(VMDK_DIRECTORY_SIZE)
        }
    }

    /// Returns the first rule that the descriptor in an extent breaks (`vmdk_parent_open` and `vmdk_read_cid`).
    fn broken_descriptor(&self) -> Option<BrokenRule> {
        let front: [u8; USUAL_TEXT_BYTES] = self.0.array(EMBEDDED_DESCRIPTOR_AT);
        // A value may begin one byte behind the end of the text.
        let end = memchr::memchr(0, &front);
        if end.is_some_and(|end| front.get(end + 1) == Some(&0)) {
            return broken_text(&front);
        }
        let mut bytes: [u8; IDENTITY_BYTES] = self.0.array(EMBEDDED_DESCRIPTOR_AT);
        if has_endless_parent_name(&bytes) {
            return Some(VMDK_PARENT_NAME);
        }
        bytes[IDENTITY_BYTES - 1] = 0;
        broken_text(&bytes)
    }

    /// Reports whether the text at `at` does not state the type of a disk.
    fn lacks_type(&self, at: u64) -> bool {
        const TYPES: [&[u8]; 6] = [
            b"monolithicFlat",
            b"vmfs",
            b"vmfsSparse",
            b"seSparse",
            b"twoGbMaxExtentSparse",
            b"twoGbMaxExtentFlat",
        ];
        let bytes: [u8; JUDGED_TEXT_BYTES] = self.0.array(at);
        let text = text_of(&bytes);
        let value = behind(text, b"createType").and_then(|at| text.get(at + 2..));
        let name = value.and_then(|value| value.split(|byte| *byte == b'"').next());
        // A text that is longer may state it later.
        text.len() < JUDGED_TEXT_BYTES && !name.is_some_and(|name| TYPES.contains(&name))
    }
}

/// The bytes of a descriptor that hold the text of most images.
const USUAL_TEXT_BYTES: usize = 1 << 10;

/// Returns the first rule that a descriptor breaks.
fn broken_text(bytes: &[u8]) -> Option<BrokenRule> {
    if has_endless_parent_name(bytes) {
        Some(VMDK_PARENT_NAME)
    } else if !has_number(bytes, b"CID") {
        Some(VMDK_IDENTITY)
    } else {
        (!has_number(bytes, b"parentCID")).then_some(VMDK_PARENT_IDENTITY)
    }
}

/// Returns the text up to the first zero byte.
fn text_of(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// Returns the index behind the first `name` in a text.
fn behind(text: &[u8], name: &[u8]) -> Option<usize> {
    Some(memchr::memmem::find(text, name)? + name.len())
}

/// Reports whether a hexadecimal number follows the first `name` and one more byte. As C's `sscanf` does, this skips
/// spaces and a sign.
fn has_number(bytes: &[u8], name: &[u8]) -> bool {
    let value = behind(text_of(bytes), name).and_then(|at| bytes.get(at + 1..));
    let value = text_of(value.unwrap_or_default());
    let spaces = value.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    match &value[spaces..] {
        [b'+' | b'-', first, ..] | [first, ..] => first.is_ascii_hexdigit(),
        [] => false,
    }
}

/// Reports whether the name of a parent has no end, or is too long.
fn has_endless_parent_name(bytes: &[u8]) -> bool {
    let Some(at) = behind(text_of(bytes), b"parentFileNameHint") else { return false };
    let value = text_of(bytes.get(at + 2..).unwrap_or_default());
    value.iter().position(|byte| *byte == b'"').is_none_or(|end| end > MAX_PARENT_NAME_BYTES)
}

/// The number of entries of a directory and of all tables that are judged. Programs make fewer.
const VMDK_JUDGED_ENTRIES: u64 = 1 << 15;

/// Calls `take` with the entries that break a rule, if QEMU opens the image.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let bytes = Bytes::new(image);
    let Some(header) = opened_header_of(image) else { return };
    let tables = GrainTables::of_sparse(bytes, header);
    if !tables.is_compressed {
        return;
    }
    let (per_table, grain) = (tables.table_entries, offset_of(tables.grain));
    // Past the end of the disk, a layer above reads zeros.
    let disk = tables.capacity.saturating_mul(SECTOR_BYTES);
    let mut left = VMDK_JUDGED_ENTRIES;
    tables.each_table(|index, table| {
        let judged = left.checked_sub(per_table).filter(|_| index < VMDK_JUDGED_ENTRIES);
        let Some(next) = judged else { return };
        left = next;
        let copy = tables.copy_of_table(index);
        tables.each_grain((index, offset_of(table)), |grain_index, sector| {
            let at = (grain_index - index * per_table) * 4;
            let differs = |copy: u64| bytes.little(copy.saturating_add(at), 4) != sector;
            if copy.is_some_and(differs) {
                return;
            }
            let front = broken_front(&bytes, offset_of(sector), grain, tables.has_markers);
            if let Some(rule) = front {
                let first = grain_index * grain;
                let guest = first.min(disk)..(first + grain).min(disk);
                take(BrokenEntry { rule, guest, is_mapped: true });
            }
        });
    });
}

/// Returns the rule that the first bytes of a compressed grain of `grain` bytes break.
pub(super) fn broken_front(
    bytes: &Bytes,
    start: u64,
    grain: u64,
    has_marker: bool,
) -> Option<BrokenRule> {
    let mut stream = start;
    if has_marker {
        if !(1..=2 * grain).contains(&bytes.little_field(start, grain_marker::SIZE)) {
            return Some(VMDK_MARKER);
        }
        stream += GRAIN_MARKER_BYTES;
    }
    // RFC 1950, section 2.2: deflate, a window of at most 32 KiB, no dictionary.
    let [method, flags] = bytes.array(stream);
    let check = u32::from(method) * 256 + u32::from(flags);
    let is_valid =
        method & 15 == 8 && method >> 4 <= 7 && flags & 32 == 0 && check.is_multiple_of(31);
    (!is_valid).then_some(VMDK_ZLIB)
}

/// Returns the first rule that a file breaks which begins like an seSparse extent; `None` for any other file.
pub(super) fn broken_sesparse(file: &Bytes<'_>) -> Option<BrokenRule> {
    use const_header as field;
    let number = |field| file.little_field(0, field);
    if number(field::MAGIC) != SE_SPARSE_MAGIC {
        return None;
    }
    let fields = [
        (field::VERSION, SE_SPARSE_VERSION, SE_SPARSE_VERSION_RULE),
        (field::GRAIN_SIZE, SE_SPARSE_GRAIN_SECTORS, SE_SPARSE_GRAIN),
        (field::GRAIN_TABLE_SIZE, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_TABLE),
        (field::FLAGS, 0, SE_SPARSE_FLAGS),
        (field::RESERVED1, 0, SE_SPARSE_RESERVED),
        (field::RESERVED2, 0, SE_SPARSE_RESERVED),
        (field::RESERVED3, 0, SE_SPARSE_RESERVED),
        (field::RESERVED4, 0, SE_SPARSE_RESERVED),
    ];
    let wrong = fields.iter().find(|(field, expected, _)| number(*field) != *expected);
    if let Some((_, _, rule)) = wrong {
        return Some(*rule);
    }
    if has_padding(file, 0, field::PAD) {
        return Some(SE_SPARSE_PADDING);
    }
    broken_volatile(file, number(field::VOLATILE_HEADER_OFFSET).wrapping_mul(SECTOR_BYTES)).or_else(
        || broken_directory(number(field::GRAIN_DIR_OFFSET), number(field::GRAIN_DIR_SIZE)),
    )
}

/// Returns the first rule that the header at `at` breaks, which changes while the disk is in use.
fn broken_volatile(file: &Bytes<'_>, at: u64) -> Option<BrokenRule> {
    use volatile_header as field;
    let is_past_end = at > MAX_LENGTH_BYTES;
    if is_past_end || file.little_field(at, field::MAGIC) != SE_SPARSE_VOLATILE_MAGIC {
        Some(SE_SPARSE_VOLATILE)
    } else if file.little_field(at, field::REPLAY_JOURNAL) != 0 {
        Some(SE_SPARSE_JOURNAL)
    } else {
        has_padding(file, at, field::PAD).then_some(SE_SPARSE_PADDING)
    }
}

/// Returns the rule that the place and the length of the directory break.
fn broken_directory(start_sector: u64, sectors: u64) -> Option<BrokenRule> {
    let entries = (sectors.wrapping_mul(SECTOR_BYTES) / SE_SPARSE_ENTRY_BYTES) & 0xffff_ffff;
    if entries > u64::from(MAX_DIRECTORY_ENTRIES) {
        return Some(SE_SPARSE_DIRECTORY_SIZE);
    }
    let end = start_sector.wrapping_mul(SECTOR_BYTES).checked_add(entries * SE_SPARSE_ENTRY_BYTES);
    end.is_none_or(|end| end > MAX_LENGTH_BYTES).then_some(SE_SPARSE_DIRECTORY)
}

/// Reports whether the padding of the header at `at`, which begins with this field, has other bytes than zeros.
fn has_padding(file: &Bytes<'_>, at: u64, padding: StructureField) -> bool {
    let bytes: [u8; HEADER_BYTES] = file.array(at);
    bytes.iter().skip(padding.at).any(|byte| *byte != 0)
}
