//! Our builder is one more opinion about writing. A list of changes of whole clusters is made twice: by the build of a
//! program, and by a writer in the empty image that the same prologue builds. A guest must then see the same in both
//! images: the sizes, and for each cluster data or zeros, on the disk and in each snapshot. Data use as many clusters
//! of the file in both. The writer has freed each whole cluster that is unallocated in the build.
//!
//! Does not check: the bytes of data, which differ; changes of parts of clusters; where the file stores anything;
//! images with other files or with bitmaps. The target `writes` judges these by a model of its own.

#[path = "built_and_written/changes.rs"]
mod changes;
#[path = "built_and_written/seen.rs"]
mod seen;

use qcowfuzz::harness::against::qemu_io::QemuEngine;
use qcowfuzz::harness::files::chain::ChainFolder;
use small_writer::WriterFault;
use test_support::prelude::*;

use changes::Case;
use seen::SeenImage;

/// The number of cases: each pair of a cluster size and a width of refcounts, several times.
const CASES: u64 = 56 * 8;
/// The number of cases that QEMU writes. Each snapshot costs a process.
const QEMU_CASES: u64 = 42;
/// The number of images of the small writer that qemu-img checks.
const CHECKED_CASES: u64 = 14;
/// The most bytes of the files that QEMU checks.
const MAX_FOLDER_BYTES: u64 = 64 << 20;

/// Makes the changes of cases in both ways.
struct TwoWays {
    builder: Harness,
    writer: Harness,
}

impl TwoWays {
    fn new(implementation: impl Into<Implementation>) -> Self {
        let (names, observer) = (FileNames::default(), no_observer());
        let writer = TargetKind::Writes.create(&implementation.into(), names, observer);
        Self { builder: Harness::new(Walker::default()), writer }
    }

    /// Returns the image of the build, and the one that the writer has left.
    ///
    /// # Errors
    /// The fingerprint of a violation that the target `writes` finds.
    fn images(&mut self, case: &Case) -> Result<(Chain, Chain), String> {
        let built = Chain::alone(self.builder.build(&case.built().encode()).clone());
        let run = self.writer.run(&case.requested().encode(), Checks::AtCheckpoints);
        let outcome = run.map_err(|failure| failure.violation.fingerprint())?;
        assert!(!outcome.folded && !outcome.unsupported, "{outcome:?}");
        let requests = self.writer.pipeline().vm().requests();
        assert_eq!(requests.len(), case.changes.len(), "a bound has cut requests: {case:?}");
        Ok((built, self.writer.written().unwrap().clone()))
    }

    /// Compares both images. Returns the content of the written one.
    ///
    /// # Errors
    /// The first disagreement, or the fingerprint of a violation.
    fn compare(&mut self, case: &Case) -> Result<SeenImage, String> {
        let (built, written) = self.images(case)?;
        let (built, written) = (SeenImage::of(&built)?, SeenImage::of(&written)?);
        assert_eq!(built.hidden_clusters(), 0, "{case:?}");
        built.compare(&written)?;
        Ok(written)
    }
}

/// Requires that both images of a case agree, and counts their content. `may_hide` states that the writer may keep host
/// clusters that no disk shows.
fn judge(ways: &mut TwoWays, case: &Case, may_hide: bool, tally: &mut Tally) {
    let written = ways.compare(case).unwrap_or_else(|found| panic!("{found}: {case:?}"));
    let hidden = written.hidden_clusters();
    assert!(may_hide || hidden == 0, "{hidden} hidden clusters: {case:?}");
    tally.add("changes", case.changes.len() as u64);
    tally.add("snapshots", written.snapshots() as u64);
    tally.add("clusters of data", written.data_clusters() as u64);
    tally.add("hidden clusters", hidden);
}

#[test]
fn the_small_writer_agrees_with_the_build() {
    let mut ways = TwoWays::new(WritingWalker::default());
    let mut tally = Tally::default();
    for case in (0..CASES).map(Case::new) {
        // The specification allows entries past the end of the disk, and the small writer keeps those that a smaller
        // disk loses. The build and QEMU free their clusters: QEMU would show them in a disk that it makes larger.
        judge(&mut ways, &case, case.gets_smaller, &mut tally);
    }
    tally.assert_at_least(&[
        ("changes", 10 * CASES),
        ("snapshots", 200),
        ("clusters of data", 1000),
        ("hidden clusters", 100),
    ]);
}

#[test]
fn qemu_agrees_with_the_build() {
    let Some(()) = qemu::tools() else { return };
    let mut ways = TwoWays::new(QemuEngine::default());
    let mut tally = Tally::default();
    for number in 0..QEMU_CASES {
        let case = Case::new(number);
        let case = if number.is_multiple_of(3) { case.with_subclusters() } else { case };
        judge(&mut ways, &case, false, &mut tally);
    }
    tally.assert_at_least(&[
        ("changes", 10 * QEMU_CASES),
        ("snapshots", 15),
        ("clusters of data", 100),
        ("hidden clusters", 0),
    ]);
}

#[test]
fn qemu_img_finds_no_fault_in_either_image() {
    let Some(()) = qemu::tools() else { return };
    let mut ways = TwoWays::new(WritingWalker::default());
    let dir = tempfile::tempdir().unwrap();
    let mut folder = ChainFolder::new(dir.path(), MAX_FOLDER_BYTES);
    for number in 0..CHECKED_CASES {
        let case = Case::new(number);
        let (built, written) = ways.images(&case).unwrap();
        for image in [built, written] {
            let path = image.write_to(&mut folder).unwrap();
            let check = ["check".as_ref(), "-f".as_ref(), "qcow2".as_ref(), path.as_ref()];
            qemu::img(&check).unwrap_or_else(|found| panic!("{found}: {case:?}"));
        }
    }
}

/// Faults of the small writer, and the beginnings of the disagreements that show them.
const FAULTS: [(WriterFault, &str); 6] = [
    (WriterFault::DiscardIgnored, "guest: built zeros, written data"),
    (WriterFault::GrownTail, "guest: built zeros, written data"),
    (WriterFault::SizeNotStored, "size: "),
    (WriterFault::CopiedIgnored, "clusters of data: "),
    (WriterFault::CountNotRaised, "refcounts: "),
    (WriterFault::SnapshotNotCounted, "refcounts: "),
];
/// The lowest number of cases that show a fault. A single one could be chance.
const LEAST: usize = 2;

#[test]
fn each_planted_fault_is_found() {
    // The target finds the faults, too. Here, the build has to find them.
    let all = "[[finding]]\nfingerprint = '*: *'\nreason = 'Planted.'";
    let all = KnownFindings::parse(all).unwrap();
    for (fault, beginning) in FAULTS {
        let faulty = Implementation::from(WritingWalker::default().with_fault(fault));
        let mut ways = TwoWays::new(faulty.knowing(all.clone()));
        let found = (0..CASES).filter_map(|number| ways.compare(&Case::new(number)).err());
        let found: Vec<String> = found.take(LEAST).collect();
        assert_eq!(found.len(), LEAST, "{}", fault.name());
        assert!(found.iter().all(|it| it.starts_with(beginning)), "{}: {found:?}", fault.name());
    }
}

/// Returns the content of the image that a program builds.
fn built(operations: &str) -> SeenImage {
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=80<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0\n{operations}"
    );
    let program = assemble(&text).unwrap().encode();
    let mut harness = Harness::new(Walker::default());
    SeenImage::of(&Chain::alone(harness.build(&program).clone())).unwrap()
}

#[test]
fn each_kind_of_disagreement_is_found() {
    let write = "write at=start+3 clusters=1\n";
    for (one, other, expected) in [
        ("snapshot", "", "snapshots: built 1, written 0"),
        ("resize size=79<<9+0", "", "size: built 40448, written 40960"),
        (write, "zero at=start+3 clusters=1 keep=no", "guest: built data, written zeros"),
        ("", "preallocate at=start+3 clusters=1", "free: built without a host cluster"),
        (&format!("{write}snapshot\n{write}"), &format!("{write}snapshot"), "clusters of data: "),
    ] {
        let (one, other) = (built(one), built(other));
        assert_eq!(one.compare(&one), Ok(()));
        let found = one.compare(&other).unwrap_err();
        assert!(found.starts_with(expected), "{found}");
    }
}
