//! Appends an attack of known meaning: damage for which QEMU refuses an image that is sound otherwise. Random attacks
//! rarely produce these values. If the image lacks the field, the attack changes nothing.

use crate::formats::anatomy::Part;
use crate::images::damage::Transform;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

/// The change of an element: its part, its number in the part, the transform and its operand.
type FieldChange = (Part, u16, Transform, u16);

const fn header(field: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Header, field, transform, value)
}

const fn extension(word: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Extension, word, transform, value)
}

const fn flip(word: u16, bit: u16) -> FieldChange {
    extension(word, Transform::Flip, bit)
}

/// The attacks. The fields of the header have the order of the specification; an extension has a type, a length and
/// words of content.
const ATTACKS: &[&[FieldChange]] = &[
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
    &[(Part::Snapshot, 8, Transform::Set, 1025)],
    &[(Part::L1, 0, Transform::Misalign, 0)],
    &[(Part::L2, 0, Transform::Misalign, 0)],
];

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let attack = ATTACKS[context.index(ATTACKS.len())];
    if context.room(program) < attack.len() {
        return false;
    }
    program.operations.extend(attack.iter().map(patch));
    true
}

fn patch(change: &FieldChange) -> Operation {
    let (part, index, transform, value) = *change;
    // Twice the index: an odd number would name the entry behind the element.
    Operation::Patch { part, depth: Number::LOWEST, nth: index * 2, transform, value }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::disk::image_format::ImageFormat;
    use crate::harness::target::Target;
    use crate::harness::targets::TargetKind;
    use crate::harness::{Checks, Walker};
    use crate::images::damage::{broken_at_open, open_rule_names};
    use crate::programs::text::assemble;

    /// Each rule about whole images is broken by some attack on one of two images.
    #[test]
    fn attacks_break_every_rule() {
        let image = |bits: u32| {
            let image = format!(
                "image version=3 cluster_bits={bits} refcount_order=4 features=compression_field \
                 size=300<<16+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                 write at=start+1 clusters=3\nsnapshot\nbitmap granularity=16 flags=none name=5"
            );
            assemble(&image).unwrap()
        };
        let mut target = TargetKind::Hostile.judging(Walker::default());
        let mut broken = BTreeSet::new();
        for attack in ATTACKS {
            let mut effects = 0;
            for bits in [13, 16] {
                let mut program = image(bits);
                program.operations.extend(attack.iter().map(patch));
                let outcome = target.run(&program.encode(), Checks::AtCheckpoints).unwrap();
                effects += outcome.refused + outcome.failed;
                let images = target.pipeline().unwrap().images();
                broken.extend(broken_at_open(ImageFormat::Qcow2, &images.top().image));
            }
            assert!(effects > 0, "{attack:?}");
        }
        // Random attacks break it most often.
        broken.insert("magic");
        assert_eq!(broken, open_rule_names(ImageFormat::Qcow2).into_iter().collect());
    }
}
