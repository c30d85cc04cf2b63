//! The lines of a descriptor that name the files of the extents. Fields of a line are read as C's `sscanf` does, with
//! which QEMU parses descriptors. A line break is a space like all others, so that a field may lie in a later line.
//!
//! # Arithmetic
//! `sscanf` keeps a decimal number without room at the largest or the smallest one, and negates a hexadecimal number
//! in 64 bits.

use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;
use crate::formats::layer::ProbedBytes;
use crate::formats::vmdk::constants::{MAX_DESCRIPTOR_EXTENTS, SECTOR_BYTES};
use crate::formats::vmdk::tables::offset_of;

/// An extent of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentLine {
    /// The number of guest sectors, which counts only for flat extents: at least 1.
    pub sectors: u64,
    /// The kind of the extent.
    pub kind: ExtentKind,
    /// The kind, as the line spells it.
    pub kind_name: &'static str,
    /// The name of the file.
    pub name: Vec<u8>,
}

impl ExtentLine {
    /// Returns the number of guest bytes. A number of sectors that does not fit is held at the largest number.
    pub fn bytes(&self) -> u64 {
        self.sectors.saturating_mul(SECTOR_BYTES)
    }
}

/// The kind of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Guest data from this host offset on.
    Flat(HostOffset),
    /// A file that begins with one of the two headers of sparse extents.
    Sparse,
    /// An seSparse file.
    SeSparse,
}

/// The types of disks that QEMU opens by a descriptor (`block/vmdk.c`, `vmdk_open_desc_file`).
const CREATE_TYPES: [&str; 6] = [
    "monolithicFlat",
    "vmfs",
    "vmfsSparse",
    "seSparse",
    "twoGbMaxExtentSparse",
    "twoGbMaxExtentFlat",
];

/// The longest word that QEMU reads in a line of an extent.
const LONGEST_WORD: usize = 10;
/// The longest name of a file that QEMU reads.
const LONGEST_NAME: usize = 511;

/// Returns the type of the disk.
///
/// # Errors
/// The type is missing, or QEMU does not open it.
pub fn create_type(text: &[u8]) -> Result<&'static str, MapError> {
    let value = after(text, b"createType").and_then(|at| at.checked_add(2));
    let value = value.and_then(|at| text.get(at..)).unwrap_or_default();
    let mut parts = value.splitn(2, |byte| *byte == b'"');
    match (parts.next(), parts.next()) {
        (Some(name), Some(_)) => {
            let known = CREATE_TYPES.into_iter().find(|known| known.as_bytes() == name);
            known.ok_or(MapError::Unsupported("type of disk in the VMDK descriptor"))
        }
        _ => Err(MapError::NotImage { format: "vmdk", what: "no type of disk in the descriptor" }),
    }
}

/// Returns the extents, in the order of the disk. As in QEMU (`block/vmdk.c`, `vmdk_parse_extents`), lines with an
/// access other than `RW`, an unknown type or no sectors have no effect, and an empty line before the line of an extent
/// adds that extent once more.
///
/// # Errors
/// A line has too few or too many fields for its type, or there are more than [`MAX_DESCRIPTOR_EXTENTS`].
pub fn extents(text: &[u8]) -> Result<Vec<ExtentLine>, MapError> {
    let mut extents = Vec::new();
    let (mut line_at, mut fields_at, mut parsed) = (0, None, None);
    while let Some(line) = text.get(line_at..).filter(|line| !line.is_empty()) {
        // Lines of spaces alone have the fields of the next line. Each line is parsed once.
        if fields_at.is_none_or(|at| at < line_at) {
            fields_at = line_at.checked_add(spaces(line));
            parsed = extent(fields_at.and_then(|at| text.get(at..)).unwrap_or_default())?;
        }
        if extents.len() >= MAX_DESCRIPTOR_EXTENTS && parsed.is_some() {
            return Err(MapError::TooLarge("extents of a VMDK descriptor"));
        }
        extents.extend(parsed.clone());
        let length = line.iter().position(|byte| *byte == b'\n');
        line_at =
            length.and_then(|at| line_at.checked_add(at)?.checked_add(1)).unwrap_or(text.len());
    }
    Ok(extents)
}

/// Parses the extent at the beginning of a text. Returns `None` if there is none.
fn extent(text: &[u8]) -> Result<Option<ExtentLine>, MapError> {
    let mut fields = Scanner::new(text);
    if fields.word(LONGEST_WORD) != Some(b"RW") {
        return Ok(None);
    }
    let Some(sectors) = fields.integer() else { return Ok(None) };
    let Some(kind) = fields.word(LONGEST_WORD) else { return Ok(None) };
    fields.spaces();
    let name = fields.literal(b'"').then(|| fields.until(b"\n\r\"", LONGEST_NAME)).flatten();
    let Some(name) = name else { return Ok(None) };
    let sector = fields.literal(b'"').then(|| fields.integer()).flatten();
    let kind = match (kind, sector) {
        (b"FLAT", Some(sector)) => match u64::try_from(sector) {
            Ok(sector) => Some((ExtentKind::Flat(offset_of(sector)), "FLAT")),
            Err(_) => return Err(invalid()),
        },
        (b"VMFS", None) => Some((ExtentKind::Flat(HostOffset::ZERO), "VMFS")),
        (b"FLAT", None) | (_, Some(_)) => return Err(invalid()),
        (b"SPARSE", None) => Some((ExtentKind::Sparse, "SPARSE")),
        (b"VMFSSPARSE", None) => Some((ExtentKind::Sparse, "VMFSSPARSE")),
        (b"SESPARSE", None) => Some((ExtentKind::SeSparse, "SESPARSE")),
        _ => None,
    };
    let sectors = u64::try_from(sectors).ok().filter(|sectors| *sectors > 0);
    let line = |((kind, kind_name), sectors)| {
        let name = name.to_vec();
        ExtentLine { sectors, kind, kind_name, name }
    };
    Ok(kind.zip(sectors).map(line))
}

fn invalid() -> MapError {
    let what = "the line of an extent in the descriptor has too few or too many fields";
    MapError::NotImage { format: "vmdk", what }
}

/// Reports whether a text begins with a version, after comments and lines of spaces (QEMU `block/vmdk.c`,
/// `vmdk_probe`). A line without any byte is none of spaces.
pub(crate) fn is_probed(first_bytes: &ProbedBytes) -> bool {
    let mut rest = first_bytes.as_slice();
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return false };
        let (line, behind) = rest.split_at(end);
        let unended = line.strip_suffix(b"\r").unwrap_or(line);
        match line {
            [b'#', ..] => {}
            [b' ', ..] if unended.iter().all(|byte| *byte == b' ') => {}
            _ => return matches!(unended, b"version=1" | b"version=2" | b"version=3"),
        }
        let [_, after @ ..] = behind else { return false };
        rest = after;
    }
}

/// A text from which fields are read, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// Skips spaces and line breaks.
    fn spaces(&mut self) {
        self.rest = self.rest.split_at(spaces(self.rest)).1;
    }

    /// Reads a word of at most `longest` bytes (`%10s`). A longer word is cut.
    pub(super) fn word(&mut self, longest: usize) -> Option<&'a [u8]> {
        self.spaces();
        self.take_while(longest, |byte| !is_space(byte))
    }

    /// Reads bytes up to one of `stops`, at most `longest` (`%511[^\n\r\"]`).
    pub(super) fn until(&mut self, stops: &[u8], longest: usize) -> Option<&'a [u8]> {
        self.take_while(longest, |byte| !stops.contains(&byte))
    }

    /// Skips `byte`. Returns false if the next byte is another.
    pub(super) fn literal(&mut self, byte: u8) -> bool {
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads a decimal number (`%lld`). A number without room becomes the nearest one that has room.
    fn integer(&mut self) -> Option<i64> {
        self.spaces();
        let is_negative = self.sign();
        let digits = self.take_while(usize::MAX, |byte| byte.is_ascii_digit())?;
        Some(digits.iter().fold(0i64, |number, digit| {
            let digit = i64::from(digit.wrapping_sub(b'0'));
            let shifted = number.saturating_mul(10);
            if is_negative { shifted.saturating_sub(digit) } else { shifted.saturating_add(digit) }
        }))
    }

    /// Reads a hexadecimal number (`%x`). A number with more than 32 bits loses the upper bits, and one with more
    /// than 64 bits becomes 32 ones.
    pub(super) fn hexadecimal(&mut self) -> Option<u32> {
        self.spaces();
        let is_negative = self.sign();
        let is_prefixed = matches!(self.rest, [b'0', b'x' | b'X', ..]);
        if is_prefixed {
            self.rest = self.rest.split_at(2).1;
        }
        let digits = self.take_while(usize::MAX, |byte| byte.is_ascii_hexdigit());
        let mut number = Some(0u64);
        // The zero of the prefix is a digit, too.
        for digit in digits.or(is_prefixed.then_some(&[]))? {
            let value = char::from(*digit).to_digit(16).unwrap_or(0);
            number =
                number.and_then(|number| number.checked_mul(16)).map(|it| it | u64::from(value));
        }
        let [a, b, c, d, ..] = match number {
            Some(number) if is_negative => number.wrapping_neg().to_le_bytes(),
            Some(number) => number.to_le_bytes(),
            None => u64::MAX.to_le_bytes(),
        };
        Some(u32::from_le_bytes([a, b, c, d]))
    }

    /// Skips a sign. Reports whether it is a minus.
    fn sign(&mut self) -> bool {
        let is_negative = self.literal(b'-');
        let _ = is_negative || self.literal(b'+');
        is_negative
    }

    /// Takes at least one byte.
    fn take_while(&mut self, longest: usize, wanted: impl Fn(u8) -> bool) -> Option<&'a [u8]> {
        let end = self.rest.iter().take(longest).take_while(|byte| wanted(**byte)).count();
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }
}

/// Returns the number of spaces and line breaks at the beginning of a text.
fn spaces(text: &[u8]) -> usize {
    text.iter().take_while(|byte| is_space(**byte)).count()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Returns the text up to the first zero byte.
pub(super) fn text_of(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// Returns the index of the first byte behind the first `name` in a text.
pub(super) fn after(text: &[u8], name: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, name)?.checked_add(name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_scanf() {
        let integer = |text: &[u8]| Scanner::new(text).integer();
        assert_eq!(integer(b" \n 12x"), Some(12));
        assert_eq!((integer(b"-7"), integer(b"+7"), integer(b"+-7")), (Some(-7), Some(7), None));
        assert_eq!(integer(b"99999999999999999999"), Some(i64::MAX));
        assert_eq!(integer(b"-99999999999999999999"), Some(i64::MIN));
        assert_eq!(integer(b"x1"), None);
        let hexadecimal = |text: &[u8]| Scanner::new(text).hexadecimal();
        assert_eq!(hexadecimal(b" fFg"), Some(255));
        assert_eq!((hexadecimal(b"0x1f"), hexadecimal(b"0xg")), (Some(31), Some(0)));
        assert_eq!(
            (hexadecimal(b"-1"), hexadecimal(b"123456789")),
            (Some(u32::MAX), Some(0x2345_6789))
        );
        assert_eq!(hexadecimal(b"10000000000000000"), Some(u32::MAX));
        assert_eq!(hexadecimal(b"g"), None);
    }

    #[test]
    fn long_words_are_cut() {
        let mut scanner = Scanner::new(b"\n RW 123456789012\"x");
        assert_eq!(scanner.word(10), Some(&b"RW"[..]));
        assert_eq!(scanner.word(10), Some(&b"1234567890"[..]));
        assert_eq!(scanner.until(b"\"", 10), Some(&b"12"[..]));
        assert!(scanner.literal(b'"') && !scanner.literal(b'"'));
        assert_eq!((scanner.word(10), scanner.word(10)), (Some(&b"x"[..]), None));
    }
}
