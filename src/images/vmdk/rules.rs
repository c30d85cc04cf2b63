//! The rules about VMDK images in one file, and about the files of sparse extents, in the order of QEMU's checks
//! (`block/vmdk.c`, `vmdk_open`).
//!
//! If a footer replaces the header, a reader may still take all fields from the header except for the place of the
//! directory. If the directory has a copy, a reader may use that. An image breaks a rule only if none of these choices
//! is left. Not among the rules: extents without a magic number, extents that name a footer or a descriptor of their
//! own, and descriptors in files of their own.
//!
//! # Arithmetic
//! As in QEMU, products and sums have the lower 64 bits, and numbers of entries the lower 32.

use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_REDUNDANT_DIRECTORY, IDENTITY_BYTES,
    MARKER_FOOTER, MAX_DIRECTORY_ENTRIES, MAX_GRAIN_SECTORS, MAX_GRAIN_TABLE_ENTRIES,
    MAX_LENGTH_BYTES, MAX_PARENT_NAME_BYTES, MAX_VERSION, SECTOR_BYTES, SPARSE_MAGIC,
    STREAM_FOOTER_BYTES,
};
use crate::images::image::Image;

use super::rules_of_sesparse::broken_sesparse;
use crate::images::rule::{BrokenRule, if_no_reading_is_left};
use crate::images::rule_bytes::Bytes;

pub(super) const VMDK_MAGIC: BrokenRule = "VMDK magic";
const VMDK_NO_CAPACITY: BrokenRule = "VMDK capacity 0";
const VMDK_FOOTER: BrokenRule = "VMDK footer";
const VMDK_VERSION: BrokenRule = "VMDK version";
const VMDK_TABLE_SIZE: BrokenRule = "VMDK table of more than 512 entries";
const VMDK_EMPTY_TABLE: BrokenRule = "VMDK table that maps no sector";
const VMDK_TRUNCATED: BrokenRule = "VMDK overhead past the end of the file";
const VMDK_GRAIN_SIZE: BrokenRule = "VMDK grain above 1 GiB";
const VMDK_DIRECTORY_SIZE: BrokenRule = "VMDK directory above 128 MiB";
const VMDK_DIRECTORY: BrokenRule = "VMDK directory past 2^63";
const VMDK_PARENT_NAME: BrokenRule = "VMDK parentFileNameHint";
const VMDK_IDENTITY: BrokenRule = "VMDK CID";
const VMDK_PARENT_IDENTITY: BrokenRule = "VMDK parentCID";

/// The rules about whole images.
pub(super) const VMDK_OPEN_RULES: &[BrokenRule] = &[
    VMDK_MAGIC,
    VMDK_NO_CAPACITY,
    VMDK_FOOTER,
    VMDK_VERSION,
    VMDK_TABLE_SIZE,
    VMDK_EMPTY_TABLE,
    VMDK_TRUNCATED,
    VMDK_GRAIN_SIZE,
    VMDK_DIRECTORY_SIZE,
    VMDK_DIRECTORY,
    VMDK_PARENT_NAME,
    VMDK_IDENTITY,
    VMDK_PARENT_IDENTITY,
];

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
    if file.number(0, 12, 8) == 0 && file.number(0, 28, 8) != 0 {
        let text = file.number(0, 28, 8).wrapping_mul(SECTOR_BYTES);
        return file.lacks_type(text).then_some(VMDK_NO_CAPACITY);
    }
    let of_headers = match file.number(0, 56, 8) == DIRECTORY_AT_END {
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
            let names_footer = file.number(0, 56, 8) == DIRECTORY_AT_END;
            let names_text = file.number(0, 12, 8) == 0 && file.number(0, 28, 8) != 0;
            let header = HeaderOffsets { fields: 0, directory: 0 };
            (!names_footer && !names_text).then(|| file.broken_header(header))?
        }
        _ => broken_sesparse(&file.0),
    }
}

/// Returns the offset of the header that counts in a sparse extent, if QEMU opens the image.
pub(super) fn header_of(image: &Image) -> Option<u64> {
    let file = VmdkFile(Bytes::new(image));
    let at = match file.0.array(0) == SPARSE_MAGIC {
        true if file.number(0, 56, 8) == DIRECTORY_AT_END => file.footer()?,
        true => 0,
        false => return None,
    };
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
    fn number(&self, header: u64, inside: u64, width: u8) -> u64 {
        self.0.little(header.saturating_add(inside), width)
    }

    /// Returns the offset of the header in a valid footer.
    fn footer(&self) -> Option<u64> {
        let marker = self.0.end_of_sectors().checked_sub(STREAM_FOOTER_BYTES as u64)?;
        let (header, end) = (marker + SECTOR_BYTES, marker + 2 * SECTOR_BYTES);
        let kind = |marker| (self.number(marker, 8, 4), self.number(marker, 12, 4));
        let is_valid = self.0.array(header) == SPARSE_MAGIC
            && kind(marker) == (0, u64::from(MARKER_FOOTER))
            && kind(end) == (0, 0)
            && self.number(end, 0, 8) == 0;
        is_valid.then_some(header)
    }

    /// Returns the first rule that the fields of a header break (`vmdk_open_vmdk4`).
    fn broken_header(&self, header: HeaderOffsets) -> Option<BrokenRule> {
        let number = |inside, width| self.number(header.fields, inside, width);
        let (capacity, grain, table) = (number(12, 8), number(20, 8), number(44, 4));
        let span = table.wrapping_mul(grain) & 0xffff_ffff;
        if number(4, 4) > u64::from(MAX_VERSION) {
            return Some(VMDK_VERSION);
        }
        if table > u64::from(MAX_GRAIN_TABLE_ENTRIES) {
            return Some(VMDK_TABLE_SIZE);
        }
        if span == 0 {
            return Some(VMDK_EMPTY_TABLE);
        }
        let entries = (capacity.wrapping_add(span - 1) / span) & 0xffff_ffff;
        if number(64, 8) > self.0.end_of_sectors() / SECTOR_BYTES {
            Some(VMDK_TRUNCATED)
        } else if grain > MAX_GRAIN_SECTORS {
            Some(VMDK_GRAIN_SIZE)
        } else if entries > u64::from(MAX_DIRECTORY_ENTRIES) {
            Some(VMDK_DIRECTORY_SIZE)
        } else {
            let is_past_end = |inside| {
                let start = self.number(header.directory, inside, 8).wrapping_mul(SECTOR_BYTES);
                start.checked_add(entries * 4).is_none_or(|end| end > MAX_LENGTH_BYTES)
            };
            let has_no_copy = number(8, 4) & u64::from(FLAG_REDUNDANT_DIRECTORY) == 0;
            (is_past_end(56) && (has_no_copy || is_past_end(48))).then_some(VMDK_DIRECTORY)
        }
    }

    /// Returns the first rule that the header of ESX breaks (`vmdk_open_vmfs_sparse`).
    fn broken_cowd(&self) -> Option<BrokenRule> {
        if self.number(0, 16, 4) > MAX_GRAIN_SECTORS {
            Some(VMDK_GRAIN_SIZE)
        } else {
            (self.number(0, 24, 4) > u64::from(MAX_DIRECTORY_ENTRIES))
                .then_some(VMDK_DIRECTORY_SIZE)
        }
    }

    /// Returns the first rule that the descriptor in an extent breaks (`vmdk_parent_open` and `vmdk_read_cid`).
    fn broken_descriptor(&self) -> Option<BrokenRule> {
        let mut bytes: [u8; IDENTITY_BYTES] = self.0.array(EMBEDDED_DESCRIPTOR_AT);
        if has_endless_parent_name(&bytes) {
            return Some(VMDK_PARENT_NAME);
        }
        bytes[IDENTITY_BYTES - 1] = 0;
        if !has_number(&bytes, b"CID") {
            Some(VMDK_IDENTITY)
        } else {
            (!has_number(&bytes, b"parentCID")).then_some(VMDK_PARENT_IDENTITY)
        }
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

/// Returns the text up to the first zero byte.
fn text_of(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the index behind the first `name` in a text.
fn behind(text: &[u8], name: &[u8]) -> Option<usize> {
    let at = text.windows(name.len()).position(|window| window == name)?;
    Some(at + name.len())
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
