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
    use crate::disk::offsets::HostOffset;
    use crate::disk::storage::Storage;
    use crate::harness::{Harness, Walker};
    use crate::images::content::entropy::Entropy;
    use crate::images::files::image::Image;
    use crate::programs::text::assemble;

    use super::*;

    #[test]
    fn files_of_other_formats_do_not_change() {
        let mut other = *b"QFI\xfb....";
        correct_checksums(&mut other);
        assert_eq!(&other, b"QFI\xfb....");
    }

    /// The places at which the structures of an image lie: the first sectors, those of VHDX, and the last sectors.
    fn place(format: ImageFormat, length: u64, entropy: &mut Entropy) -> u64 {
        let near = entropy.below(200);
        match (format, entropy.below(8)) {
            (ImageFormat::Vhdx, choice) => {
                let starts = [0, 64 << 10, 128 << 10, 192 << 10, 256 << 10, 2 << 20, 3 << 20];
                starts.get(choice as usize).unwrap_or(&(2 << 20 | 64 << 10)) + near
            }
            // All structures that rules judge lie in the header.
            (ImageFormat::Vdi, _) => 60 + 2 * near,
            (_, 0) => length - 512 - near,
            (_, 1) => entropy.below(length),
            (_, choice) => (choice - 2) / 2 * 512 + near,
        }
    }

    /// Numbers of any size in any field are judged.
    #[test]
    fn any_bytes_are_judged() {
        let mut entropy = Entropy::new(8);
        for format in ImageFormat::ALL.into_iter().filter(|it| *it != ImageFormat::Raw) {
            let forms = match format {
                ImageFormat::Vpc => [0, 8],
                ImageFormat::Vmdk => [0, 0x20],
                _ => [0, 1],
            };
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
                broken += u64::from(drawer(format).broken_at_open(&image).is_some());
                drawer(format).broken_entries(&image, &mut |entry| {
                    assert!(entry.guest.start < entry.guest.end);
                    broken += 1;
                });
            }
            assert!(broken > 200, "{format:?}: {broken}");
        }
    }
}
