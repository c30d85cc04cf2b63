//! Programs in formats other than qcow2, judged by all oracles; and the rules by which readers refuse images of every
//! format.

use qcowfuzz::internal::findings::explain::explain;
use qcowfuzz::internal::images::damage::{BrokenRule, FieldChange};
use qcowfuzz::internal::images::format::file_plan::ExtentForm;
use qcowfuzz::internal::images::format::list::drawer;
use qcowfuzz::internal::programs::operand::{Number, Size};
use qcowfuzz::programs::generate::vary_extents;
use test_support::prelude::*;

/// Returns the bases whose lowest file is no qcow2 image.
fn bases() -> Vec<Base> {
    Base::all().filter(|base| !matches!(base, Base::Qcow2 | Base::Raw)).collect()
}

const OVERLAY: &str = "overlay version=3 cluster_bits=14 refcount_order=4 features=extended_l2 data_in=image \
                       size=same";

/// Returns a program on a base that the seed selects. Every bit of its form occurs with every other.
fn program(rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 16);
    program.prologue.base = bases()[rng_seed as usize % bases().len()];
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    if program.prologue.base.reach() == Base::large(ImageFormat::Vpc).reach() {
        // Twice as many blocks as a disk with another base has: the table of a larger one takes long to read.
        let bits = program.prologue.plan().geometry.cluster_size.bits() as u8;
        program.prologue.size = Size::new(1, bits + 15, 512).unwrap();
    }
    if program.prologue.base == Base::SparseRaw {
        // Only an overlay makes a raw file of the image.
        program.operations.insert(8, lines::operations(OVERLAY).remove(0));
    }
    if program.prologue.base.format() == ImageFormat::Vmdk {
        vary_extents(&mut program, &mut Entropy::new(rng_seed));
    }
    program
}

#[test]
fn images_of_every_format_are_walked_as_the_model_says() {
    let mut harness = Harness::new(Walker::default());
    let mut effective = 0;
    for rng_seed in 0..400 * bases().len() as u64 {
        let program = program(rng_seed);
        let run = harness.run(&program.encode(), Checks::AfterEach);
        effective +=
            run.unwrap_or_else(|failure| panic!("{rng_seed}: {failure:?}\n{program}")).effective;
    }
    assert!(effective > 2000, "{effective}");
}

#[test]
fn other_targets_find_nothing_in_images_of_every_format() {
    for kind in [TargetKind::Refcounts, TargetKind::Hostile] {
        let mut target = kind.judging(Walker::default());
        for rng_seed in 0..60 * bases().len() as u64 {
            let program = program(rng_seed);
            let run = target.run(&program.encode(), Checks::AtCheckpoints);
            run.unwrap_or_else(|failure| panic!("{rng_seed}: {failure:?}\n{program}"));
        }
    }
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

/// Makes an attack.
fn patch(change: &FieldChange) -> Operation {
    let (part, nth, transform, value) = *change;
    Operation::Patch { part, depth: Number::LOWEST, nth, transform, value }
}

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
                files.extents.all().iter().filter_map(|file| drawer(format).broken_extent(file)),
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
                [attacks, drawer(format).attacks_on_extent(ExtentForm::SeSparse).unwrap()].concat(),
                &[0, 0x18, 0x20, 0x40, 0x38][..],
                &["VMDK magic", "VMDK parentFileNameHint"][..],
            ),
            // Random attacks break it most often.
            _ => (attacks.to_vec(), &[0, 1][..], &["VDI signature"][..]),
        };
        let image = |form: &i32| {
            let (bits, base) = (if format == ImageFormat::Vhdx { 9 } else { 12 }, format.name());
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

/// The structures of other formats are drawn, their entries have a meaning, and so have damaged ones.
#[test]
fn images_of_other_formats_are_explained() {
    let explained = |base: &str, attack: &str| {
        let text = format!(
            "image version=3 cluster_bits=9 refcount_order=4 features=none size=40<<20+0 rng_seed=0 \
             blocks=append table=append tolerance=0 {base}
             write at=start+2 clusters=1
             compress at=start+4 clusters=1 shape=text skew=packed
             {attack}"
        );
        let program = assemble(&text).unwrap();
        let built = explain(&program.encode(), Limits::HOSTILE, 99, &FileNames::default());
        let view = built.files.into_iter().next().unwrap();
        assert_eq!(view.fault, None);
        let roles: BTreeSet<_> = view.runs.iter().filter_map(|run| run.role).collect();
        let damaged = view.entries.iter().find_map(|entry| {
            Some((entry.spelled.clone(), entry.damaged.as_ref()?.spelled.clone()))
        });
        let (before, after) = damaged.unwrap();
        (roles.into_iter().map(|role| role.name()).collect::<Vec<_>>(), before, after)
    };
    let (roles, before, after) =
        explained("base=vhdx", "patch part=table depth=0 nth=0 transform=flip value=2");
    assert_eq!(roles, ["header", "data", "block table", "directory", "metadata"]);
    assert_eq!(after, before.replace("stored at 0x", "zeros, offset 0x"));
    let (roles, before, after) =
        explained("base=vmdk form=36", "patch part=table depth=0 nth=0 transform=set value=3");
    assert_eq!(roles, ["header", "compressed data", "block table", "directory", "metadata"]);
    assert!(before.starts_with("compressed grain at 0x"), "{before}");
    assert_eq!(after, "compressed grain at 0x600");
}
