//! The assumptions of the oracle of damaged images: every field is an element, and no two elements overlap.

mod vhdx;
mod vmdk;
mod vmdk_extents;

use qcowfuzz::formats::anatomy::{Anatomy, Part};
use qcowfuzz::internal::images::damage::Transform;
use qcowfuzz::internal::programs::operand::Number;
use test_support::prelude::*;

/// Returns the image of a program after an attack that writes `value` to the element `nth` of a part.
fn attacked(program: &Program, part: Part, nth: usize, value: u16) -> Image {
    let mut program = program.clone();
    let (depth, transform, nth) = (Number::LOWEST, Transform::Set, nth as u16);
    program.operations.push(Operation::Patch { part, depth, nth, transform, value });
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    if let Err(failure) = hostile.run(&program.encode(), Checks::AtCheckpoints) {
        panic!("{}\n{program}", failure.violation);
    }
    hostile.pipeline().images().top().image.clone()
}

/// Returns `N` bytes of an image.
fn bytes_of<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    image.read_at(HostOffset::new(at), &mut bytes).unwrap();
    bytes
}

/// Returns the names of the fields of a part, in order.
fn names(anatomy: &Anatomy, part: Part) -> Vec<&'static str> {
    anatomy.of(part).iter().map(|it| it.name).collect()
}

fn ranges(anatomy: &Anatomy) -> Vec<(u64, u64, Part)> {
    let mut ranges: Vec<_> = anatomy
        .elements()
        .map(|it| (it.at.get(), it.at.get() + u64::from(it.width_bytes), it.part))
        .collect();
    ranges.sort_unstable();
    ranges
}

/// A change of one element changes no other element.
#[test]
fn elements_do_not_overlap() {
    let mut harness = Harness::new(Walker::default());
    let mut anatomy = Anatomy::default();
    let others: Vec<_> = Base::other_formats().map(Base::of).collect();
    for rng_seed in 0..400 {
        let mut program = generate_any(rng_seed, 30);
        // Many programs have another format than qcow2, in every variety.
        if let Some(base) = others.get(rng_seed as usize % 8) {
            program.operations.retain(|one| one.class() != Class::Overlays);
            program.prologue.base = *base;
            program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
        }
        harness.build(&program.encode());
        let top = harness.images().top();
        anatomy.read(top.format, &top.image).unwrap();
        let all = ranges(&anatomy);
        for pair in all.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "seed {rng_seed}: {pair:?}");
        }
    }
}

#[test]
fn every_part_of_an_image_is_found_field_by_field() {
    let program = assemble(
        "image version=3 cluster_bits=14 refcount_order=2 size=64<<20+0 rng_seed=0 \
         features=extended_l2,compression_field,feature_names,unknown_extension \
         blocks=append table=append tolerance=0
         write at=start+4 clusters=2
         compress at=start+9 clusters=1 shape=text skew=packed
         subclusters at=start+12 change=write first=1 count=2 stride=2
         snapshot
         write at=start+4 clusters=1
         bitmap granularity=16 flags=auto name=3
         fill_bitmap index=0 entry=0 entries=1 fill=ones",
    );
    let mut harness = Harness::new(Walker::default());
    let mut anatomy = Anatomy::default();
    anatomy.read(ImageFormat::Qcow2, harness.build(&program.unwrap().encode())).unwrap();
    let count = |part| anatomy.of(part).len();
    // All fields of the specification's tables, and the types and lengths of extensions.
    assert_eq!(count(Part::Header), 19);
    assert_eq!(count(Part::Snapshot), 11);
    assert_eq!(count(Part::BitmapDirectory), 7);
    assert!(count(Part::Extension) > 12);
    assert_eq!((count(Part::L1), count(Part::L2), count(Part::Bitmap)), (1, 4, 4));
    // The snapshot's L1 entry, and its L2 table, of which the active disk has a copy.
    assert_eq!(count(Part::SnapshotTable), 1 + 4);
    assert_eq!((count(Part::BitmapTable), count(Part::Payload)), (1, 1));
    assert_eq!(count(Part::RefcountTable), 1);
    // A count takes four bits, so there are about half as many bytes as clusters.
    assert!(count(Part::RefcountBlock) > 6);
    assert_eq!(anatomy.of(Part::L2)[0].guest, 4 << 14..5 << 14);
    assert_eq!(anatomy.of(Part::L1)[0].guest, 0..1 << 24);
    // An odd number is the second word, here of an empty entry.
    let beside = anatomy.element(Part::L2, 5).unwrap();
    assert_eq!(beside.guest, 10 << 14..11 << 14);
    assert_eq!(beside.at, anatomy.of(Part::L2)[2].at + 16);
    // The fields tile the header, except for the bytes that the specification reserves.
    let header = ranges(&anatomy).into_iter().filter(|it| it.2 == Part::Header);
    assert_eq!(header.map(|(start, end, _)| end - start).sum::<u64>(), 105);
}

#[test]
fn every_structure_of_a_vhd_image_is_found_and_its_checksum_is_kept_right_if_wanted() {
    let program = assemble(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0 base=vpc\nwrite at=start+3 clusters=2\n",
    );
    let mut harness = Harness::new(Walker::default());
    let mut anatomy = Anatomy::default();
    anatomy.read(ImageFormat::Vpc, harness.build(&program.unwrap().encode())).unwrap();
    let blocks: Vec<_> = anatomy.of(Part::Table).iter().map(|it| it.guest.clone()).collect();
    assert_eq!(blocks, [3 << 16..4 << 16, 4 << 16..5 << 16]);
    // Footers at both ends, the dynamic header, the table, and two blocks with their bitmaps.
    assert_eq!(anatomy.structures().len(), 3 + 1 + 2 * 2);
    let sealed = |nth| anatomy.element(Part::Header, nth).unwrap().seal.is_some();
    assert!(!sealed(0) && sealed(1));
    // The table entry after the last block is free.
    let beside = anatomy.element(Part::Table, 3).unwrap();
    assert_eq!(beside.guest, 5 << 16..6 << 16);
}
