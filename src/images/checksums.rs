//! Corrects the checksums of a file that a fuzzer has changed. Without this, nearly every change of a VHD footer or of
//! a VHDX header ends at the checksum, and nothing behind it is tested.

use crate::disk::image_format::ImageFormat;
use crate::images::list::drawer;

/// Corrects the checksums of all structures of an image that lie where readers look for them. Leaves files of formats
/// without checksums as they are.
pub fn correct(file: &mut [u8]) {
    ImageFormat::ALL.into_iter().for_each(|format| drawer(format).correct_checksums(file));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_do_not_change() {
        let mut other = *b"QFI\xfb....";
        correct(&mut other);
        assert_eq!(&other, b"QFI\xfb....");
    }
}
