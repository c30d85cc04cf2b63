//! Raw images. Programs build them only below other images (`tests/qemu/programs/mod.rs`).

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use super::commands::WITH_RULE;
use super::comparison;
use crate::formats::comparison::{Kind, TestedFormat, one_of};

pub struct Raw;

impl TestedFormat for Raw {
    const FORMAT: ImageFormat = ImageFormat::Raw;
    const VALID: u64 = 0;
    const DAMAGED: u64 = 0;
    const MADE_BY_QEMU: u64 = 160;
    const PROGRAMS: (u64, Base) = (0, Base::Raw);
    const PAIRS: usize = 0;
    const WINDOWS_OF: u64 = 1;
    const BOUNDS: &[(&str, u64)] = &[
        ("images that qemu makes", 150),
        (WITH_RULE, 0),
        ("records of info", 150),
        ("checks that exit with 63", 150),
        ("maps of the command", 150),
        ("extents", 400),
        ("windows", 450),
        ("whole disks", 120),
        ("parts of disks", 20),
    ];

    fn write(path: &Path, _kind: Kind, entropy: &mut Entropy) -> Checked<()> {
        make(path, entropy)
    }
}

/// Makes an image with qemu-img, changes it with qemu-io, and perhaps gives it a length that is no multiple of a
/// sector. One image in eight is longer than 16 MiB, and mostly holes.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let is_long = entropy.one_in(8);
    let bits = if is_long { 24 + entropy.below(10) } else { 1 + entropy.below(14) };
    let size = 512 * (1 + entropy.below(1 << bits));
    let allocation = match is_long {
        true => "off",
        false => one_of(entropy, ["off", "off", "falloc", "full"]),
    };
    let options = format!("preallocation={allocation}");
    comparison::create(path, ImageFormat::Raw, &options, size, &[])?;
    let commands: Vec<String> = (0..entropy.below(7))
        .map(|_| {
            let (at, pattern) = (entropy.below(size), entropy.below(256));
            let longest = one_of(entropy, [700, 9000, 200_000]);
            let length = (1 + entropy.below(longest)).min(size - at);
            // Only whole sectors can be discarded, and blocks of the file system become holes.
            let (first, sectors) = (at / 512 * 512, length.next_multiple_of(512));
            let block = at / 4096 * 4096;
            let kinds = [
                format!("write -P {pattern} {at} {length}"),
                format!("write -z {at} {length}"),
                format!("write -z -u {block} {}", (length * 4).min(size - block)),
                format!("discard {first} {}", sectors.min(size - first)),
            ];
            one_of(entropy, kinds)
        })
        .collect();
    qemu::io_with(path, &["-f", "raw", "-d", "unmap"], &commands)?;
    end_inside_a_sector(path, size, entropy).described()
}

/// Lengthens or cuts one file of two by less than a sector, and writes to the end of some.
fn end_inside_a_sector(path: &Path, size: u64, entropy: &mut Entropy) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let tail = 1 + entropy.below(511);
    match entropy.below(4) {
        0 => file.set_len(size - tail),
        1 => {
            file.set_len(size + tail)?;
            file.write_all_at(&[7], size + tail - 1)
        }
        _ => Ok(()),
    }
}
