//! The lines of a descriptor that name the files of the extents.

use super::constants::{MAX_DESCRIPTOR_EXTENTS, SECTOR_BYTES};
use super::grain::offset_of;
use super::scan::{self, Scanner};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Vec<(u64, ExtentKind, String)>> {
        let extents = extents(text.as_bytes()).ok()?;
        let name = |name| String::from_utf8(name).unwrap();
        Some(extents.into_iter().map(|it| (it.sectors, it.kind, name(it.name))).collect())
    }

    fn flat(sector: u64) -> ExtentKind {
        ExtentKind::Flat(offset_of(sector))
    }

    #[test]
    fn extents_have_the_fields_of_their_types() {
        let one = |kind, name: &str| Some(vec![(8, kind, name.to_owned())]);
        assert_eq!(parsed("RW 8 FLAT \"a b\" 16\n"), one(flat(16), "a b"));
        assert_eq!(parsed("#\n  RW\t8 VMFS\"x"), Some(vec![]));
        assert_eq!(parsed("  RW\t8VMFS \"x"), one(flat(0), "x"));
        assert_eq!(parsed("RW 8 SPARSE \"x\"\nddb"), one(ExtentKind::Sparse, "x"));
        assert_eq!(parsed("RW 8 VMFSSPARSE \"x\""), one(ExtentKind::Sparse, "x"));
        assert_eq!(parsed("RW 8 SESPARSE \"x\""), one(ExtentKind::SeSparse, "x"));
        for skipped in [
            "RW 8 ZERO",
            "rw 8 VMFS \"x\"",
            "RW 0 VMFS \"x\"",
            "RW -1 VMFS \"x\"",
            "RDONLY 8 FLAT \"x\" 0",
            "RW 8 OTHER \"x\"",
            "RW 8 VMFS \"\"",
        ] {
            assert_eq!(parsed(skipped), Some(vec![]), "{skipped}");
        }
        for invalid in [
            "RW 8 FLAT \"x\"",
            "RW 8 FLAT \"x\" -1",
            "RW 8 VMFS \"x\" 0",
            "RW 8 SPARSE \"x\" 0",
            "RW 8 OTHER \"x\" 0",
            "RW 0 FLAT \"x\"",
            "RW 8 SPARSE \"x\"\n5",
        ] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn an_empty_line_repeats_the_extent_behind_it() {
        let extents = parsed("\n \nRW 8 VMFS \"x\"\nRW 9 VMFS \"y\"\n").unwrap();
        assert_eq!(extents.iter().map(|it| it.0).collect::<Vec<_>>(), [8, 8, 8, 9]);
        let many = "\n".repeat(MAX_DESCRIPTOR_EXTENTS - 1) + "RW 8 VMFS \"x\"";
        assert_eq!(parsed(&many).unwrap().len(), MAX_DESCRIPTOR_EXTENTS);
        assert_eq!(parsed(&format!("\n{many}")), None);
    }

    #[test]
    fn only_some_types_open() {
        let opens = |text: &str| create_type(text.as_bytes()).ok();
        assert_eq!(opens("createType=\"vmfs\""), Some("vmfs"));
        assert_eq!(opens("xcreateType: seSparse\" \""), Some("seSparse"));
        for refused in ["createType=\"monolithicSparse\"", "createType=\"vmfs", "createType=", ""] {
            assert_eq!(opens(refused), None, "{refused}");
        }
    }
}
