//! The seeds of a new crate: the plain qcow2 images of the self-test as programs, as programs that damage them, and as
//! files.

use crate::fuzzing::embedded::breeder::built_file;
use crate::harness::selftest::plain_images;
use crate::harness::targets::TargetKind;
use crate::harness::{Harness, Walker};
use crate::programs::text::assemble;

/// Damage for each image: its first L2 entry, read from the file, leads elsewhere.
const DAMAGE: &str = "patch part=l2 depth=0 nth=0 transform=misalign value=1\n";

/// The maximum length of a seed that is a file.
const MAX_SEED_BYTES: u64 = 128 << 10;

/// Returns all seeds: the target, the name of the file, and the bytes.
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    for image in plain_images().filter(|image| image.is_qcow2()) {
        let (name, text) = (image.name.replace(' ', "_"), image.text());
        let damaged = format!("{text}{DAMAGE}");
        let programs = [(TargetKind::MapExtents, text.clone()), (TargetKind::Hostile, damaged)];
        for (target, text) in programs {
            let program = assemble(&text).map(|program| program.encode());
            all.extend(program.ok().map(|bytes| (target.name(), name.clone(), bytes)));
        }
        all.extend(file(&text).map(|bytes| (TargetKind::RawImage.name(), name, bytes)));
    }
    all
}

/// Returns the image of a program, with smaller clusters; `None` if it is a chain or a long file.
fn file(text: &str) -> Option<Vec<u8>> {
    // Extended L2 entries need clusters of 16 KiB.
    let bits = if text.contains("extended_l2") { "14" } else { "12" };
    let text = text.replace("cluster_bits=16", &format!("cluster_bits={bits}"));
    let text = text.replace("<<16", &format!("<<{bits}"));
    let program = assemble(&text).ok()?.encode();
    built_file(&mut Harness::new(Walker::default()), &program, MAX_SEED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_enough_seeds() {
        let all = all();
        let count = |target: TargetKind| all.iter().filter(|it| it.0 == target.name()).count();
        let images = plain_images().filter(|image| image.is_qcow2()).count();
        assert_eq!((count(TargetKind::MapExtents), count(TargetKind::Hostile)), (images, images));
        // OSS-Fuzz's check wants ten.
        assert_eq!(count(TargetKind::RawImage), 12);
    }
}
