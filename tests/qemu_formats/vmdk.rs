//! VMDK images.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::operand::Base;

use crate::commands::{DIVISION, LENGTH, PARENT};
use crate::comparison::{Kind, TestedFormat, one_of};
use crate::info::NO_EXTENT;
use crate::qemu::{self, Checked};
use crate::rules::WITH_RULE;
use crate::{maker, vmdk_damage, vmdk_writer};

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
            (0..=entropy.below(2)).for_each(|_| vmdk_damage::damage(&mut files, entropy));
        }
        for file in files {
            fs::write(path.with_file_name(file.name), file.bytes)
                .map_err(|error| error.to_string())?;
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
    maker::create(path, ImageFormat::Vmdk, options, size, backing)
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
