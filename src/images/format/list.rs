//! The drawers of all formats, by the list of formats in the walker's package.

use crate::disk::image_format::{ImageFormat, for_each_format};
use crate::images;

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

/// Corrects the checksums of all structures of an image that lie where readers look for them. Leaves files of formats
/// without checksums as they are. Without this, nearly every change of a VHD footer or of a VHDX header ends at the
/// checksum, and nothing behind it is tested.
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
