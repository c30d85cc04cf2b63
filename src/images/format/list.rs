//! The rules by which QEMU refuses an image, or the use of an entry: their names, and the entries that break one. The
//! drawer of each format has a file of rules for its images, and one for its entries. The rules judge bytes alone. They
//! share constants with the code that reads images, and nothing else, so that a check which that code lacks shows as a
//! disagreement. `tests/qemu/damaged/refusals.rs` and `tests/qemu/formats/mod.rs` compare them with the installed
//! qemu-img.
//!
//! If a format keeps a structure twice, readers may differ in the choice. Then an image breaks a rule only if QEMU
//! refuses it and no choice is left.

use crate::disk::image_format::{ImageFormat, for_each_format};
use crate::images;
use crate::images::damage::rules::BrokenRule;
use crate::images::files::image::Image;

use super::ImageDrawer;

macro_rules! drawers {
    (
        $($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident [$($fact:ident),*],)*
    ) => {
        /// Returns the drawer of a format.
        pub fn drawer(format: ImageFormat) -> &'static dyn ImageDrawer {
            match format {
                $(ImageFormat::$format => &images::$drawer::Drawer,)*
            }
        }
    };
}

for_each_format!(drawers);

/// Returns the first rule about whole images that an image breaks. Limits of QEMU count only if `with_limits` is true.
pub fn broken_at_open(format: ImageFormat, image: &Image, with_limits: bool) -> Option<BrokenRule> {
    drawer(format).broken_at_open(image).filter(|rule| is_judged(format, rule, with_limits))
}

/// Reports whether the oracles judge a rule. They judge limits of QEMU only if `with_limits` is true.
pub fn is_judged(format: ImageFormat, rule: BrokenRule, with_limits: bool) -> bool {
    with_limits || !drawer(format).qemu_limits().contains(&rule)
}

/// Corrects the checksums of all structures of an image that lie where readers look for them. Leaves files of formats
/// without checksums as they are. Without this, nearly every change of a header with a checksum ends at the checksum,
/// and nothing behind it is tested.
pub fn correct_checksums(file: &mut [u8]) {
    ImageFormat::ALL.into_iter().for_each(|format| drawer(format).correct_checksums(file));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_do_not_change() {
        let mut other = *b"QFI\xfb....";
        correct_checksums(&mut other);
        assert_eq!(&other, b"QFI\xfb....");
    }
}
