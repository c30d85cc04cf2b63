//! Folding: programs of random bytes have no feature that an engine lacks, and a folded program builds the same images
//! under any claims.

use qcowfuzz::base::features::{Feature, FeatureSet};
use qcowfuzz::harness::Pipeline;
use qcowfuzz::programs::generate::vary_extents;
use test_support::prelude::*;

const OVERLAY: &str =
    "overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same";
/// Lets an operation on the file fail, and has requests in flight.
const FAILING: &str = "write_at at=start+0 inside=0 length=1<<9\n\
                       fail_file of=write before=0 error=io failures=one\n\
                       in_flight requests=2 at_once=2 order=0";
/// The number of programs for each feature.
const PROGRAMS: u64 = 300;

/// Returns a random program of all operations that a valid image can have.
fn random_program(entropy: &mut Entropy) -> Vec<u8> {
    let records = 4 + entropy.below(40);
    let bytes: Vec<u8> = (0..20 + records * 8).map(|_| entropy.next_u64() as u8).collect();
    let mut bytes = bytes;
    // The encoding of this version.
    bytes[0] = 0;
    let mut program = Program::decode(&bytes);
    // Images in several files have the most features, and few random programs are about them.
    if entropy.one_in(4) {
        program.prologue.base = Base::of(ImageFormat::Vmdk);
    }
    match program.prologue.base {
        base if base == Base::of(ImageFormat::Vmdk) => vary_extents(&mut program, entropy),
        // Only an overlay makes a raw file of the image, and few random programs have one.
        Base::SparseRaw => program.operations.extend(lines::operations(OVERLAY)),
        // Operations of the second table are rare in random bytes.
        _ if bytes[1].is_multiple_of(16) => program.operations.extend(lines::operations(FAILING)),
        _ => return bytes,
    }
    program.encode()
}

/// Runs a program under `claims`. Returns the features of its last image, a checksum of the files, and the bytes of the
/// program that ran.
fn run(pipeline: &mut Pipeline, input: &[u8], claims: &Claims) -> (FeatureSet, u32, Vec<u8>) {
    let ran = pipeline.load(input, claims).into_owned();
    let mut features = FeatureSet::EMPTY;
    let mut judge = |case: &qcowfuzz::internal::harness::cases::case::Case| {
        features = features.with(case.features);
        Ok(())
    };
    pipeline.run(Limits::WRITTEN, Checks::AtCheckpoints, &(), &mut judge).unwrap();
    let mut hasher = crc32fast::Hasher::new();
    for files in pipeline.images().layers() {
        let beside = files.extents.all().iter().map(AsRef::as_ref);
        let all = [&files.image, &files.data_file].into_iter().chain(beside);
        for data in all.flat_map(Image::written) {
            hasher.update(&data.offset.get().to_le_bytes());
            hasher.update(data.bytes);
        }
    }
    (features, hasher.finalize(), ran)
}

#[test]
fn folded_programs_lack_the_feature() {
    let mut pipeline = Pipeline::default();
    // No valid image has to do with the limits of QEMU.
    for feature in Feature::ALL.into_iter().filter(|feature| *feature != Feature::QemuLimits) {
        let claims = Claims::ALL.no(&[feature]);
        let lacking = FeatureSet::of(&[feature]);
        let mut entropy = Entropy::new(feature as u64);
        let (mut had, mut has) = (0, 0);
        for _ in 0..PROGRAMS {
            let input = random_program(&mut entropy);
            had += u64::from(run(&mut pipeline, &input, &Claims::ALL).0.meets(lacking));
            has += u64::from(run(&mut pipeline, &input, &claims).0.meets(lacking));
        }
        assert!(had > 0, "no program has {}", feature.name());
        assert_eq!(has, 0, "programs of {PROGRAMS} that have {}", feature.name());
    }
}

#[test]
fn a_folded_program_builds_the_same_under_any_claims() {
    let mut pipeline = Pipeline::default();
    let mut entropy = Entropy::new(5);
    let mut changed = 0;
    for _ in 0..500 {
        let lacking: Vec<_> = Feature::ALL.into_iter().filter(|_| entropy.one_in(4)).collect();
        let claims = Claims::ALL.no(&lacking);
        let input = random_program(&mut entropy);
        let (features, files, folded) = run(&mut pipeline, &input, &claims);
        changed += u32::from(folded != input);
        let again = run(&mut pipeline, &folded, &claims);
        assert_eq!(again, (features, files, folded.clone()), "{}", Program::decode(&folded));
        assert_eq!(run(&mut pipeline, &folded, &Claims::ALL), (features, files, folded));
    }
    assert!(changed > 400, "{changed} of 500 programs changed");
}

/// The programs, the features that the engine lacks, and those that no folded image may have.
#[test]
fn programs_with_children_and_snapshots_are_folded_once() {
    let vmdk = |size: &str| {
        format!(
            "image version=3 cluster_bits=16 refcount_order=4 features=none size={size} rng_seed=0 \
             blocks=append table=append tolerance=0 base=vmdk form=0\n"
        )
    };
    let child = "overlay_vmdk cluster_bits=16 form=0 size=same\n";
    let extent = |kind: &str| format!("extent kind={kind} length=1<<0 lead=0\n");
    let mixed = vmdk("4<<16+0") + &extent("sparse") + child + &extent("flat");
    let large = vmdk("1<<30+0") + child;
    let back = "image version=3 cluster_bits=16 refcount_order=4 features=none size=2<<30+0 rng_seed=0 \
                blocks=append table=append tolerance=0\nsnapshot\nresize size=1<<30+0\n\
                apply_snapshot index=0\noverlay version=3 cluster_bits=16 refcount_order=4 \
                features=none data_in=image size=+1<<30\n";
    let extents = Claims::QCOW2.yes(&[Feature::Vmdk, Feature::Extents]);
    let mut pipeline = Pipeline::default();
    for (text, claims, none_of) in [
        (mixed, extents, Feature::MixedExtents),
        (large.clone(), Claims::ALL.no(&[Feature::OtherParentSize]), Feature::OtherParentSize),
        (back.to_string(), Claims::ALL.no(&[Feature::Above2G]), Feature::Above2G),
    ] {
        let input = assemble(&text).unwrap().encode();
        let (features, _, folded) = run(&mut pipeline, &input, &claims);
        assert!(!features.meets(FeatureSet::of(&[none_of])), "{}", Program::decode(&folded));
        assert_eq!(pipeline.load(&folded, &claims), folded);
    }
    // A child that does not stay bounds no disk.
    let claims = Claims::QCOW2.yes(&[Feature::Vmdk]);
    let input = assemble(&large).unwrap().encode();
    pipeline.load(&input, &claims);
    assert_eq!(pipeline.program().prologue.size, Program::decode(&input).prologue.size);
}

#[test]
fn a_small_share_of_programs_keeps_what_an_engine_may_refuse() {
    let mut pipeline = Pipeline::default();
    let mut entropy = Entropy::new(6);
    let claims = Claims::ALL.refuse_or_be_right(&[Feature::Zstd]);
    let (mut had, mut has) = (0, 0);
    for _ in 0..2000 {
        let input = random_program(&mut entropy);
        let zstd = FeatureSet::of(&[Feature::Zstd]);
        had += u32::from(run(&mut pipeline, &input, &Claims::ALL).0.meets(zstd));
        has += u32::from(run(&mut pipeline, &input, &claims).0.meets(zstd));
    }
    // One in eight, by their rng_seed.
    assert!((had / 12..had / 5).contains(&has), "{has} of {had}");
}

#[test]
fn what_no_claim_excludes_is_not_folded() {
    let mut pipeline = Pipeline::default();
    let mut entropy = Entropy::new(7);
    for _ in 0..200 {
        let input = random_program(&mut entropy);
        assert_eq!(pipeline.load(&input, &Claims::ALL), input);
        assert_eq!(*pipeline.program(), Program::decode(&input));
    }
}
