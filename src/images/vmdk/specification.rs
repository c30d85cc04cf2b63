//! The rules that only the specification demands of a VMDK image, or the meaning of its parts: copies are the same, the
//! descriptor fits the extents and the parent, and the entries of seSparse tables have a known type. QEMU opens images
//! that break them. Not among the rules: markers before tables and directories, which no reader sees that follows the
//! directory; of a descriptor in a file of its own, the type of the disk.

use smallvec::SmallVec;

use crate::formats::vmdk::constants::{
    COWD_MAGIC, EMBEDDED_DESCRIPTOR_AT, SE_SPARSE_MAGIC, SE_SPARSE_TABLE_SECTORS, SECTOR_BYTES,
    SPARSE_MAGIC, const_header, grain_marker, sparse_header,
};
use crate::images::damage::rules::{BrokenRule, Bytes, LastHole};
use crate::images::files::LayerFiles;

use super::grain_tables::{GrainTables, offset_of};
use super::rules::{broken_front, header_of};

const CONTENT: BrokenRule = "VMDK CID of no content";
const PARENT_CONTENT: BrokenRule = "VMDK parentCID of another content";
const PARENT_HINT: BrokenRule = "VMDK parentFileNameHint of another file";
const FOOTER_COPY: BrokenRule = "VMDK footer with other fields";
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

/// The bytes of a descriptor that are read, in an image and in a file of its own: the build writes no longer text.
const EMBEDDED_TEXT_BYTES: usize = 1024;
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
    let is_alone = files.extents.all().is_empty();
    let image = Bytes::new(&files.image);
    let mut header = 0;
    if is_alone {
        if image.array(0) == COWD_MAGIC {
            return GrainTables::of_cowd(image).broken();
        }
        header = header_of(&files.image)?;
        if header > 0 && !is_copy_of_header(&image, header) {
            return Some(FOOTER_COPY);
        }
        let is_compressed = GrainTables::of_sparse(image, header).is_compressed;
        let create_type = if is_compressed { "streamOptimized" } else { "monolithicSparse" };
        if value(&text, b"createType=") != Some(format!("\"{create_type}\"").as_bytes()) {
            return Some(CREATE_TYPE);
        }
    }
    let own = is_alone.then_some((files.name.as_str(), &files.image));
    let mut named = own.into_iter().chain(files.named_extents());
    for line in lines(&text).filter_map(|line| line.strip_prefix(b"RW ")) {
        let Some(line) = StatedExtent::parse(line) else { return Some(EXTENT_TEXT) };
        match named.next() {
            Some((name, file)) if name.as_bytes() == line.name => {
                if let Some(broken) = line.broken_in(Bytes::new(file), header) {
                    return Some(broken);
                }
            }
            _ => return Some(EXTENT_NAME),
        }
    }
    named.next().map(|_| EXTENT_NAME)
}

/// Returns the first bytes of the descriptor of an image.
fn descriptor_of(files: &LayerFiles) -> SmallVec<[u8; EMBEDDED_TEXT_BYTES]> {
    let (start, length) = match files.extents.all() {
        [] => (EMBEDDED_DESCRIPTOR_AT, EMBEDDED_TEXT_BYTES),
        _ => (0, TEXT_BYTES),
    };
    let mut text = SmallVec::from_elem(0, length);
    Bytes::new(&files.image).fill(start, &mut text);
    text
}

/// Returns the lines of a text that ends at the first zero byte.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    let mut rest = text.get(..end);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = memchr::memchr(b'\n', text) else { return rest.take() };
        rest = text.get(end + 1..);
        text.get(..end)
    })
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

    /// Returns the first rule that the file of the extent breaks, whose header that counts lies at `header`.
    fn broken_in(&self, bytes: Bytes<'_>, header: u64) -> Option<BrokenRule> {
        let has_sectors = |sectors: u64| bytes.length() == sectors.saturating_mul(SECTOR_BYTES);
        let tables = match (self.kind, self.offset) {
            (b"FLAT", Some(offset)) => {
                let sectors = offset.saturating_add(self.sectors);
                return (!has_sectors(sectors)).then_some(EXTENT_SIZE);
            }
            (b"VMFS", None) => return (!has_sectors(self.sectors)).then_some(EXTENT_SIZE),
            (b"SPARSE", None) if bytes.array(0) == SPARSE_MAGIC => {
                GrainTables::of_sparse(bytes, header)
            }
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

impl GrainTables<'_> {
    /// Returns a rule that the directory breaks, or a table.
    fn broken(&self) -> Option<BrokenRule> {
        let (mut broken, mut named) = (None, 0u64);
        let mut holes = Default::default();
        self.each_table(|index, entry| {
            named += 1;
            broken = broken.or_else(|| match self.typed_from {
                Some(first) => self.broken_typed(first, entry),
                None => self.broken_table(index, offset_of(entry), &mut holes),
            });
        });
        if broken.is_some() {
            return broken;
        }
        let redundant = (offset_of(self.redundant?), self.directory_entries);
        let mut copied = 0u64;
        self.file.each_entry(redundant, [0; 4], |_, _| copied += 1);
        (copied != named).then_some(DIRECTORY_COPY)
    }

    /// Returns a rule that the table at `table` breaks, which the entry `index` of the directory names. `holes` are
    /// those of the tables and of their copies.
    fn broken_table(
        &self,
        index: u64,
        table: u64,
        holes: &mut [LastHole; 2],
    ) -> Option<BrokenRule> {
        let (copy, length) = (self.copy_of_table(index), self.table_entries.saturating_mul(4));
        if copy == Some(0) {
            return Some(DIRECTORY_COPY);
        }
        let [of_tables, of_copies] = holes;
        let is_hole = |hole: &mut LastHole, start: u64| {
            hole.holds(&self.file, start..start.saturating_add(length))
        };
        if is_hole(of_tables, table) && copy.is_none_or(|copy| is_hole(of_copies, copy)) {
            return None;
        }
        if copy.is_some_and(|copy| !self.file.is_copy(table, copy, length)) {
            return Some(TABLE_COPY);
        }
        let mut broken = None;
        self.each_grain((index, table), |index, sector| {
            let marked = || self.file.little_field(offset_of(sector), grain_marker::LBA);
            if sector < self.overhead {
                broken = broken.or(Some(OVERHEAD));
            } else if self.has_markers && marked() != index.saturating_mul(self.grain) {
                broken = broken.or(Some(MARKER));
            } else if self.is_compressed {
                let grain = offset_of(self.grain);
                let front = broken_front(&self.file, offset_of(sector), grain, self.has_markers);
                broken = broken.or(front);
            }
        });
        broken
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
