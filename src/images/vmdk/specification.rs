//! The rules that only the specification demands of a VMDK image, or the meaning of its parts: copies are the same, the
//! descriptor fits the extents and the parent, and the entries of seSparse tables have a known type. QEMU opens images
//! that break them. Not among the rules: markers before tables and directories, which no reader sees that follows the
//! directory; of a descriptor in a file of its own, the type of the disk.

use crate::formats::vmdk::constants::{
    COMPRESS_DEFLATE, COWD_MAGIC, EMBEDDED_DESCRIPTOR_AT, ESX_TABLE_ENTRIES, FLAG_MARKERS,
    FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS, SE_SPARSE_ENTRY_BYTES, SE_SPARSE_MAGIC,
    SE_SPARSE_TABLE_SECTORS, SECTOR_BYTES, SPARSE_MAGIC, ZERO_GRAIN, const_header, cowd_header,
    grain_marker, sparse_header,
};
use crate::images::damage::rules::{BrokenRule, Bytes};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;

use super::rules::header_of;

const CONTENT: BrokenRule = "VMDK CID of no content";
const PARENT_CONTENT: BrokenRule = "VMDK parentCID of another content";
const PARENT_HINT: BrokenRule = "VMDK parentFileNameHint of another file";
const FOOTER: BrokenRule = "VMDK footer with other fields";
const CREATE_TYPE: BrokenRule = "VMDK createType of other grains";
const EXTENT_TEXT: BrokenRule = "VMDK extent without a size, a kind and a name";
const EXTENT_NAME: BrokenRule = "VMDK extent with another name";
const EXTENT_KIND: BrokenRule = "VMDK extent of another kind";
const EXTENT_SIZE: BrokenRule = "VMDK extent of another size";
const DIRECTORY_COPY: BrokenRule = "VMDK redundant directory with other tables";
const TABLE_COPY: BrokenRule = "VMDK redundant table with other entries";
const OVERHEAD: BrokenRule = "VMDK grain before the overhead";
const MARKER: BrokenRule = "VMDK marker of another grain";
const SE_SPARSE_TABLE: BrokenRule = "seSparse entry of a table";
const SE_SPARSE_GRAIN: BrokenRule = "seSparse entry of a grain";

/// The bytes of a descriptor that are read: the build writes no longer text.
const TEXT_BYTES: usize = 4096;
/// The parent's identity of an image without a parent, and the identity of no content.
const NO_CONTENT: &[u8] = b"ffffffff";

/// Returns the first of these rules that the files of a built image break, which lies on `below`.
pub(super) fn broken_by_specification(
    files: &LayerFiles,
    below: Option<&LayerFiles>,
) -> Option<BrokenRule> {
    let text = descriptor_of(files);
    if let Some(broken) = broken_identity(&text, below) {
        return Some(broken);
    }
    if files.extents.all().is_empty() {
        return broken_image(&files.image, &text);
    }
    let mut named = files.named_extents();
    for line in lines(&text).filter_map(|line| line.strip_prefix(b"RW ")) {
        let Some(line) = StatedExtent::parse(line) else { return Some(EXTENT_TEXT) };
        match named.next() {
            Some((name, file)) if name.as_bytes() == line.name => {
                if let Some(broken) = line.broken_in(file) {
                    return Some(broken);
                }
            }
            _ => return Some(EXTENT_NAME),
        }
    }
    named.next().map(|_| EXTENT_NAME)
}

/// Returns the first bytes of the descriptor of an image.
fn descriptor_of(files: &LayerFiles) -> [u8; TEXT_BYTES] {
    let is_embedded = files.extents.all().is_empty();
    Bytes::new(&files.image).array(if is_embedded { EMBEDDED_DESCRIPTOR_AT } else { 0 })
}

/// Returns the lines of a text that ends at the first zero byte.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    text.get(..end).unwrap_or_default().split(|byte| *byte == b'\n')
}

/// Returns the value behind the first `name` that begins a line.
fn value<'t>(text: &'t [u8], name: &[u8]) -> Option<&'t [u8]> {
    lines(text).find_map(|line| line.strip_prefix(name))
}

/// Returns the first rule that the identities in a descriptor break, or the name of the parent.
fn broken_identity(text: &[u8], below: Option<&LayerFiles>) -> Option<BrokenRule> {
    let is_number = |value: &[u8]| value.len() == 8 && value.iter().all(u8::is_ascii_hexdigit);
    let is_content = |value: &[u8]| is_number(value) && value != NO_CONTENT;
    let below_text = below.map(descriptor_of);
    let parent = below_text.as_ref().map(|text| value(text, b"CID="));
    let name = below.map(|below| format!("\"{}\"", below.name));
    if !value(text, b"CID=").is_some_and(is_content) {
        Some(CONTENT)
    } else if value(text, b"parentCID=") != parent.unwrap_or(Some(NO_CONTENT)) {
        Some(PARENT_CONTENT)
    } else {
        let hint = value(text, b"parentFileNameHint=");
        (hint != name.as_deref().map(str::as_bytes)).then_some(PARENT_HINT)
    }
}

/// Returns the first rule that an image in one file breaks.
fn broken_image(image: &Image, text: &[u8]) -> Option<BrokenRule> {
    let file = Bytes::new(image);
    if file.array(0) == COWD_MAGIC {
        return GrainTables::of_cowd(file).broken();
    }
    let header = header_of(image)?;
    if header > 0 && !is_copy_of_header(&file, header) {
        return Some(FOOTER);
    }
    let tables = GrainTables::of_sparse(file, header);
    let create_type: &[u8] = match tables.is_compressed {
        true => b"createType=\"streamOptimized\"",
        false => b"createType=\"monolithicSparse\"",
    };
    let extent = format!("RW {} SPARSE \"", tables.capacity);
    let mut extents = lines(text).filter(|line| line.starts_with(b"RW "));
    let is_only = match (extents.next(), extents.next()) {
        (Some(line), None) => line.starts_with(extent.as_bytes()),
        _ => false,
    };
    if !lines(text).any(|line| line == create_type) {
        Some(CREATE_TYPE)
    } else if !is_only {
        Some(EXTENT_SIZE)
    } else {
        tables.broken()
    }
}

/// Reports whether the header in a footer has the fields of the header at the start of the file, except for the place
/// of the directory.
fn is_copy_of_header(file: &Bytes<'_>, footer: u64) -> bool {
    let mut copied = sparse_header::FIELDS.iter().filter(|it| **it != sparse_header::GD_OFFSET);
    copied.all(|field| file.little_field(0, *field) == file.little_field(footer, *field))
}

/// The line of a descriptor that states an extent.
struct StatedExtent<'t> {
    sectors: u64,
    kind: &'t [u8],
    name: &'t [u8],
    /// The first sector of flat data.
    offset: Option<u64>,
}

impl<'t> StatedExtent<'t> {
    /// Parses the fields behind the access of an extent.
    fn parse(line: &'t [u8]) -> Option<Self> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        let mut quoted = line.split(|byte| *byte == b'"');
        let (fields, name, rest) = (quoted.next()?, quoted.next()?, quoted.next()?);
        let mut fields = fields.split(|byte| *byte == b' ');
        let (sectors, kind) = (number(fields.next()?)?, fields.next()?);
        let offset = match rest.strip_prefix(b" ") {
            Some(offset) => Some(number(offset)?),
            None => None,
        };
        Some(Self { sectors, kind, name, offset })
    }

    /// Returns the first rule that the file of the extent breaks.
    fn broken_in(&self, file: &Image) -> Option<BrokenRule> {
        let bytes = Bytes::new(file);
        let has_sectors = |sectors: u64| bytes.length() == sectors.saturating_mul(SECTOR_BYTES);
        let tables = match (self.kind, self.offset) {
            (b"FLAT", Some(offset)) => {
                let sectors = offset.saturating_add(self.sectors);
                return (!has_sectors(sectors)).then_some(EXTENT_SIZE);
            }
            (b"VMFS", None) => return (!has_sectors(self.sectors)).then_some(EXTENT_SIZE),
            (b"SPARSE", None) if bytes.array(0) == SPARSE_MAGIC => GrainTables::of_sparse(bytes, 0),
            (b"VMFSSPARSE", None) if bytes.array(0) == COWD_MAGIC => GrainTables::of_cowd(bytes),
            (b"SESPARSE", None)
                if bytes.little_field(0, const_header::MAGIC) == SE_SPARSE_MAGIC =>
            {
                GrainTables::of_sesparse(bytes)
            }
            _ => return Some(EXTENT_KIND),
        };
        match tables.capacity == self.sectors {
            true => tables.broken(),
            false => Some(EXTENT_SIZE),
        }
    }
}

/// A directory with its tables. Places and sizes are in sectors.
struct GrainTables<'i> {
    file: Bytes<'i>,
    /// The size of the disk.
    capacity: u64,
    directory: u64,
    directory_entries: u64,
    /// The directory's copy.
    redundant: Option<u64>,
    table_entries: u64,
    grain: u64,
    /// The part of the file before the grains.
    overhead: u64,
    is_compressed: bool,
    has_markers: bool,
    has_zeros: bool,
    /// The place of the first table, if entries have types and count tables.
    typed_from: Option<u64>,
}

impl<'i> GrainTables<'i> {
    fn of_sparse(file: Bytes<'i>, header: u64) -> Self {
        use sparse_header as field;
        let number = |field| file.little_field(header, field);
        let has = |flag: u32| number(field::FLAGS) & u64::from(flag) != 0;
        let (capacity, grain) = (number(field::CAPACITY), number(field::GRAIN_SIZE));
        let table_entries = number(field::GTES_PER_GT);
        let is_compressed = number(field::COMPRESS_ALGORITHM) == u64::from(COMPRESS_DEFLATE);
        Self {
            file,
            capacity,
            directory: number(field::GD_OFFSET),
            directory_entries: capacity.div_ceil(table_entries.saturating_mul(grain).max(1)),
            redundant: has(FLAG_REDUNDANT_DIRECTORY).then(|| number(field::RGD_OFFSET)),
            table_entries,
            grain,
            overhead: number(field::OVERHEAD),
            is_compressed,
            has_markers: is_compressed && has(FLAG_MARKERS),
            has_zeros: has(FLAG_ZERO_GRAINS),
            typed_from: None,
        }
    }

    fn of_cowd(file: Bytes<'i>) -> Self {
        use cowd_header as field;
        let number = |field| file.little_field(0, field);
        Self {
            capacity: number(field::CAPACITY),
            directory: number(field::GD_OFFSET),
            directory_entries: number(field::GD_ENTRIES),
            grain: number(field::GRAIN_SIZE),
            ..Self::of_esx(file)
        }
    }

    fn of_sesparse(file: Bytes<'i>) -> Self {
        use const_header as field;
        let number = |field| file.little_field(0, field);
        let directory_bytes = number(field::GRAIN_DIR_SIZE).saturating_mul(SECTOR_BYTES);
        Self {
            capacity: number(field::CAPACITY),
            directory: number(field::GRAIN_DIR_OFFSET),
            directory_entries: directory_bytes / SE_SPARSE_ENTRY_BYTES,
            grain: number(field::GRAIN_SIZE),
            typed_from: Some(number(field::GRAIN_TABLES_OFFSET)),
            ..Self::of_esx(file)
        }
    }

    /// Returns the facts that both kinds of extents share that ESX writes.
    fn of_esx(file: Bytes<'i>) -> Self {
        Self {
            file,
            capacity: 0,
            directory: 0,
            directory_entries: 0,
            redundant: None,
            table_entries: ESX_TABLE_ENTRIES.into(),
            grain: 0,
            overhead: 0,
            is_compressed: false,
            has_markers: false,
            has_zeros: false,
            typed_from: None,
        }
    }

    /// Returns a rule that the directory breaks, or a table.
    fn broken(&self) -> Option<BrokenRule> {
        let mut broken = None;
        let directory = (offset_of(self.directory), self.directory_entries);
        if let Some(first) = self.typed_from {
            self.file.each_entry(directory, [0; 8], |_, entry| {
                broken = broken.or_else(|| self.broken_typed(first, u64::from_le_bytes(entry)));
            });
            return broken;
        }
        let mut named = 0u64;
        self.file.each_entry(directory, [0; 4], |index, entry| {
            named += 1;
            broken = broken.or_else(|| self.broken_table(index, u32::from_le_bytes(entry)));
        });
        if broken.is_some() {
            return broken;
        }
        let redundant = offset_of(self.redundant?);
        let mut copied = 0u64;
        self.file.each_entry((redundant, self.directory_entries), [0; 4], |_, _| copied += 1);
        (copied != named).then_some(DIRECTORY_COPY)
    }

    /// Returns a rule that the table at `table` breaks, which the entry `index` of the directory names.
    fn broken_table(&self, index: u64, table: u32) -> Option<BrokenRule> {
        let number = |at| u64::from(u32::from_le_bytes(self.file.array(at)));
        let table = offset_of(table.into());
        if let Some(redundant) = self.redundant {
            match number(offset_of(redundant).saturating_add(index * 4)) {
                0 => return Some(DIRECTORY_COPY),
                copy if !self.file.is_copy::<4>(table, offset_of(copy), self.table_entries) => {
                    return Some(TABLE_COPY);
                }
                _ => {}
            }
        }
        let (mut broken, first) = (None, index * self.table_entries);
        self.file.each_entry((table, self.table_entries), [0; 4], |at, entry| {
            let sector = u32::from_le_bytes(entry);
            if !self.has_zeros || sector != ZERO_GRAIN {
                broken = broken.or_else(|| self.broken_grain(first + at, sector.into()));
            }
        });
        broken
    }

    /// Returns the rule that the grain `index` breaks, which begins at `sector`.
    fn broken_grain(&self, index: u64, sector: u64) -> Option<BrokenRule> {
        let marked = || self.file.little_field(offset_of(sector), grain_marker::LBA);
        if sector < self.overhead {
            Some(OVERHEAD)
        } else {
            (self.has_markers && marked() != index.saturating_mul(self.grain)).then_some(MARKER)
        }
    }

    /// Returns the rule that an entry of a directory breaks, or an entry of the table that it names. The four highest
    /// bits of each are its type.
    fn broken_typed(&self, first: u64, entry: u64) -> Option<BrokenRule> {
        if entry >> 32 != 1 << 28 {
            return Some(SE_SPARSE_TABLE);
        }
        let table = (entry & 0xffff_ffff).saturating_mul(SE_SPARSE_TABLE_SECTORS);
        let table = offset_of(first.saturating_add(table));
        let mut broken = None;
        self.file.each_entry((table, self.table_entries), [0; 8], |_, entry| {
            // Unmapped, zeros, stored.
            if !matches!(u64::from_le_bytes(entry) >> 60, 1..=3) {
                broken = Some(SE_SPARSE_GRAIN);
            }
        });
        broken
    }
}

/// Returns the offset of a sector.
fn offset_of(sector: u64) -> u64 {
    sector.saturating_mul(SECTOR_BYTES)
}
