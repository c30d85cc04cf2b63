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
mod vpc;

use crate::disk::image_format::ImageFormat;
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

/// Calls `take` with the entries of an image that break a rule. The image breaks none as a whole. For qcow2, only the
/// entries that an attack has changed are judged, see [`EntryRules`].
pub fn broken_entries(format: ImageFormat, image: &Image, take: impl FnMut(BrokenEntry)) {
    match format {
        ImageFormat::Qcow2 | ImageFormat::Raw => {}
        ImageFormat::Vpc => vpc::broken_entries(image, take),
        ImageFormat::Vhdx => vhdx_blocks::broken_entries(image, take),
        ImageFormat::Vmdk => vmdk_grains::broken_entries(image, take),
    }
}

/// Reports whether a file that breaks a rule may be one of another format. QEMU probes the format of a layer below, and
/// takes a file without the signature for a raw one.
pub(super) fn is_of_signature(rule: BrokenRule) -> bool {
    let qcow2 = [qcow2_open::MAGIC_RULE, qcow2_open::VERSION_RULE];
    let others = [vpc::FOOTER_COOKIE, vpc::FOOTER_COPY, vhdx::FILE, vmdk::MAGIC];
    qcow2.contains(&rule) || others.contains(&rule)
}

/// Returns the names of the rules about whole images of a format.
pub fn open_rule_names(format: ImageFormat) -> Vec<BrokenRule> {
    match format {
        ImageFormat::Qcow2 => qcow2_open::open_rule_names().collect(),
        ImageFormat::Raw => Vec::new(),
        ImageFormat::Vpc => vpc::OPEN_RULES.to_vec(),
        ImageFormat::Vhdx => vhdx::OPEN_RULES.to_vec(),
        ImageFormat::Vmdk => vmdk::OPEN_RULES.to_vec(),
    }
}

/// Returns the names of the rules about entries of a format.
pub fn entry_rule_names(format: ImageFormat) -> &'static [BrokenRule] {
    match format {
        ImageFormat::Qcow2 => &qcow2_entries::ENTRY_RULES,
        ImageFormat::Raw => &[],
        ImageFormat::Vpc => vpc::ENTRY_RULES,
        ImageFormat::Vhdx => vhdx_blocks::ENTRY_RULES,
        ImageFormat::Vmdk => vmdk_grains::ENTRY_RULES,
    }
}
