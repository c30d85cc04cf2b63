//! The oracle `info` finds an engine that reports an image otherwise than the program meant it, and one whose check
//! finds faults in valid images. It judges only the fields that the engine states.

use qcowfuzz::harness::engine::{CheckCounts, ImageInfo};
use test_support::prelude::*;

/// The same report about every image.
#[derive(Clone)]
struct Reporting {
    info: ImageInfo,
    check: CheckCounts,
}

impl Change for Reporting {
    fn report(&mut self, _: &mut Inner, about: ReportKind) -> Answer<ImageReport> {
        Ok(match about {
            ReportKind::Info => ImageReport::Info(self.info.clone()),
            ReportKind::Check => ImageReport::Check(self.check),
        })
    }
}

const IMAGE: &str = "image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 rng_seed=0 \
                     blocks=append table=append tolerance=0 data_in=file\n\
                     overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same\n\
                     snapshot\nbitmap granularity=16 flags=none name=1\n";

/// The number of runs of a program, of which at least one asks for a check.
const SEEDS: u32 = 32;

/// Returns the fingerprint of the finding, if there is one, and the names that the images have for their files. The
/// checksum of the input decides whether a run asks for a check, so the program runs with several seeds.
fn found(text: &str, info: ImageInfo, check: CheckCounts) -> (Option<String>, [Vec<u8>; 2]) {
    let mut harness = Harness::new(Changed::walker(Reporting { info, check }));
    let ran = (0..SEEDS).try_for_each(|seed| {
        let text = text.replace("rng_seed=0", &format!("rng_seed={seed}"));
        harness.run(&assemble(&text).unwrap().encode(), Checks::AtCheckpoints).map(drop)
    });
    let layers: Vec<_> = harness.images().layers().collect();
    let names = match &layers[..] {
        [top, base] => {
            [top.declarations.backing_name.clone(), base.declarations.data_file_name.clone()]
        }
        _ => Default::default(),
    };
    (ran.err().map(|failure| failure.violation.fingerprint()), names)
}

#[test]
fn reports_are_judged_as_far_as_they_are_stated() {
    let found = |info: ImageInfo| found(IMAGE, info, CheckCounts::default());
    let (nothing, [backing, base_data_file]) = found(ImageInfo::default());
    assert_eq!(nothing, None);
    assert!(!backing.is_empty() && !base_data_file.is_empty());
    let right = ImageInfo {
        chain: Some(vec![backing.clone()]),
        data_file: Some(Vec::new()),
        snapshots: Some(1),
        bitmaps: Some(1),
    };
    assert_eq!(found(right.clone()).0, None);
    let fingerprint = |info: ImageInfo| found(info).0.unwrap();
    let wrong = |what: &str| format!("info: {what}, as meant → different");
    let info = || right.clone();
    // Planted: "the backing file is not named".
    let chain = ImageInfo { chain: Some(Vec::new()), ..info() };
    assert_eq!(fingerprint(chain), wrong("files below"));
    // Planted: "the data file of the backing file is that of the image".
    let data_file = ImageInfo { data_file: Some(base_data_file), ..info() };
    assert_eq!(fingerprint(data_file), wrong("data file"));
    // Planted: "snapshots are not counted".
    assert_eq!(fingerprint(ImageInfo { snapshots: Some(0), ..info() }), wrong("snapshots"));
    assert_eq!(fingerprint(ImageInfo { bitmaps: Some(2), ..info() }), wrong("bitmaps"));
}

/// A program in a used harness: the declarations of its images are not those of the image before.
#[test]
fn declarations_do_not_outlive_their_image() {
    let overlay = "image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 rng_seed=0 \
                   blocks=append table=append tolerance=0 base=vmdk\noverlay_vmdk cluster_bits=16 form=0 size=same\n";
    let plain = "image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 rng_seed=0 \
                 blocks=append table=append tolerance=0 base=vpc\n";
    let mut harness = Harness::new(Walker::default());
    for text in [IMAGE, overlay, plain] {
        let ran = harness.run(&assemble(text).unwrap().encode(), Checks::AtCheckpoints);
        assert!(ran.is_ok(), "{ran:?}");
        let names = harness.images().layers().map(|it| it.declarations.backing_name.clone());
        let names: Vec<_> = names.map(|name| String::from_utf8(name).unwrap()).collect();
        let expected: &[&str] = match text {
            IMAGE => &["layer.0.qcow2", ""],
            _ if text == overlay => &["layer.0.vmdk", ""],
            _ => &[""],
        };
        assert_eq!(names, expected);
        let snapshots = &harness.images().top().declarations.vm_state_bytes;
        assert_eq!(snapshots.len(), usize::from(text == IMAGE));
    }
}

#[test]
fn a_check_finds_nothing_in_a_valid_image() {
    let leaks = CheckCounts { errors: 0, leaks: 1 };
    let errors = CheckCounts { errors: 2, leaks: 1 };
    let found = |text: &str, counts| found(text, ImageInfo::default(), counts).0;
    assert_eq!(found(IMAGE, CheckCounts::default()), None);
    // Planted: "a check finds a leak in every image".
    assert_eq!(found(IMAGE, leaks).as_deref(), Some("info: check, nothing → leaks"));
    assert_eq!(found(IMAGE, errors).as_deref(), Some("info: check, nothing → errors"));
    // The check of an image that is marked as corrupt may find anything.
    let corrupt =
        format!("{IMAGE}header length=shortest order=0 unknown=0 bytes=0 flags=corrupt\n");
    assert_eq!(found(&corrupt, errors), None);
}
