//! The oracle `layout` finds wrong bits in the structures of images whose format is not qcow2: the test alters one
//! structure of a program's image.

mod vhdx;
mod vmdk;
mod vmdk_extents;

use qcowfuzz::formats::anatomy::{Anatomy, Part, Structure};
use qcowfuzz::internal::harness::oracles::layout::LayoutJudge;
use qcowfuzz::internal::images::files::LayerFiles;
use test_support::prelude::*;

/// The change of a bug. It returns false if the image has no place for it.
type Plant = dyn Fn(&mut Image, &Anatomy) -> bool;
/// A bug: its name, the start of its fingerprint, and the change.
type Bug = (&'static str, &'static str, Box<Plant>);
/// The same, with a function.
type PlainBug = (&'static str, &'static str, fn(&mut Image, &Anatomy) -> bool);

/// Returns bugs whose changes are functions.
fn plain(bugs: &[PlainBug]) -> Vec<Bug> {
    bugs.iter()
        .map(|(name, start, plant)| (*name, *start, Box::new(*plant) as Box<Plant>))
        .collect()
}

const VPC_BUGS: &[PlainBug] = &[
    ("a footer has a wrong checksum", "layout: VHD footer", |image, _| {
        let last = image.length_bytes() - 512;
        // A dynamic disk may have no footer at its end.
        let at = if image.number(HostOffset::ZERO, 8) == CONECTIX { 0 } else { last };
        flip(image, at + 40)
    }),
    ("the two footers differ", "layout: VHD footers that differ, ", |image, anatomy| {
        let last = image.length_bytes() - 512;
        let both = !anatomy.of(Part::Table).is_empty()
            && image.number(HostOffset::new(last), 8) == CONECTIX;
        both && flip(image, last + 70)
    }),
    ("a dynamic header has a wrong checksum", "layout: VHD dynamic header checksum", |image, _| {
        let header = image.number(HostOffset::new(16), 8);
        image.number(HostOffset::ZERO, 8) == CONECTIX && flip(image, header + 600)
    }),
    ("two blocks lie in one place", "layout: two structures", |image, anatomy| {
        let [one, .., other] = anatomy.of(Part::Table) else { return false };
        let sector = image.number(one.at, 4) as u32;
        image.overwrite(other.at, &sector.to_be_bytes());
        true
    }),
    ("a bitmap says that the file lacks a sector", "layout: VHD bitmap", |image, anatomy| {
        anatomy.of(Part::BlockFront).first().is_some_and(|bitmap| flip(image, bitmap.at.get()))
    }),
];

/// The places of fields in the header of a VDI image.
const VDI_DATA_AT: u64 = 344;
const VDI_ALLOCATED_AT: u64 = 388;

const VDI_BUGS: &[PlainBug] = &[
    ("the signature is wrong", "layout: VDI signature", |image, _| flip(image, 64)),
    ("the identity of a parent is stated", "layout: VDI parent", |image, _| flip(image, 455)),
    ("the number of stored blocks is wrong", "layout: VDI number of stored blocks", |image, _| {
        flip(image, VDI_ALLOCATED_AT)
    }),
    ("two blocks lie in one place", "layout: two structures", |image, anatomy| {
        let [one, .., other] = stored_entries(image, anatomy)[..] else { return false };
        let block = image.number(one, 4) as u32;
        image.overwrite(other, &block.to_be_bytes());
        true
    }),
    ("a block lies past the last place", "layout: structure", |image, anatomy| {
        let [one, ..] = stored_entries(image, anatomy)[..] else { return false };
        image.overwrite(one, &(1u32 << 30).to_le_bytes());
        true
    }),
    ("the blocks begin in the block map", "layout: two structures", |image, anatomy| {
        let is_first = |structure: &&Structure| structure.part == Part::Payload;
        let lowest = anatomy.structures().iter().filter(is_first).map(|it| it.bytes.start).min();
        let begins = image.number(HostOffset::new(VDI_DATA_AT), 4) as u32;
        let begins = u64::from(u32::from_be_bytes(begins.to_le_bytes()));
        image.overwrite(HostOffset::new(VDI_DATA_AT), &512u32.to_le_bytes());
        lowest == Some(begins)
    }),
];

/// Returns the offsets of the entries of a VDI image that name a block of the file.
fn stored_entries(image: &Image, anatomy: &Anatomy) -> Vec<HostOffset> {
    let entries = anatomy.of(Part::Table).iter().map(|it| it.at);
    let block = |at| (image.number(at, 4) as u32).swap_bytes();
    entries.filter(|at| block(*at) < u32::MAX - 1).collect()
}

/// The first eight bytes of a footer.
const CONECTIX: u64 = u64::from_be_bytes(*b"conectix");

/// Changes a byte.
fn flip(image: &mut Image, at: u64) -> bool {
    let at = HostOffset::new(at);
    let changed = image.number(at, 1) as u8 ^ 1;
    image.overwrite(at, &[changed]);
    true
}

#[test]
fn every_bug_in_the_structures_of_vhd_images_is_found() {
    assert_found(Base::of(ImageFormat::Vpc), ImageFormat::Vpc, plain(VPC_BUGS));
}

#[test]
fn every_bug_in_the_structures_of_vhdx_images_is_found() {
    assert_found(Base::of(ImageFormat::Vhdx), ImageFormat::Vhdx, vhdx::bugs());
}

#[test]
fn every_bug_in_the_structures_of_vdi_images_is_found() {
    assert_found(Base::of(ImageFormat::Vdi), ImageFormat::Vdi, plain(VDI_BUGS));
}

/// The entries of sector bitmaps lie between those of blocks.
#[test]
fn programs_store_blocks_behind_the_first_sector_bitmap() {
    let count = vhdx_images_with(vhdx::has_stored_behind_bitmap);
    assert!(count >= 15, "{count}");
}

#[test]
fn programs_make_zeros_of_blocks_that_keep_their_offset() {
    let count = vhdx_images_with(vhdx::has_zeros_with_offset);
    assert!(count >= 15, "{count}");
}

/// Returns the number of programs whose VHDX image has something.
fn vhdx_images_with(has_it: fn(&Image) -> bool) -> usize {
    let mut harness = Harness::new(Walker::default());
    let images = (0..300).filter(|rng_seed| {
        harness.build(&program(Base::of(ImageFormat::Vhdx), *rng_seed).encode());
        harness.images().layers().last().is_some_and(|files| has_it(&files.image))
    });
    images.count()
}

/// Returns a generated program with a base.
fn program(base: Base, rng_seed: u64) -> Program {
    let mut program = generate_any(rng_seed, 20);
    (program.prologue.base, program.prologue.form) =
        (base, ImageForm((rng_seed as u16).wrapping_mul(0x9e37)));
    program
}

/// Plants each bug in many images.
fn assert_found(base: Base, format: ImageFormat, bugs: Vec<Bug>) {
    let mut harness = Harness::new(Walker::default());
    let (mut judge, mut anatomy) = (LayoutJudge::default(), Anatomy::default());
    let mut planted = vec![0; bugs.len()];
    for rng_seed in 0..160 {
        harness.build(&program(base, rng_seed).encode());
        let Some(files) = harness.images().layers().last() else { continue };
        assert_eq!((files.format, judge.check(files, None).err()), (format, None));
        anatomy.read(format, &files.image).unwrap();
        for ((name, expected, plant), count) in bugs.iter().zip(&mut planted) {
            let mut altered = LayerFiles::clone(files);
            if plant(&mut altered.image, &anatomy) {
                *count += 1;
                let found = judge.check(&altered, None).map_err(|it| it.fingerprint());
                let found = found.expect_err(name);
                assert!(found.starts_with(expected), "{rng_seed}: {name}: {found}");
            }
        }
    }
    assert!(planted.iter().all(|count| *count >= 15), "{planted:?}");
}
