//! Writes VMDK images of every shape that the format allows: the image itself, and the files that it names.

use std::fmt::Write as _;

use test_support::prelude::*;

use super::comparison::one_of;

/// Writes a disk that begins in the file `name`, perhaps with a parent below it. Returns the files, the image first.
pub fn write(entropy: &mut Entropy, name: &str) -> Vec<WrittenFile> {
    if !entropy.one_in(5) {
        return image(entropy, name, None);
    }
    let parent = format!("{name}-parent");
    let mut files = image(entropy, name, Some(&parent));
    files.extend(image(entropy, &parent, None));
    files
}

/// Writes an image and its extents.
fn image(entropy: &mut Entropy, name: &str, parent: Option<&str>) -> Vec<WrittenFile> {
    let mut head = format!("# Disk DescriptorFile\nversion={}\n", 1 + entropy.below(3));
    // A parent with another identity can be mapped, and not be read.
    let wanted = one_of(entropy, [0xfe, 0xfe, 0xfe, 0xfe, 0xfd]);
    let (content, before) = if parent.is_some() { (7, wanted) } else { (0xfe, u32::MAX) };
    let _ = write!(head, "CID={content:08x}\nparentCID={before:x}\n");
    let hint = parent.map(|parent| format!("parentFileNameHint=\"{parent}\"\n"));
    let hint = hint.unwrap_or_default();
    match entropy.below(12) {
        0..4 => {
            let shape = shape(entropy, true, false);
            let mut file = sparse(entropy, &shape);
            file.set_text(512, &format!("{head}createType=\"monolithicSparse\"\n{hint}"));
            file.name = name.to_owned();
            vec![file]
        }
        4 | 5 => {
            let mut file = cowd(entropy, false);
            // The sectors behind the header may hold a table: this one has no space for the descriptor.
            file.set_text(512, &format!("{head}{hint}"));
            file.name = name.to_owned();
            vec![file]
        }
        kind => {
            let (lines, extents) =
                extents(entropy, name, parent.is_some() || name.ends_with("-parent"));
            let types =
                ["vmfs", "twoGbMaxExtentSparse", "monolithicFlat", "seSparse", "vmfsSparse"];
            let create_type = one_of(entropy, types);
            let text = format!("{head}createType=\"{create_type}\"\n{hint}{lines}");
            let mut file = WrittenFile { name: name.to_owned(), ..WrittenFile::default() };
            if kind == 6 {
                // The descriptor of a sparse extent without a disk.
                file.set_text(512, &text);
                file.bytes[..4].copy_from_slice(b"KDMV");
                file.bytes[28] = 1;
            } else {
                file.set_text(0, &text);
                let length = text.len() + [0, entropy.below(4) as usize][kind as usize & 1];
                file.bytes.resize(length, 0);
            }
            std::iter::once(file).chain(extents).collect()
        }
    }
}

/// Writes up to four extents. Returns their lines, too, with lines that have no effect between them.
fn extents(entropy: &mut Entropy, image: &str, is_in_chain: bool) -> (String, Vec<WrittenFile>) {
    let (mut lines, mut files) = (String::new(), Vec::<WrittenFile>::new());
    let mut last = String::new();
    for index in 0..=entropy.below(4) {
        let name =
            one_of(entropy, [format!("{image}-s{index:03}"), format!("{image} {index}.vmdk")]);
        let line = match entropy.below(9) {
            0 if !last.is_empty() => last.clone(),
            0..3 => {
                let shape = shape(entropy, false, is_in_chain);
                files.push(sparse(entropy, &shape));
                format!("RW {} SPARSE \"{name}\"", 1 + entropy.below(99))
            }
            3 => {
                files.push(cowd(entropy, is_in_chain));
                format!("RW {} VMFSSPARSE \"{name}\"", 1 + entropy.below(99))
            }
            4..6 => {
                files.push(sesparse(entropy));
                format!("RW 1 SESPARSE \"{name}\"")
            }
            _ => {
                files.push(flat(entropy));
                let sectors = one_of(entropy, [1, 8, 100, 777]);
                match entropy.below(3) {
                    0 => format!("RW {sectors} VMFS \"{name}\""),
                    _ => format!("RW {sectors} FLAT \"{name}\" {}", 8 * entropy.below(5)),
                }
            }
        };
        if line != last {
            files.last_mut().unwrap().name = name;
        }
        let between = [
            "",
            "",
            "",
            "# a comment\n",
            "RW 8 ZERO\n",
            "RDONLY 8 FLAT \"x\" 0\n",
            "RW 8 OTHER \"x\"\n",
            "RW 0 VMFS \"x\"\n",
            "\n",
            " ",
            "\r\n",
        ];
        lines += one_of(entropy, between);
        lines += &line;
        lines += one_of(entropy, ["\n", "\n", "\r\n", " \n"]);
        last = line;
    }
    // The second part continues the first, or lies beside it in a file of another name.
    if entropy.one_in(4)
        && let Some(file) = files.last().map(|file| file.name.clone())
    {
        let name = one_of(entropy, [file.clone(), format!("./{file}")]);
        let _ = write!(lines, "RW 8 FLAT \"{file}\" 0\nRW 8 FLAT \"{name}\" 8\n");
    }
    lines += one_of(entropy, ["", "\n# The Disk Data Base\n#DDB\nddb.adapterType = \"ide\"\n"]);
    (lines, files)
}

/// Writes a file of guest data.
fn flat(entropy: &mut Entropy) -> WrittenFile {
    let sectors = one_of(entropy, [0, 1, 8, 130, 800]);
    let length = sectors * 512 + entropy.below(2) as usize * 100;
    let seed = entropy.next_u64() as u8;
    let bytes = (0..length).map(|at| seed ^ (at / 61) as u8 | 1).collect();
    WrittenFile { bytes, ..WrittenFile::default() }
}

/// A file in memory, and the places that damage is aimed at.
#[derive(Default)]
pub struct WrittenFile {
    pub name: String,
    pub bytes: Vec<u8>,
    pub fields: Vec<Field>,
    /// The offset and the length of the descriptor, if the file has one.
    pub text: (usize, usize),
}

/// A number in a file.
pub struct Field {
    pub at: usize,
    pub width: usize,
    pub kind: FieldKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number that may have any value.
    Any,
    /// A number that decides how long a walk takes.
    Size,
    /// An entry of a table.
    Entry,
    /// A number that must be the same in every image.
    Fixed,
}

/// The shape of a sparse extent.
#[derive(Clone)]
pub struct Shape {
    pub sectors: u64,
    pub grain: u64,
    pub table_entries: u64,
    pub flags: u32,
    pub is_compressed: bool,
    pub has_footer: bool,
    /// Entries may name anything, so that reads can fail.
    pub is_odd: bool,
}

const SECTOR: usize = 512;
/// The length at which a file gets no more grains.
const ENOUGH_BYTES: usize = 300 << 10;
const FLAG_ZEROS: u32 = 4;
const FLAG_MARKERS: u32 = 1 << 17;

impl WrittenFile {
    fn field(&mut self, at: usize, width: usize, value: u64, kind: FieldKind) {
        self.grow(at + width);
        self.bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        self.fields.push(Field { at, width, kind });
    }

    pub fn grow(&mut self, length: usize) {
        let length = length.next_multiple_of(SECTOR).max(self.bytes.len());
        self.bytes.resize(length, 0);
    }

    /// Writes a descriptor at `at`.
    fn set_text(&mut self, at: usize, text: &str) {
        self.grow(at + text.len());
        self.bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        self.text = (at, text.len());
    }

    fn end_sector(&self) -> u64 {
        (self.bytes.len() / SECTOR) as u64
    }

    /// Adds the content of a grain at the end, and returns its sector.
    fn grain(&mut self, shape: &Shape, length: u64, entropy: &mut Entropy) -> u64 {
        if entropy.one_in(6) {
            self.bytes.resize(self.bytes.len() + SECTOR * entropy.below(9) as usize, 0x11);
        }
        let sector = self.end_sector();
        let seed = entropy.next_u64() as u8;
        let content = (0..length).map(|at| seed ^ (at / 97) as u8).collect::<Vec<u8>>();
        if !shape.is_compressed {
            self.bytes.extend(content);
        } else {
            let level = entropy.below(7) as u8;
            let has_marker = shape.flags & FLAG_MARKERS != 0;
            // Without a marker, QEMU reads no more than a grain.
            let level = if has_marker { level } else { level.max(6) };
            let stream = miniz_oxide::deflate::compress_to_vec_zlib(&content, level);
            if has_marker {
                self.bytes.extend(entropy.below(99).to_le_bytes());
                self.bytes.extend((stream.len() as u32).to_le_bytes());
            }
            self.bytes.extend(stream);
        }
        self.grow(self.bytes.len());
        sector
    }

    /// Adds a table of entries of `width` bytes at the end, and returns its sector.
    fn table(&mut self, entries: &[u64], width: usize) -> u64 {
        let sector = self.end_sector();
        let at = self.bytes.len();
        self.grow(at + entries.len() * width);
        for (index, entry) in entries.iter().enumerate() {
            let at = at + index * width;
            self.bytes[at..at + width].copy_from_slice(&entry.to_le_bytes()[..width]);
            // Entries behind the disk are zeros, and have no effect.
            if *entry != 0 {
                self.fields.push(Field { at, width, kind: FieldKind::Entry });
            }
        }
        sector
    }
}

/// Chooses the shape of a sparse extent.
pub fn shape(entropy: &mut Entropy, is_bare: bool, is_whole: bool) -> Shape {
    let is_compressed = entropy.one_in(3);
    let grain = match is_compressed {
        true => one_of(entropy, [8, 16, 128]),
        false => one_of(entropy, [1, 3, 7, 8, 8, 16, 128]),
    };
    let sectors = one_of(entropy, [1, 7, 8, 100, 700, 1024, 2050]);
    let is_odd = entropy.one_in(4);
    // An extent before others is whole, mostly: the last grain covers the next extent otherwise. In a chain, this
    // depends on the windows in which QEMU asks the parent, and our walker asks it in longer ones.
    let sectors: u64 = match is_bare || is_odd && !is_whole {
        true => sectors,
        false => sectors.next_multiple_of(grain),
    };
    Shape {
        sectors: if is_odd && entropy.one_in(8) { 0 } else { sectors },
        grain,
        table_entries: one_of(entropy, [1, 3, 16, 511, 512, 512]),
        flags: one_of(entropy, [1, 3, 5, 7, 0])
            | if is_compressed { 1 << 16 } else { 0 }
            | if is_compressed && !entropy.one_in(3) { FLAG_MARKERS } else { 0 },
        is_compressed,
        has_footer: is_bare && entropy.one_in(4),
        is_odd,
    }
}

/// Returns the entries of a grain table that maps the grains from `first` on.
fn entries(file: &mut WrittenFile, shape: &Shape, first: u64, entropy: &mut Entropy) -> Vec<u64> {
    let grains = shape.sectors.div_ceil(shape.grain);
    let (mut last, is_dense) = (0, entropy.one_in(3));
    let count = shape.table_entries.min(grains - first);
    let mut entries = Vec::new();
    for index in first..first + count {
        let cut = (shape.sectors - index * shape.grain).min(shape.grain) * 512;
        // The last grain of the disk may end with the disk.
        let length = if entropy.one_in(2) { cut } else { shape.grain * 512 };
        let is_full = file.bytes.len() > ENOUGH_BYTES;
        entries.push(match entropy.below(12) {
            0 if shape.flags & FLAG_ZEROS != 0 => 1,
            1 if shape.is_odd => one_of(entropy, [1, 2, u32::MAX.into(), file.end_sector() + 9]),
            2 => last,
            3..6 if !is_dense => 0,
            _ if is_full => 0,
            _ => file.grain(shape, length, entropy),
        });
        last = entries.last().copied().unwrap_or(0);
    }
    if !shape.is_compressed && entropy.one_in(3) {
        entries.reverse();
    }
    entries.resize(shape.table_entries as usize, if shape.is_odd { 3 } else { 0 });
    entries
}

/// Writes a sparse extent with space for a descriptor.
pub fn sparse(entropy: &mut Entropy, shape: &Shape) -> WrittenFile {
    let mut file = WrittenFile::default();
    file.grow(SECTOR * one_of(entropy, [3, 4, 22]));
    let mut directory = Vec::new();
    let span = shape.grain * shape.table_entries;
    for index in 0..shape.sectors.div_ceil(span) {
        let table = match entropy.below(10) {
            0 => 0,
            1 if shape.is_odd => file.end_sector() + 100_000,
            2 if shape.is_odd => directory.last().copied().unwrap_or(0),
            _ => {
                let entries = entries(&mut file, shape, index * shape.table_entries, entropy);
                file.table(&entries, 4)
            }
        };
        directory.push(table);
    }
    let directory = file.table(&directory, 4);
    let end = file.end_sector();
    if shape.has_footer {
        header(&mut file, 0, shape, (end, u64::MAX), entropy);
        let at = file.bytes.len();
        file.field(at, 8, entropy.below(2), FieldKind::Any);
        file.field(at + 8, 4, 0, FieldKind::Fixed);
        file.field(at + 12, 4, 3, FieldKind::Fixed);
        header(&mut file, at + 512, shape, (end, directory), entropy);
        file.field(at + 1024, 8, 0, FieldKind::Fixed);
        file.field(at + 1032, 4, 0, FieldKind::Fixed);
        file.field(at + 1036, 4, 0, FieldKind::Fixed);
    } else {
        header(&mut file, 0, shape, (end, directory), entropy);
    }
    file
}

fn header(
    file: &mut WrittenFile,
    at: usize,
    shape: &Shape,
    (overhead, directory): (u64, u64),
    entropy: &mut Entropy,
) {
    use FieldKind::{Any, Fixed, Size};
    file.grow(at + SECTOR);
    file.bytes[at..at + 4].copy_from_slice(b"KDMV");
    file.field(at + 4, 4, entropy.below(4), Fixed);
    file.field(at + 8, 4, shape.flags.into(), Any);
    file.field(at + 12, 8, shape.sectors, Size);
    file.field(at + 20, 8, shape.grain, Size);
    file.field(at + 28, 8, if shape.sectors == 0 { 0 } else { entropy.below(3) }, Any);
    file.field(at + 36, 8, entropy.below(30), Any);
    file.field(at + 44, 4, shape.table_entries, Fixed);
    file.field(at + 48, 8, entropy.below(1000), Any);
    file.field(at + 56, 8, directory, Fixed);
    file.field(at + 64, 8, one_of(entropy, [0, 2, overhead]), Any);
    file.field(at + 72, 1, entropy.below(2), Any);
    file.bytes[at + 73..at + 77].copy_from_slice(b"\n \r\n");
    file.field(at + 77, 2, if shape.is_compressed { 1 } else { 2 * entropy.below(2) }, Any);
}

/// Writes a sparse extent in the format of ESX. The first 22 sectors have space for a descriptor.
pub fn cowd(entropy: &mut Entropy, is_whole: bool) -> WrittenFile {
    let mut shape = shape(entropy, false, is_whole);
    (shape.flags, shape.is_compressed, shape.table_entries) = (0, false, 4096);
    let mut file = WrittenFile::default();
    file.grow(SECTOR * 4);
    let mut directory = Vec::new();
    for index in 0..shape.sectors.div_ceil(shape.grain * 4096) {
        let entries = entries(&mut file, &shape, index * 4096, entropy);
        directory.push(file.table(&entries, 4));
    }
    // QEMU meets a directory that is too short only where it needs the entry.
    let needed = directory.len() as u64;
    let count = if shape.is_odd && entropy.one_in(3) { 0 } else { needed + entropy.below(3) };
    let directory = file.table(&directory, 4);
    file.bytes[..4].copy_from_slice(b"COWD");
    let kinds = [FieldKind::Any, FieldKind::Any, FieldKind::Size, FieldKind::Size];
    let kinds = kinds.into_iter().chain([FieldKind::Any, FieldKind::Any, FieldKind::Any]);
    let values = [1, 3, shape.sectors, shape.grain, directory, count, file.end_sector()];
    for (index, (value, kind)) in values.into_iter().zip(kinds).enumerate() {
        file.field(4 + index * 4, 4, value, kind);
    }
    file
}

/// Writes an seSparse extent.
pub fn sesparse(entropy: &mut Entropy) -> WrittenFile {
    let sectors = one_of(entropy, [8, 800, 32_768, 40_000]);
    let mut file = WrittenFile::default();
    file.grow(SECTOR * 4);
    let tables = file.end_sector();
    let mut directory: Vec<u64> = Vec::new();
    let grains = (u64::div_ceil(sectors, 8), tables + 2 * 64);
    for table in 0..grains.0.div_ceil(4096) {
        let count = (grains.0 - table * 4096).min(4096);
        let entries: Vec<u64> = (0..count).map(|_| sesparse_entry(entropy)).collect();
        file.table(&entries, 8);
        directory.push(one_of(entropy, [0, 0x1000 << 48 | table, 0x1000 << 48 | table]));
    }
    file.bytes.resize(grains.1 as usize * SECTOR, 0);
    for grain in 0..40u8 {
        file.bytes.resize(file.bytes.len() + 8 * SECTOR, grain + 1);
    }
    let directory_at = file.table(&directory, 8);
    let places = [1, 1, 2, 1, 3, 1, directory_at, 1, tables, 128, 0, 0, 0, 0, grains.1, 320];
    let values = [0xcafe_babe, 0x2_0000_0001, sectors, 8, 64, 0, 0, 0, 0, 0];
    for (index, value) in values.into_iter().chain(places).enumerate() {
        let kind = match index {
            0..2 | 3..10 => FieldKind::Fixed,
            2 | 17 => FieldKind::Size,
            _ => FieldKind::Any,
        };
        file.field(index * 8, 8, value, kind);
    }
    for (index, value) in
        [0xcafe_cafe, entropy.below(9), entropy.below(9), 0].into_iter().enumerate()
    {
        file.field(SECTOR + index * 8, 8, value, FieldKind::Fixed);
    }
    file
}

fn sesparse_entry(entropy: &mut Entropy) -> u64 {
    let index = entropy.below(40);
    match entropy.below(8) {
        0..3 => 0,
        3 => 0x1000 << 48 | entropy.below(9),
        4 => 0x2000 << 48,
        _ => 0x3000 << 48 | (index & 0xfff) << 48 | index >> 12,
    }
}
