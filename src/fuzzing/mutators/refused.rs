//! Appends an attack of known meaning: damage for which QEMU refuses an image that is sound otherwise. Random attacks
//! rarely produce these values. If the image lacks the field, the attack changes nothing.

use crate::disk::image_format::ImageFormat;
use crate::images::damage::FieldChange;
use crate::images::format::file_plan::ExtentForm;
use crate::images::format::list::drawer;
use crate::images::vmdk;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

/// Returns the attacks on the image at the top.
fn attacks(program: &Program) -> &'static [&'static [FieldChange]] {
    let is_overlay = |operation: &Operation| matches!(operation, Operation::Overlay { .. });
    let is_sesparse = |operation: &Operation| {
        matches!(operation, Operation::Extent { kind: ExtentForm::SeSparse, .. })
    };
    match program.prologue.base.format() {
        _ if program.operations.iter().any(is_overlay) => drawer(ImageFormat::Qcow2).attacks(),
        ImageFormat::Vmdk if program.operations.iter().any(is_sesparse) => vmdk::SE_SPARSE,
        format => drawer(format).attacks(),
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
    use crate::images::damage::BrokenRule;
    use crate::programs::operand::Base;
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
                broken.extend(drawer(format).broken_at_open(&files.image));
                broken.extend(
                    files
                        .extents
                        .all()
                        .iter()
                        .filter_map(|file| drawer(format).broken_extent(file)),
                );
                drawer(format).broken_entries(&files.image, &mut |_| effects += 1);
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
        let mut broken = broken_rules(
            ImageFormat::Qcow2,
            drawer(ImageFormat::Qcow2).attacks(),
            &[13, 16].map(image),
        );
        // Random attacks break it most often.
        broken.insert("magic");
        assert_eq!(broken, drawer(ImageFormat::Qcow2).open_rules().into_iter().collect());
    }

    #[test]
    fn attacks_on_other_formats_break_every_rule() {
        // Random attacks break the first rule about signatures most often. The other rules need more attacks than a
        // program may make, or other ones.
        for format in Base::other_formats() {
            let attacks = drawer(format).attacks();
            let (attacks, forms, others) = match format {
                ImageFormat::Vpc => (attacks.to_vec(), &[0, 8, 16][..], &["VHD footer cookie"][..]),
                ImageFormat::Vhdx => (
                    attacks.to_vec(),
                    &[0, 1][..],
                    &[
                        "VHDX file signature",
                        "VHDX region that occurs twice",
                        "VHDX metadata item that occurs twice",
                    ][..],
                ),
                ImageFormat::Vmdk => (
                    [attacks, vmdk::SE_SPARSE].concat(),
                    &[0, 0x18, 0x20, 0x40, 0x38][..],
                    &["VMDK magic", "VMDK parentFileNameHint"][..],
                ),
                // Random attacks break it most often.
                _ => (attacks.to_vec(), &[0, 1][..], &["VDI signature"][..]),
            };
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
            assert_eq!(broken, drawer(format).open_rules().into_iter().collect(), "{format:?}");
        }
    }
}
