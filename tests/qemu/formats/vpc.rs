//! VHD images.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;

use super::commands::WITH_RULE;
use super::comparison::{self, Kind, TestedFormat, one_of};

pub struct Vpc;

impl TestedFormat for Vpc {
    const FORMAT: ImageFormat = ImageFormat::Vpc;
    const VALID: u64 = 520;
    const DAMAGED: u64 = 480;
    const MADE_BY_QEMU: u64 = 160;
    const LARGE: u64 = 12;
    const LARGE_PROGRAMS: u64 = 60;
    const PROGRAMS: (u64, Base) = (520, Base::of(ImageFormat::Vpc));
    const PAIRS: usize = 1200;
    const ATTACKED: (u64, &[Part]) = (160, &[Part::Header, Part::Table, Part::BlockFront]);
    const BOUNDS: &[(&str, u64)] = &[
        ("valid images", 500),
        (WITH_RULE, 270),
        ("damaged images that open", 100),
        ("damaged images that are refused", 100),
        ("images that qemu makes", 150),
        ("images of programs", 500),
        ("images of large disks", 12),
        ("maps of the command", 40),
        ("parts of disks", 300),
        ("parts of disks that cannot be read", 0),
        ("attacked images that open", 70),
        ("attacked images that are refused", 35),
        ("attacks on header: open", 25),
        ("attacks on header: refused", 25),
        ("attacks on block table: open", 25),
        ("attacks on block table: refused", 25),
        ("attacks on front of a block: open", 25),
        ("attacks on front of a block: refused", 15),
        ("records of info", 700),
        ("images that info refuses", 100),
        ("checks that exit with 63", 700),
        ("checks that exit with 1", 100),
        ("extents", 4000),
        ("windows", 1200),
        ("whole disks", 600),
    ];

    fn write(path: &Path, kind: Kind, entropy: &mut Entropy) -> Checked<()> {
        match kind {
            Kind::MadeByQemu => return make(path, entropy),
            Kind::Large => return make_large(path, entropy),
            _ => {}
        }
        let mut written = write(entropy);
        if kind == Kind::Damaged {
            (0..=entropy.below(2)).for_each(|_| damage(&mut written, entropy));
        }
        fs::write(path, &written.bytes).described()
    }
}

/// Makes an image of a disk at the largest geometry, at the largest size, or between them.
fn make_large(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let gib = one_of(entropy, [127, 128, 200, 2040]);
    let size = (gib << 30) - 512 * entropy.below(3);
    let subformat = one_of(entropy, ["dynamic", "dynamic", "fixed"]);
    let force = one_of(entropy, ["on", "off"]);
    let options = format!("subformat={subformat},force_size={force}");
    comparison::create(path, ImageFormat::Vpc, &options, size, &[])?;
    comparison::change(path, ImageFormat::Vpc, size, entropy)
}

/// Makes an image with qemu-img, and changes it with qemu-io.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let bits = 1 + entropy.below(15);
    let size = 512 * (1 + entropy.below(1 << bits));
    let subformat = one_of(entropy, ["dynamic", "dynamic", "dynamic", "fixed"]);
    let force = one_of(entropy, ["on", "off"]);
    let options = format!("subformat={subformat},force_size={force}");
    comparison::create(path, ImageFormat::Vpc, &options, size, &[])?;
    comparison::change(path, ImageFormat::Vpc, size, entropy)
}

/// An image in memory, and the places that damage is aimed at.
pub struct Written {
    pub bytes: Vec<u8>,
    /// The offset of the dynamic header; `None` in a fixed disk.
    header_at: Option<usize>,
    /// The offset and the length of the block allocation table.
    table: (usize, usize),
}

/// The creators of footers: two whose geometry states the size, and others.
const CREATORS: [&[u8; 4]; 6] = [b"qemu", b"vpc ", b"qem2", b"win ", b"d2v ", b"tap\0"];
const FOOTER_BYTES: usize = 512;
const HEADER_BYTES: usize = 1024;

/// Writes a dynamic disk, or a fixed one once in eight times.
pub fn write(entropy: &mut Entropy) -> Written {
    let sectors = [0, 1, 7, 8, 100, 2048, 4099, 20_000][entropy.below(8) as usize];
    if entropy.below(8) == 0 {
        return fixed(entropy, sectors);
    }
    let block: u64 = 512 << [0, 1, 2, 3, 4, 7, 12][entropy.below(7) as usize];
    let block = if sectors > 4096 { block.max(4096) } else { block };
    let blocks = (sectors * 512).div_ceil(block);
    let spare = if entropy.below(3) == 0 { entropy.below(70) } else { 0 };
    let table_bytes = ((blocks + spare) * 4) as usize;
    let header_at = FOOTER_BYTES * (1 + entropy.below(3) as usize);
    let after_header = header_at + HEADER_BYTES;
    // The table may begin at any byte, and lie behind the blocks.
    let odd = if entropy.below(4) == 0 { entropy.below(600) as usize } else { 0 };
    let is_last = entropy.below(4) == 0;
    let mut next =
        (after_header + if is_last { 0 } else { odd + table_bytes }).next_multiple_of(512);
    let mut entries = vec![u32::MAX; (blocks + spare) as usize];
    let bitmap = (block / 4096).next_multiple_of(512) as usize;
    let mut bytes = vec![0; next];
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let scattered = entropy.below(2) == 0;
    for at in 0..order.len() {
        if scattered {
            order.swap(at, at + entropy.below((entries.len() - at) as u64) as usize);
        }
        let gone = entropy.below(3) == 0 || bytes.len() > 4 << 20;
        if gone {
            continue;
        }
        next += 512 * if entropy.below(5) == 0 { entropy.below(9) as usize } else { 0 };
        entries[order[at]] = (next / 512) as u32;
        bytes.resize(next + bitmap, 0xff);
        bytes.resize(next + bitmap + block as usize, order[at] as u8 | 1);
        next = bytes.len();
    }
    let table_at = if is_last { next + odd } else { after_header + odd };
    bytes.resize(bytes.len().max(table_at + table_bytes).next_multiple_of(512), 0);
    for (entry, into) in entries.iter().zip(bytes[table_at..].chunks_exact_mut(4)) {
        into.copy_from_slice(&entry.to_be_bytes());
    }
    let header = &mut bytes[header_at..][..HEADER_BYTES];
    header[..8].copy_from_slice(b"cxsparse");
    header[8..16].fill(0xff);
    header[16..24].copy_from_slice(&(table_at as u64).to_be_bytes());
    header[24..28].copy_from_slice(&0x10000u32.to_be_bytes());
    header[28..32].copy_from_slice(&(entries.len() as u32).to_be_bytes());
    header[32..36].copy_from_slice(&(block as u32).to_be_bytes());
    let footer = footer(entropy, sectors, 3, header_at as u64);
    bytes[..FOOTER_BYTES].copy_from_slice(&footer);
    if entropy.below(4) > 0 {
        bytes.extend(footer);
    }
    Written { bytes, header_at: Some(header_at), table: (table_at, table_bytes) }
}

fn fixed(entropy: &mut Entropy, sectors: u64) -> Written {
    // The length of the file plays no part in the size. A footer alone would be that of a dynamic disk.
    let stored = (sectors + entropy.below(3) * entropy.below(9)).max(1);
    let mut bytes = vec![7; (stored * 512) as usize];
    bytes.extend(footer(entropy, sectors, 2, u64::MAX));
    Written { bytes, header_at: None, table: (0, 0) }
}

/// Returns a footer whose geometry and size in bytes state the same disk, if a geometry can.
fn footer(
    entropy: &mut Entropy,
    sectors: u64,
    disk_type: u32,
    data_offset: u64,
) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[..8].copy_from_slice(b"conectix");
    footer[11] = 2;
    footer[12..16].copy_from_slice(&0x10000u32.to_be_bytes());
    footer[16..24].copy_from_slice(&data_offset.to_be_bytes());
    footer[28..32].copy_from_slice(CREATORS[entropy.below(6) as usize]);
    let size = sectors * 512 + entropy.below(2) * entropy.below(512);
    for at in [40, 48] {
        footer[at..at + 8].copy_from_slice(&size.to_be_bytes());
    }
    footer[56..58].copy_from_slice(&(sectors as u16).to_be_bytes());
    footer[58..60].fill(1);
    footer[60..64].copy_from_slice(&disk_type.to_be_bytes());
    seal(&mut footer);
    footer
}

/// Corrects the checksum of a footer.
fn seal(footer: &mut [u8]) {
    footer[64..68].fill(0);
    let sum = footer.iter().fold(0u32, |sum, byte| sum.wrapping_add((*byte).into()));
    footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
}

/// Changes a field, an entry, a byte or the length. Corrects the checksum of the footers, mostly.
pub fn damage(written: &mut Written, entropy: &mut Entropy) {
    let Written { bytes, header_at, table } = written;
    let last = bytes.len().saturating_sub(FOOTER_BYTES);
    let footer_at = if header_at.is_some() { 0 } else { last };
    let value =
        [0, 1, entropy.next_u64(), 1 << entropy.below(64), u64::MAX][entropy.below(5) as usize];
    match (entropy.below(6), *header_at) {
        (0, _) => bytes.truncate(entropy.below(1 + bytes.len() as u64) as usize),
        (1, Some(at)) => set(
            bytes,
            at + [0, 16, 24, 28, 32][entropy.below(5) as usize],
            value,
            4 + 4 * entropy.below(2) as usize,
        ),
        (2 | 3, Some(_)) if table.1 > 0 => {
            let entry = table.0 + entropy.below(table.1 as u64 / 4) as usize * 4;
            let near = entropy.below(bytes.len() as u64 / 512 + 4);
            set(bytes, entry, [value, near][entropy.below(2) as usize], 4);
        }
        (4, _) => {
            let at = entropy.below(1 + bytes.len() as u64) as usize;
            set(bytes, at, value, 1);
        }
        _ => {
            let fields = [(0, 8), (16, 8), (28, 4), (48, 8), (56, 4), (60, 4), (80, 4)];
            let (at, length) = fields[entropy.below(7) as usize];
            set(bytes, footer_at + at, value, length);
            if entropy.below(4) > 0 && bytes.len() >= FOOTER_BYTES {
                seal(&mut bytes[footer_at..][..FOOTER_BYTES]);
            }
        }
    }
}

/// Writes the low bytes of a value, big-endian, as far as the file reaches.
fn set(bytes: &mut [u8], at: usize, value: u64, length: usize) {
    for (into, from) in bytes.iter_mut().skip(at).zip(&value.to_be_bytes()[8 - length..]) {
        *into = *from;
    }
}
