//! The rules by which QEMU refuses an image, or the use of an entry: a file for the images of each format, and one for
//! its entries. The rules judge bytes alone. They share constants with the code that reads images, and nothing else, so
//! that a check which that code lacks shows as a disagreement. `tests/qemu_refusals.rs` and `tests/qemu_formats.rs`
//! compare them with the installed qemu-img.
//!
//! If a format keeps a structure twice, readers may differ in the choice. Then an image breaks a rule only if QEMU
//! refuses it and no choice is left.

mod bytes;
mod qcow2_entries;
mod qcow2_open;
mod rule;
mod vhdx;
mod vhdx_blocks;
mod vmdk;
mod vmdk_grains;
mod vmdk_sesparse;
mod vpc;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::formats::vhdx::constants::FILE_SIGNATURE;
use crate::formats::vpc::constants::COOKIE;
use crate::images::image::Image;

pub(super) use qcow2_entries::EntryRules;
pub use rule::{BrokenEntry, BrokenRule};

/// Returns the first rule that an image of a format breaks; `None` if it keeps all of them. Each file is a valid raw
/// image.
pub fn broken_at_open(format: ImageFormat, image: &Image) -> Option<BrokenRule> {
    match format {
        ImageFormat::Qcow2 => qcow2_open::broken_at_open(image),
        ImageFormat::Raw => None,
        ImageFormat::Vpc => vpc::broken_at_open(image),
        ImageFormat::Vhdx => vhdx::broken_at_open(image),
        ImageFormat::Vmdk => vmdk::broken_at_open(image),
    }
}

/// Returns the first rule that a file beside a VMDK image breaks; `None` if it keeps all of them, or if the rules do
/// not judge it.
pub fn broken_extent(file: &Image) -> Option<BrokenRule> {
    vmdk::broken_extent(file)
}

/// Calls `take` with the entries of an image that break a rule. The image breaks none as a whole. For qcow2, only the
/// entries that an attack has changed are judged.
pub fn broken_entries(format: ImageFormat, image: &Image, take: impl FnMut(BrokenEntry)) {
    match format {
        ImageFormat::Qcow2 | ImageFormat::Raw => {}
        ImageFormat::Vpc => vpc::broken_entries(image, take),
        ImageFormat::Vhdx => vhdx_blocks::broken_entries(image, take),
        ImageFormat::Vmdk => vmdk_grains::broken_entries(image, take),
    }
}

/// Reports whether a file that breaks `rule` still begins like an image of its format. QEMU probes the format of a
/// layer below, and takes a file without the signature for a raw one.
pub(super) fn has_signature(format: ImageFormat, image: &Image, rule: BrokenRule) -> bool {
    let start = || image.number(HostOffset::ZERO, 8).to_be_bytes();
    match format {
        ImageFormat::Qcow2 => ![qcow2_open::MAGIC_RULE, qcow2_open::VERSION_RULE].contains(&rule),
        ImageFormat::Vpc => start() == COOKIE,
        ImageFormat::Vhdx => start() == FILE_SIGNATURE,
        ImageFormat::Vmdk => rule != vmdk::VMDK_MAGIC,
        ImageFormat::Raw => true,
    }
}

/// Returns the names of the rules about whole images of a format.
pub fn open_rule_names(format: ImageFormat) -> Vec<BrokenRule> {
    match format {
        ImageFormat::Qcow2 => qcow2_open::open_rule_names().collect(),
        ImageFormat::Raw => Vec::new(),
        ImageFormat::Vpc => vpc::VPC_OPEN_RULES.to_vec(),
        ImageFormat::Vhdx => vhdx::VHDX_OPEN_RULES.to_vec(),
        ImageFormat::Vmdk => [vmdk::VMDK_OPEN_RULES, vmdk_sesparse::SE_SPARSE_OPEN_RULES].concat(),
    }
}

/// Returns the names of the rules about entries of a format.
pub fn entry_rule_names(format: ImageFormat) -> &'static [BrokenRule] {
    match format {
        ImageFormat::Qcow2 => &qcow2_entries::ENTRY_RULES,
        ImageFormat::Raw => &[],
        ImageFormat::Vpc => vpc::VPC_ENTRY_RULES,
        ImageFormat::Vhdx => vhdx_blocks::VHDX_ENTRY_RULES,
        ImageFormat::Vmdk => vmdk_grains::VMDK_ENTRY_RULES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::storage::Storage;
    use crate::harness::{Harness, Walker};
    use crate::images::entropy::Entropy;
    use crate::programs::text::assemble;

    /// The places at which the structures of an image lie: the first sectors, those of VHDX, and the last sectors.
    fn place(format: ImageFormat, length: u64, entropy: &mut Entropy) -> u64 {
        let near = entropy.below(200);
        match (format, entropy.below(8)) {
            (ImageFormat::Vhdx, choice) => {
                let starts = [0, 64 << 10, 128 << 10, 192 << 10, 256 << 10, 2 << 20, 3 << 20];
                starts.get(choice as usize).unwrap_or(&(2 << 20 | 64 << 10)) + near
            }
            (_, 0) => length - 512 - near,
            (_, 1) => entropy.below(length),
            (_, choice) => (choice - 2) / 2 * 512 + near,
        }
    }

    /// Numbers of any size in any field are judged.
    #[test]
    fn any_bytes_are_judged() {
        let formats = [
            (ImageFormat::Qcow2, [0, 0]),
            (ImageFormat::Vpc, [0, 8]),
            (ImageFormat::Vhdx, [0, 1]),
            (ImageFormat::Vmdk, [0, 0x20]),
        ];
        let mut entropy = Entropy::new(8);
        for (format, forms) in formats {
            let mut broken = 0;
            let mut harness = Harness::new(Walker::default());
            for rng_seed in 0..2000 {
                let text = format!(
                    "image version=3 cluster_bits=9 refcount_order=4 features=none size=3<<20+0 \
                     rng_seed=0 blocks=append table=append tolerance=0 base={} form={}\n\
                     write at=start+1 clusters=3",
                    format.name(),
                    if format == ImageFormat::Qcow2 { 0 } else { forms[rng_seed % 2] }
                );
                harness.build(&assemble(&text).unwrap().encode());
                let (mut image, length) = (Image::default(), harness.image().length_bytes());
                harness.image().written().for_each(|data| image.write(data.offset, data.bytes));
                image.seal(length);
                for _ in 0..=entropy.below(3) {
                    let at = place(format, length, &mut entropy);
                    let (number, bit) = (entropy.next_u64(), 1 << entropy.below(64));
                    let number = [number, bit, 0, u64::MAX, 512][entropy.below(5) as usize];
                    let width = 1 << entropy.below(4);
                    image.overwrite(HostOffset::new(at), &number.to_le_bytes()[..width]);
                }
                broken += u64::from(broken_at_open(format, &image).is_some());
                broken_entries(format, &image, |entry| {
                    assert!(entry.guest.start < entry.guest.end);
                    broken += 1;
                });
            }
            assert!(broken > 200, "{format:?}: {broken}");
        }
    }
}
