//! The output of `qcowfuzz regress` for four seeds: see `tests/cli/minimize.rs`.

/// model: kind, zero-allocated → zero-plain
///
/// Story: describe the fault, how it was found, and its fix.
#[test]
fn bug_model_kind_zero_allocated_zero_plain_1370c18a() {
    use qcowfuzz::harness::Checks;
    let text = "\
        image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 blocks=append table=append tolerance=0\n\
        write at=start+4 clusters=8\n\
        zero at=start+6 clusters=3 keep=yes\n\
        zero at=start+9 clusters=6 keep=no\n\
        discard at=start+5 clusters=1\n\
        read at=start+5 inside=65000 length=2000\n\
        walk at=start+4 inside=0 length=20<<16\n\
    ";
    let input = qcowfuzz::programs::text::assemble(text).unwrap().encode();
    let mut target = qcowfuzz::harness::Harness::new(qcowfuzz::harness::Walker::default());
    let found = target.run(&input, Checks::default()).err();
    let found = found.map(|failure| failure.violation.fingerprint());
    assert_eq!(found, None);
    // An engine may list the bug among its known findings.
    let bug = "model: kind, zero-allocated → zero-plain".to_string();
    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));
    // Guest offset, length, status, host offset.
    let extents = [
        (0, 262144, "unallocated", None),
        (262144, 65536, "normal", Some(196608)),
        (327680, 65536, "unallocated", None),
        (393216, 196608, "zero-allocated", Some(327680)),
        (589824, 393216, "zero-plain", None),
        (983040, 5570560, "unallocated", None),
    ];
    let actual: Vec<_> = target
        .actual()
        .iter()
        .map(|it| {
            let host = it.mapping.offset.map(|offset| offset.get());
            let kind = it.mapping.kind();
            (it.start.get(), it.length_bytes, kind, host)
        })
        .collect();
    assert_eq!(actual, extents);
}

/// refcounts: refcount block, the references → fewer
///
/// Story: describe the fault, how it was found, and its fix.
#[test]
fn bug_refcounts_refcount_block_the_references_fewer_28274946() {
    use qcowfuzz::harness::Checks;
    let text = "\
        image version=3 cluster_bits=17 refcount_order=4 features=none size=500<<20+0 rng_seed=4 blocks=append table=mixed tolerance=0\n\
        write at=start+0 clusters=9\n\
        compress at=last+0 clusters=9 shape=speck skew=packed\n\
        snapshot\n\
        write at=start+4 clusters=3\n\
        snapshot\n\
        snapshot\n\
        reserve gap=77<<3\n\
        write at=part+40000 clusters=7\n\
        delete_snapshot index=1\n\
    ";
    let input = qcowfuzz::programs::text::assemble(text).unwrap().encode();
    let mut target = qcowfuzz::harness::targets::TargetKind::Refcounts
        .judging(qcowfuzz::harness::Walker::default());
    let found = target.run(&input, Checks::default()).err();
    let found = found.map(|failure| failure.violation.fingerprint());
    assert_eq!(found, None);
    // An engine may list the bug among its known findings.
    let bug = "refcounts: refcount block, the references → fewer".to_string();
    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));
}

/// hostile: walk, a result → a panic
///
/// Story: describe the fault, how it was found, and its fix.
#[test]
fn bug_hostile_walk_a_result_a_panic_33ffee0d() {
    use qcowfuzz::harness::Checks;
    let text = "\
        image version=3 cluster_bits=16 refcount_order=4 features=none size=300<<16+0 rng_seed=0 blocks=append table=append tolerance=0\n\
        write at=start+1 clusters=3\n\
        compress at=start+5 clusters=2 shape=text skew=packed\n\
        zero at=start+8 clusters=2 keep=yes\n\
        patch part=l2 depth=0 nth=0 transform=flip value=0\n\
        patch part=l2 depth=0 nth=2 transform=flip value=62\n\
        patch part=l2 depth=0 nth=6 transform=flip value=58\n\
        patch part=l2 depth=0 nth=8 transform=boundary value=1\n\
    ";
    let input = qcowfuzz::programs::text::assemble(text).unwrap().encode();
    let mut target = qcowfuzz::harness::targets::TargetKind::Hostile
        .judging(qcowfuzz::harness::Walker::default());
    let found = target.run(&input, Checks::default()).err();
    let found = found.map(|failure| failure.violation.fingerprint());
    assert_eq!(found, None);
    // An engine may list the bug among its known findings.
    let bug = "hostile: walk, a result → a panic".to_string();
    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));
}

/// maximal: extents, one → two
///
/// Story: describe the fault, how it was found, and its fix.
#[test]
fn bug_maximal_extents_one_two_32c98391() {
    use qcowfuzz::harness::Checks;
    let text = "\
        file bytes=104\n\
        0x0 51 46 49 fb 00 00 00 03\n\
        0x10 00 00 00 00 00 00 00 15 00 00 00 02 40\n\
        0x20 00 00 00 00 00 00 00 01 00 00 00 00 00 20\n\
        0x30 00 00 00 00 00 60 00 00 00 00 00 01\n\
        0x40 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10\n\
        0x60 00 00 00 06 00 00 00 68\n\
    ";
    let input = qcowfuzz::findings::file_text::parse(text).unwrap();
    let mut target = qcowfuzz::harness::targets::TargetKind::RawImage
        .judging(qcowfuzz::harness::Walker::default());
    let found = target.run(&input, Checks::default()).err();
    let found = found.map(|failure| failure.violation.fingerprint());
    assert_eq!(found, None);
    // An engine may list the bug among its known findings.
    let bug = "maximal: extents, one → two".to_string();
    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));
}
