//! VMDK images.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;

use super::commands::{DIVISION, LENGTH, PARENT, WITH_RULE};
use super::comparison::{self, Kind, TestedFormat, one_of};
use super::vmdk_writer;
use super::vmdk_writer::{Field, FieldKind, WrittenFile};
use crate::images::info::NO_EXTENT;

pub struct Vmdk;

impl TestedFormat for Vmdk {
    const FORMAT: ImageFormat = ImageFormat::Vmdk;
    const VALID: u64 = 520;
    const DAMAGED: u64 = 540;
    const MADE_BY_QEMU: u64 = 160;
    const LARGE: u64 = 14;
    const LARGE_PROGRAMS: u64 = 60;
    const PROGRAMS: (u64, Base) = (520, Base::of(ImageFormat::Vmdk));
    const PAIRS: usize = 2050;
    // Most of QEMU's checks are those of the header.
    const ATTACKED: (u64, &[Part]) = (
        320,
        &[
            Part::Header,
            Part::Header,
            Part::Metadata,
            Part::Directory,
            Part::Table,
            Part::BlockFront,
        ],
    );
    const BOUNDS: &[(&str, u64)] = &[
        ("valid images", 500),
        (WITH_RULE, 150),
        ("damaged images that open", 100),
        ("damaged images that are refused", 100),
        ("images that qemu makes", 150),
        ("images of programs", 500),
        ("images of large disks", 14),
        ("maps of the command", 40),
        ("parts of disks", 300),
        ("parts of disks that cannot be read", 0),
        ("attacked images that open", 200),
        ("attacked images that are refused", 40),
        ("attacks on header: open", 50),
        ("attacks on header: refused", 10),
        ("attacks on metadata: open", 40),
        ("attacks on metadata: refused", 10),
        ("attacks on directory: open", 40),
        ("attacks on directory: refused", 10),
        ("attacks on block table: open", 40),
        ("attacks on block table: refused", 10),
        ("attacks on front of a block: open", 40),
        ("attacks on front of a block: refused", 10),
        ("attacks on sparse extents in files of their own: open", 1),
        ("attacks on sparse extents in files of their own: refused", 1),
        ("attacks on ESX extents in files of their own: open", 1),
        ("attacks on ESX extents in files of their own: refused", 1),
        ("attacks on seSparse extents in files of their own: open", 1),
        ("attacks on seSparse extents in files of their own: refused", 1),
        ("records of info", 900),
        ("images that info refuses", 60),
        (NO_EXTENT, 1),
        ("checks that exit with 0", 700),
        ("checks that exit with 1", 60),
        ("checks that end at a fault", 100),
        (PARENT, 1),
        (DIVISION, 1),
        (LENGTH, 1),
        ("extents", 20_000),
        ("windows", 1500),
        ("whole disks", 600),
        ("disks that cannot be read", 30),
        ("walks that fail", 10),
        ("disks that only qemu-img convert can read", 1),
        ("look-ups behind the last grain of an extent", 10),
        ("walks on which qemu-img divides by zero", 1),
    ];

    fn write(path: &Path, kind: Kind, entropy: &mut Entropy) -> Checked<()> {
        match kind {
            Kind::MadeByQemu => return make(path, entropy),
            Kind::Large => return make_large(path, entropy),
            _ => {}
        }
        let mut files = vmdk_writer::write(entropy, "image");
        if kind == Kind::Damaged {
            (0..=entropy.below(2)).for_each(|_| damage(&mut files, entropy));
        }
        for file in files {
            fs::write(path.with_file_name(file.name), file.bytes).described()?;
        }
        Ok(())
    }
}

/// Makes an image of a disk of more than 2 GiB: in two of the types, it has several files.
fn make_large(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let subformat = one_of(
        entropy,
        ["twoGbMaxExtentSparse", "twoGbMaxExtentFlat", "monolithicSparse", "streamOptimized"],
    );
    let size = (2 << 30) + 512 * (1 + entropy.below(1 << 24));
    create(path, &format!("subformat={subformat}"), size, &[])?;
    if subformat == "streamOptimized" {
        return write_grains(path, size, entropy);
    }
    let mut commands = vec![format!("write -P 5 {} 65536", (2u64 << 30) - 512)];
    commands.push(format!("write -P 6 {} 512", size - 512));
    qemu::io_with(path, &["-f", "vmdk"], &commands)?;
    change(path, size, entropy, 4)
}

/// Makes an image with qemu-img, perhaps one with a parent, and changes it with qemu-io.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let bits = 1 + entropy.below(14);
    let size = 512 * (1 + entropy.below(1 << bits));
    let subformat = one_of(
        entropy,
        [
            "monolithicSparse",
            "monolithicFlat",
            "twoGbMaxExtentSparse",
            "twoGbMaxExtentFlat",
            "streamOptimized",
        ],
    );
    let is_flat = subformat.ends_with("Flat");
    let adapter = one_of(entropy, ["ide", "lsilogic", "buslogic", "legacyESX"]);
    let mut options = format!("subformat={subformat},adapter_type={adapter}");
    if !is_flat && entropy.one_in(2) {
        options += ",zeroed_grain=on";
    }
    options += one_of(entropy, ["", ",hwversion=7", ",compat6=on", ",toolsversion=1"]);
    let parent = path.with_extension("parent");
    if !is_flat && entropy.one_in(3) {
        create(&parent, "subformat=monolithicSparse,zeroed_grain=on", size, &[])?;
        change(&parent, size, entropy, 1 + entropy.clone().below(4))?;
        let backing = [OsStr::new("-F"), OsStr::new("vmdk"), OsStr::new("-b"), parent.as_os_str()];
        create(path, &options, size, &backing)?;
    } else {
        create(path, &options, size, &[])?;
    }
    match subformat {
        "streamOptimized" => write_grains(path, size, entropy),
        _ => change(path, size, entropy, entropy.clone().below(5)),
    }
}

/// Writes some grains, because compressed grains are written once.
fn write_grains(path: &Path, size: u64, entropy: &mut Entropy) -> Checked<()> {
    let at = 65_536 * entropy.below(size.div_ceil(65_536));
    let length = (65_536 * (1 + entropy.below(3))).min(size - at);
    let command = format!("write -P {} {at} {length}", entropy.below(256));
    qemu::io_with(path, &["-f", "vmdk"], &[command]).map(drop)
}

fn create(path: &Path, options: &str, size: u64, backing: &[&OsStr]) -> Checked<()> {
    comparison::create(path, ImageFormat::Vmdk, options, size, backing)
}

/// Writes data and zeros.
fn change(path: &Path, size: u64, entropy: &mut Entropy, count: u64) -> Checked<()> {
    let commands: Vec<String> = (0..count)
        .map(|_| {
            let (at, pattern) = (entropy.below(size / 512) * 512, entropy.below(256));
            let length = (512 * (1 + entropy.below(300))).min(size - at);
            let grain = at / 65_536 * 65_536;
            let kinds = [
                format!("write -P {pattern} {at} {length}"),
                format!("write -z {at} {length}"),
                format!("write -z {grain} {}", (size - grain).min(65_536)),
            ];
            one_of(entropy, kinds)
        })
        .collect();
    qemu::io_with(path, &["-f", "vmdk"], &commands).map(drop)
}

/// Damages one of the files.
pub fn damage(files: &mut [WrittenFile], entropy: &mut Entropy) {
    let is_chain = files.iter().any(|file| file.name.ends_with("-parent"));
    let chosen = entropy.below(files.len() as u64) as usize;
    let file = &mut files[chosen];
    match entropy.below(12) {
        0 => truncate(file, entropy),
        1 => any_byte(file, entropy),
        2..4 => text(file, entropy),
        4..7 => field(file, entropy, |kind| kind == FieldKind::Entry),
        // The extents of a chain stay whole, see `vmdk_extents::shape`.
        7 | 8 if !is_chain => field(file, entropy, |kind| kind == FieldKind::Size),
        _ => field(file, entropy, |kind| matches!(kind, FieldKind::Any | FieldKind::Fixed)),
    }
}

fn truncate(file: &mut WrittenFile, entropy: &mut Entropy) {
    let length = entropy.below(1 + file.bytes.len() as u64) as usize;
    file.bytes.truncate(length);
}

/// Changes a byte that is in no field: those need values that are chosen.
fn any_byte(file: &mut WrittenFile, entropy: &mut Entropy) {
    let at = entropy.below(1 + file.bytes.len() as u64) as usize;
    let is_field = file.fields.iter().any(|field| (field.at..field.at + field.width).contains(&at));
    if !is_field {
        set(&mut file.bytes, at, entropy.next_u64(), 1);
    }
}

/// Changes a number.
fn field(file: &mut WrittenFile, entropy: &mut Entropy, wanted: fn(FieldKind) -> bool) {
    let fields: Vec<&Field> = file.fields.iter().filter(|field| wanted(field.kind)).collect();
    let Some(Field { at, width, kind }) =
        fields.get(entropy.below(fields.len() as u64) as usize).copied()
    else {
        return text(file, entropy);
    };
    let mut old = [0; 8];
    let Some(bytes) = file.bytes.get(*at..at + width) else { return };
    old[..*width].copy_from_slice(bytes);
    let value = new_value(entropy, *kind, u64::from_le_bytes(old));
    let (at, width) = (*at, *width);
    set(&mut file.bytes, at, value, width);
}

/// Returns a value to replace `old`. Sizes stay small, or become so large that qemu-img refuses them: it walks disks
/// grain by grain, which takes hours for 2^40 grains. They stay below 2^63: QEMU takes a larger size as negative, which
/// moves later extents to the front; and compressed grains stay below 1 GiB, for which QEMU has no memory.
fn new_value(entropy: &mut Entropy, kind: FieldKind, old: u64) -> u64 {
    let near = old.wrapping_add(entropy.below(5)).wrapping_sub(2) & i64::MAX as u64;
    let (bit, small, random) = (1 << entropy.below(64), entropy.below(5000), entropy.next_u64());
    match kind {
        FieldKind::Size => {
            let large = one_of(entropy, [1 << 54, 1 << 55, (1 << 62) + 5]);
            let values = [0, 1, near, old / 2, old * 2, small, large];
            one_of(entropy, values) & i64::MAX as u64
        }
        FieldKind::Entry => {
            // The upper bits of an seSparse entry are its type.
            let other_type = old ^ random << 60;
            one_of(entropy, [0, 1, near, small, old ^ bit, random, other_type])
        }
        FieldKind::Any | FieldKind::Fixed => {
            let wide = one_of(entropy, [bit, u64::MAX, random]);
            one_of(entropy, [0, 1, near, small, old ^ bit, wide])
        }
    }
}

/// Changes the descriptor. Names get no colons, because their meaning depends on the directory of the image.
fn text(file: &mut WrittenFile, entropy: &mut Entropy) {
    let (start, length) = file.text;
    let end = (start + length).min(file.bytes.len());
    let Some(text) = file.bytes.get(start..end) else { return };
    let mut text = text.to_vec();
    let at = entropy.below(text.len() as u64 + 1) as usize;
    let line =
        |at: usize| text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line_at = line(at);
    let parent = text.windows(10).position(|bytes| bytes == b"parentCID=");
    match entropy.below(7) {
        0 => text.truncate(at),
        1 => drop(text.drain(line_at..at)),
        2 => text.insert(at, one_of(entropy, *b"\n \t\"0-RWx\0")),
        3 => text.insert(line_at, one_of(entropy, *b"\n \t\"0-R#\0")),
        // A parent with another content.
        4 => parent.into_iter().for_each(|at| set(&mut text, at + 10, b'7'.into(), 1)),
        5 if at < text.len() => text[at] = one_of(entropy, *b"\n \t\"0-RWx\0"),
        _ => {
            let mut again = text[line_at..at].to_vec();
            again.push(b'\n');
            let place = entropy.below(text.len() as u64 + 1) as usize;
            text.splice(place..place, again);
        }
    }
    // The bytes behind the descriptor stay at their offsets.
    match end == file.bytes.len() {
        true => file.bytes.truncate(start),
        false => text.resize(length, 0),
    }
    file.bytes.resize(file.bytes.len().max(start + text.len()), 0);
    file.bytes[start..start + text.len()].copy_from_slice(&text);
    file.text = (start, text.len());
}

/// Writes the low bytes of a value, little-endian, as far as the file reaches.
fn set(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    for (into, from) in bytes.iter_mut().skip(at).zip(&value.to_le_bytes()[..width]) {
        *into = *from;
    }
}
