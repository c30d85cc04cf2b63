//! VHD images.

use std::fs;
use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::operand::Base;

use crate::comparison::{Kind, TestedFormat, one_of};
use crate::qemu::Checked;
use crate::rules::WITH_RULE;
use crate::{maker, vpc_writer};

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
        let mut written = vpc_writer::write(entropy);
        if kind == Kind::Damaged {
            (0..=entropy.below(2)).for_each(|_| vpc_writer::damage(&mut written, entropy));
        }
        fs::write(path, &written.bytes).map_err(|error| error.to_string())
    }
}

/// Makes an image of a disk at the largest geometry, at the largest size, or between them.
fn make_large(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let gib = one_of(entropy, [127, 128, 200, 2040]);
    let size = (gib << 30) - 512 * entropy.below(3);
    let subformat = one_of(entropy, ["dynamic", "dynamic", "fixed"]);
    let force = one_of(entropy, ["on", "off"]);
    let options = format!("subformat={subformat},force_size={force}");
    maker::create(path, ImageFormat::Vpc, &options, size, &[])?;
    maker::change(path, ImageFormat::Vpc, size, entropy)
}

/// Makes an image with qemu-img, and changes it with qemu-io.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let bits = 1 + entropy.below(15);
    let size = 512 * (1 + entropy.below(1 << bits));
    let subformat = one_of(entropy, ["dynamic", "dynamic", "dynamic", "fixed"]);
    let force = one_of(entropy, ["on", "off"]);
    let options = format!("subformat={subformat},force_size={force}");
    maker::create(path, ImageFormat::Vpc, &options, size, &[])?;
    maker::change(path, ImageFormat::Vpc, size, entropy)
}
