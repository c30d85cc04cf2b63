//! The lines of a descriptor that name the files of the extents.

use super::constants::{MAX_DESCRIPTOR_EXTENTS, SECTOR_BYTES};
use super::grain::offset_of;
use super::scan::{self, Scanner};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;
use crate::formats::probe::ProbedBytes;

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
    let value = scan::after(text, b"createType").and_then(|at| at.checked_add(2));
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
            fields_at = line_at.checked_add(scan::spaces(line));
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
