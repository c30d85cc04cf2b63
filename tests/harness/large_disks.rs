//! Disks of more than 4 GiB in VHD, VHDX and VMDK images: their cost, and engines that keep 32 bits of a guest offset.

mod narrow;

use narrow::{CASES, Narrow, NarrowEngine};
use test_support::prelude::*;

use crate::embedded::until_found;

#[test]
fn engines_with_narrow_guest_offsets_are_found() {
    for case in CASES {
        for text in case.programs() {
            let input = assemble(&text).unwrap().encode();
            let mut own = Harness::new(Walker::default());
            let run = own.run(&input, Checks::AtCheckpoints);
            let outcome = run.unwrap_or_else(|found| panic!("{}\n{text}", found.violation));
            assert_eq!(outcome.effective, 2, "{text}");
            let mut planted = Harness::new(Changed::walker(NarrowEngine::of(case)));
            let found = planted.run(&input, Checks::AtCheckpoints).unwrap_err();
            let found = found.violation.fingerprint();
            assert!(found.starts_with(case.fingerprint), "{:?}: {found}\n{text}", case.narrow);
        }
    }
}

/// The runs of the embedded loop within which each bug of reading is found from an empty corpus.
const RUNS: u64 = 12_000;

#[test]
fn the_embedded_loop_finds_narrow_guest_offsets_from_nothing() {
    for case in CASES.iter().filter(|case| case.narrow == Narrow::Read) {
        let (runs, found) = until_found(NarrowEngine::of(case), 1, RUNS);
        println!("{:?}: {runs} runs, {found:?}", case.format);
        let is_expected = |name: &String| name.starts_with("data: ");
        assert!(!found.is_empty() && found.iter().all(is_expected), "{found:?}");
    }
}

/// A disk costs what its program wrote and the tables that readers have to read. The empty part of a VHD table consists
/// of shared bytes.
#[test]
fn a_large_disk_takes_little_memory() {
    for (base, most_bytes) in [
        ("cluster_bits=21 size=1020<<31+0 base=large_vpc", 8 << 10),
        ("cluster_bits=9 size=32<<40+0 base=large_vhdx", 160 << 10),
        // The directory names all tables of 20 GiB, but not of 1 TiB.
        ("cluster_bits=16 size=20<<30+0 base=large_vmdk", 16 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk", 32 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk form=160", 16 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk form=24", 32 << 10),
    ] {
        let text = format!(
            "image version=3 refcount_order=4 features=none rng_seed=0 blocks=append table=append tolerance=0 \
             {base}\nwrite at=part+40000 clusters=1\nwrite at=end-0 clusters=1\n"
        );
        let mut harness = Harness::new(Walker::default());
        harness.run(&assemble(&text).unwrap().encode(), Checks::AtCheckpoints).unwrap();
        let layers = harness.images().layers();
        // Shared bytes, which the image refers to, count once for all images of a process.
        let owned: usize = layers.map(|layer| layer.image.owned_bytes()).sum();
        assert!(owned < most_bytes, "{base}: {owned}");
    }
}
