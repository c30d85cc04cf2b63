//! Appends an attack of known meaning: damage for which QEMU refuses an image that is sound otherwise. Random attacks
//! rarely produce these values. If the image lacks the field, the attack changes nothing.

use crate::disk::image_format::ImageFormat;
use crate::formats::anatomy::Part;
use crate::images::damage::Transform;
use crate::images::file_plan::ExtentForm;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;
use super::refused_formats::{self, FieldChange};

const fn header(field: u16, transform: Transform, value: u16) -> FieldChange {
    // Twice the index: an odd number would name the entry behind the element.
    (Part::Header, field * 2, transform, value)
}

const fn extension(word: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Extension, word * 2, transform, value)
}

const fn flip(word: u16, bit: u16) -> FieldChange {
    extension(word, Transform::Flip, bit)
}

/// The attacks on qcow2. The fields of the header have the order of the specification; an extension has a type, a
/// length and words of content.
const QCOW2: &[&[FieldChange]] = &[
    &[header(1, Transform::Set, 4)],
    &[header(2, Transform::Boundary, 10)],
    // The name of a backing file.
    &[header(2, Transform::Set, 400), header(3, Transform::Set, 1024)],
    &[header(4, Transform::Set, 8)],
    &[header(4, Transform::Set, 22)],
    &[header(5, Transform::Boundary, 1)],
    &[header(5, Transform::Boundary, 3)],
    &[header(6, Transform::Set, 1)],
    &[header(6, Transform::Set, 2)],
    &[header(6, Transform::Set, 3)],
    &[header(7, Transform::Set, 0)],
    &[header(7, Transform::Boundary, 12)],
    &[header(8, Transform::Misalign, 0)],
    &[header(9, Transform::Misalign, 0)],
    &[header(10, Transform::Set, 0)],
    &[header(10, Transform::Boundary, 11)],
    // One snapshot too many.
    &[header(11, Transform::Boundary, 14), header(11, Transform::Add, 1)],
    &[header(12, Transform::Misalign, 0)],
    // Extended L2, which small clusters cannot have.
    &[header(13, Transform::Flip, 4)],
    &[header(13, Transform::Flip, 3)],
    &[header(13, Transform::Flip, 5)],
    &[header(15, Transform::Flip, 1)],
    &[header(16, Transform::Set, 7)],
    &[header(17, Transform::Set, 103)],
    &[header(17, Transform::Boundary, 10)],
    &[header(18, Transform::Set, 2)],
    // The first extension.
    &[extension(1, Transform::Boundary, 1)],
    // It becomes the extension of a crypto header, 0537BE77.
    &[
        extension(0, Transform::Set, 0xBE77),
        flip(0, 16),
        flip(0, 17),
        flip(0, 18),
        flip(0, 20),
        flip(0, 21),
        flip(0, 24),
        flip(0, 26),
    ],
    // It becomes a backing format, E2792ACA, of 16 bytes.
    &[
        extension(0, Transform::Set, 0x2ACA),
        extension(1, Transform::Set, 16),
        flip(0, 16),
        flip(0, 19),
        flip(0, 20),
        flip(0, 21),
        flip(0, 22),
        flip(0, 25),
        flip(0, 29),
        flip(0, 30),
        flip(0, 31),
    ],
    // If it is the bitmaps extension: its length, its content.
    &[extension(1, Transform::Set, 16)],
    &[extension(2, Transform::Add, 1)],
    &[extension(2, Transform::Set, 0)],
    &[extension(3, Transform::Set, 0)],
    &[extension(3, Transform::Boundary, 15)],
    &[extension(4, Transform::Misalign, 0)],
    // The length of a snapshot's extra data.
    &[(Part::Snapshot, 16, Transform::Set, 1025)],
    &[(Part::L1, 0, Transform::Misalign, 0)],
    &[(Part::L2, 0, Transform::Misalign, 0)],
];

/// Returns the attacks on the image at the top.
fn attacks(program: &Program) -> &'static [&'static [FieldChange]] {
    let is_overlay = |operation: &Operation| matches!(operation, Operation::Overlay { .. });
    let is_sesparse = |operation: &Operation| {
        matches!(operation, Operation::Extent { kind: ExtentForm::SeSparse, .. })
    };
    match program.prologue.base.format() {
        _ if program.operations.iter().any(is_overlay) => QCOW2,
        // Without an overlay, a raw file is a qcow2 image.
        ImageFormat::Qcow2 | ImageFormat::Raw => QCOW2,
        ImageFormat::Vpc => refused_formats::VPC,
        ImageFormat::Vhdx => refused_formats::VHDX,
        ImageFormat::Vmdk if program.operations.iter().any(is_sesparse) => {
            refused_formats::SE_SPARSE
        }
        ImageFormat::Vmdk => refused_formats::VMDK,
    }
}

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let attacks = attacks(program);
    let attack = attacks[context.index(attacks.len())];
    if context.room(program) < attack.len() {
        return false;
    }
    program.operations.extend(attack.iter().map(patch));
    true
}

fn patch(change: &FieldChange) -> Operation {
    let (part, nth, transform, value) = *change;
    Operation::Patch { part, depth: Number::LOWEST, nth, transform, value }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::disk::image_format::ImageFormat;
    use crate::harness::targets::TargetKind;
    use crate::harness::{Checks, Walker};
    use crate::images::damage::{
        BrokenRule, broken_at_open, broken_entries, broken_extent, open_rule_names,
    };
    use crate::programs::text::assemble;

    /// Makes each of the `attacks` on each image. Returns the rules about whole images that they break. Each attack
    /// makes some image unreadable.
    fn broken_rules(
        format: ImageFormat,
        attacks: &[&[FieldChange]],
        images: &[String],
    ) -> BTreeSet<BrokenRule> {
        let mut target = TargetKind::Hostile.judging(Walker::default());
        let mut broken = BTreeSet::new();
        for attack in attacks {
            let mut effects = 0;
            for image in images {
                let mut program = assemble(image).unwrap();
                program.operations.extend(attack.iter().map(patch));
                let outcome = target.run(&program.encode(), Checks::AtCheckpoints).unwrap();
                effects += outcome.refused + outcome.failed;
                let files = target.images().top();
                broken.extend(broken_at_open(format, &files.image));
                broken.extend(files.extents.all().iter().filter_map(|file| broken_extent(file)));
                broken_entries(format, &files.image, |_| effects += 1);
            }
            assert!(effects > 0, "{attack:?}");
        }
        broken
    }

    #[test]
    fn attacks_break_every_rule() {
        let image = |bits: u32| {
            format!(
                "image version=3 cluster_bits={bits} refcount_order=4 features=compression_field \
                 size=300<<16+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                 write at=start+1 clusters=3\nsnapshot\nbitmap granularity=16 flags=none name=5"
            )
        };
        let mut broken = broken_rules(ImageFormat::Qcow2, QCOW2, &[13, 16].map(image));
        // Random attacks break it most often.
        broken.insert("magic");
        assert_eq!(broken, open_rule_names(ImageFormat::Qcow2).into_iter().collect());
    }

    #[test]
    fn attacks_on_other_formats_break_every_rule() {
        // Random attacks break the first rule about signatures most often. The other rules need more attacks than a
        // program may make, or other ones.
        let cases = [
            (
                ImageFormat::Vpc,
                refused_formats::VPC.to_vec(),
                &[0, 8, 16][..],
                &["VHD footer cookie"][..],
            ),
            (
                ImageFormat::Vhdx,
                refused_formats::VHDX.to_vec(),
                &[0, 1],
                &[
                    "VHDX file signature",
                    "VHDX region that occurs twice",
                    "VHDX metadata item that occurs twice",
                ],
            ),
            (
                ImageFormat::Vmdk,
                [refused_formats::VMDK, refused_formats::SE_SPARSE].concat(),
                &[0, 0x18, 0x20, 0x40, 0x38],
                &["VMDK magic", "VMDK parentFileNameHint"],
            ),
        ];
        for (format, attacks, forms, others) in cases {
            let image = |form: &i32| {
                let (bits, base) =
                    (if format == ImageFormat::Vhdx { 9 } else { 12 }, format.name());
                format!(
                    "image version=3 cluster_bits={bits} refcount_order=4 features=none size=16<<20+0 \
                     rng_seed=0 blocks=append table=append tolerance=0 base={base} form={form}\n\
                     write at=start+1 clusters=3"
                )
            };
            let mut images: Vec<String> = forms.iter().map(image).collect();
            // Only VMDK images have extents.
            let extent = "\nextent kind=se_sparse length=1<<5 lead=0\nwrite";
            images.push(image(&0).replace("\nwrite", extent));
            let mut broken = broken_rules(format, &attacks, &images);
            broken.extend(others);
            assert_eq!(broken, open_rule_names(format).into_iter().collect(), "{format:?}");
        }
    }
}
