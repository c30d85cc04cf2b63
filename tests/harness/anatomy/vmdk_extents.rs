//! The anatomy of VMDK images in several files.

use qcowfuzz::formats::anatomy::{EVERYTHING, Part};
use qcowfuzz::internal::images::files::LayerFile;
use qcowfuzz::internal::images::layer_anatomy::LayerAnatomy;
use test_support::prelude::*;

use super::bytes_of;

/// All files of the image, the descriptor first.
const FILES: [LayerFile; 5] = [
    LayerFile::Image,
    LayerFile::Extent(0),
    LayerFile::Extent(1),
    LayerFile::Extent(2),
    LayerFile::Extent(3),
];

/// A disk of 40 grains in four files: flat, seSparse, ESX, sparse. Each has one stored grain at least.
fn program(attack: &str) -> Program {
    let text = format!(
        "image version=3 cluster_bits=12 refcount_order=4 features=none size=40<<12+0 rng_seed=0 \
         blocks=append table=append tolerance=0 base=vmdk
         extent kind=flat length=1<<3 lead=2
         extent kind=se_sparse length=1<<3 lead=0
         extent kind=vmfs_sparse length=1<<2 lead=0
         extent kind=sparse length=1<<0 lead=0
         write at=start+6 clusters=4
         write at=start+17 clusters=1
         write at=start+20 clusters=1
         write at=start+30 clusters=2
         {attack}"
    );
    assemble(&text).unwrap()
}

/// Passes the built files and their anatomies to `take`.
fn built<T>(program: &Program, take: impl FnOnce(&Images, &LayerAnatomy) -> T) -> T {
    let mut harness = Harness::new(Walker::default());
    harness.build(&program.encode());
    let mut anatomy = LayerAnatomy::default();
    anatomy.read(harness.images().top()).unwrap();
    take(harness.images(), &anatomy)
}

/// Passes the files to `take` after the attacks of a program. The oracles of the target `hostile` must agree with them.
fn damaged<T>(program: &Program, take: impl FnOnce(&Images) -> T) -> T {
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    if let Err(failure) = hostile.run(&program.encode(), Checks::AtCheckpoints) {
        panic!("{}\n{program}", failure.violation);
    }
    take(hostile.pipeline().images())
}

fn bytes(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image.length_bytes()).unwrap()];
    image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
    bytes
}

fn part_word(part: Part) -> &'static str {
    match part {
        Part::Header => "header",
        Part::Table => "table",
        Part::Directory => "directory",
        part => panic!("{part:?}"),
    }
}

/// Each element of each file can be attacked, and no other byte changes.
#[test]
fn attacks_reach_the_files_of_extents() {
    let mut hit = [0; FILES.len()];
    for part in [Part::Header, Part::Directory, Part::Table] {
        let all = built(&program(""), |_, anatomy| {
            anatomy.files().map(|(_, anatomy)| anatomy.of(part).len()).sum::<usize>()
        });
        assert!(all > 3, "{part:?}: {all} elements");
        for nth in 0..all {
            let attack = format!(
                "patch part={} depth=0 nth={} transform=flip value=0",
                part_word(part),
                2 * nth
            );
            let attacking = program(&attack);
            let (file, element, before) = built(&attacking, |images, anatomy| {
                let (file, element) = anatomy.element(part, 2 * nth as u16).unwrap();
                let before = FILES.map(|file| bytes(images.top().file(file)));
                (file, element, before)
            });
            let after =
                damaged(&attacking, |images| FILES.map(|file| bytes(images.top().file(file))));
            for ((place, before), after) in FILES.into_iter().zip(before).zip(after) {
                let mut expected = before;
                if place == file {
                    expected[element.at.get() as usize] ^= 1;
                }
                assert!(expected == after, "{attack}, {file:?}, {element:?}, {place:?}");
            }
            hit[FILES.iter().position(|it| *it == file).unwrap()] += 1;
        }
    }
    // The descriptor has only lines, and flat extents have nothing. The others have 32, 8 and 14 fields of headers. The
    // sparse extent has two directories.
    assert_eq!(hit, [0, 0, 32 + 1 + 2, 8 + 1 + 1, 14 + 2 * (1 + 3)]);
}

/// Entries map the guest bytes of the disk, not those of their extent.
#[test]
fn entries_of_extents_map_the_disk() {
    built(&program(""), |_, anatomy| {
        let all: usize = anatomy.files().map(|(_, it)| it.of(Part::Table).len()).sum();
        let guests: Vec<_> = (0..all)
            .map(|nth| anatomy.element(Part::Table, 2 * nth as u16).unwrap())
            .filter(|(_, element)| !element.guest.is_empty())
            .map(|(file, element)| (file, element.guest.start >> 12))
            .collect();
        let [_, _, se_sparse, esx, sparse] = FILES;
        let expected =
            [(se_sparse, 8), (se_sparse, 9), (esx, 17), (sparse, 20), (sparse, 30), (sparse, 31)];
        assert_eq!(guests, expected);
    });
}

/// The elements of the descriptor are those that the image had before its extents had an anatomy, and pointers of
/// attacks on it count these alone.
#[test]
fn attacks_on_the_descriptor_keep_their_meaning() {
    let attack = "patch part=metadata depth=0 nth=40 transform=structure value=21";
    let (file, target, other) = built(&program(""), |_, anatomy| {
        let (file, target) = anatomy.element(Part::Metadata, 40).unwrap();
        let all: Vec<_> = anatomy.of_file(LayerFile::Image).unwrap().elements().collect();
        assert!(all.iter().all(|it| it.part == Part::Metadata && it.guest == EVERYTHING));
        (file, target, all[21 % all.len()].clone())
    });
    assert_eq!(file, LayerFile::Image);
    damaged(&program(attack), |images| {
        let after: [u8; 8] = bytes_of(&images.top().image, target.at.get());
        let mask = u64::MAX >> (64 - 8 * u32::from(target.width_bytes));
        let sector = other.at.get() / 512;
        assert_eq!(u64::from_le_bytes(after) & mask, sector & mask);
    });
}

/// Entries of seSparse extents keep their type if an attack sets their number.
#[test]
fn numbers_of_sesparse_entries_have_a_type() {
    let attack = "patch part=table depth=0 nth=0 transform=past_end value=5";
    let at = built(&program(""), |_, anatomy| {
        let (file, element) = anatomy.element(Part::Table, 0).unwrap();
        assert_eq!((file, element.width_bytes), (LayerFile::Extent(1), 8));
        element.at.get()
    });
    damaged(&program(attack), |images| {
        let extent = images.top().file(LayerFile::Extent(1));
        let entry = u64::from_le_bytes(bytes_of(extent, at));
        let end = extent.length_bytes().div_ceil(1 << 12);
        assert_eq!((entry >> 60, entry & 0xffff_ffff_ffff), (3, end + 5));
    });
}
