//! Explanations of small programs with known effects.

use crate::disk::image_format::ImageFormat;
use crate::formats::anatomy::Part;
use crate::harness::Walker;
use crate::harness::oracles::qcow2::recount::Role;
use crate::programs::Effect;
use crate::programs::text::assemble;

use super::*;

const IMAGE: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";

fn encoded(operations: &str) -> Vec<u8> {
    assemble(&format!("{IMAGE}{operations}")).unwrap().encode()
}

fn explained(operations: &str) -> Explanation {
    explain(&encoded(operations), Limits::WALKED, usize::MAX, &FileNames::default())
}

fn walked(explanation: &Explanation) -> (Vec<Extent>, Option<String>) {
    let ExplainedWalk { extents, ended, .. } =
        walk(&mut Walker::default(), &Chain::new(explanation.built.files().1));
    (extents, ended)
}

fn changes(explanation: &Explanation) -> Vec<Vec<String>> {
    let printed = |step: &Step| step.changes.iter().map(ToString::to_string).collect();
    explanation.steps.iter().map(printed).collect()
}

#[test]
fn operations_are_explained_with_their_changes() {
    let explanation = explained(
        "write at=end-1 clusters=9
         zero at=end-1 clusters=2 keep=yes
         write at=past+3 clusters=1
         zero at=start+20 clusters=3 keep=no
         snapshot
         walk at=start+1 inside=5 length=1<<63
         discard at=start+9 clusters=1
         place policy=first",
    );
    // The operands are clamped to the disk of 64 clusters. Two changes are listed as one if the second continues the
    // first.
    let steps = changes(&explanation);
    assert_eq!(steps[0], ["guest 0x3e000+0x2000 data at host 0x3000+0x2000"]);
    assert_eq!(steps[1], ["guest 0x3e000+0x2000 zeros at host 0x3000+0x2000"]);
    assert_eq!(steps[2], ["guest 0x3000+0x1000 data at host 0x5000+0x1000"]);
    assert_eq!(steps[3], ["guest 0x14000+0x3000 zeros"]);
    assert_eq!(steps[4], ["snapshot taken"]);
    assert_eq!(steps[5], ["walk of guest 0x1005+0x8000000000000000"]);
    assert!(steps[6].is_empty() && steps[7].is_empty());
    let effects: Vec<_> = explanation.steps.iter().map(|step| step.effect.unwrap()).collect();
    assert_eq!(
        (effects[5], effects[6], effects[7]),
        (Effect::Asked, Effect::None, Effect::Changed)
    );
    let counters: Vec<_> = explanation.steps.iter().map(|step| step.counter).collect();
    assert_eq!(counters[..3], [20, 28, 36]);
}

#[test]
fn operands_are_clamped_where_the_journal_says_nothing() {
    let explanation = explained(
        "reserve gap=3<<2
         bitmap granularity=9 flags=auto name=1
         fill_bitmap index=7 entry=5 entries=9 fill=bits
         spare table=2 l1=9<<0
         beyond table=0 distance=5 clusters=9 kind=data
         delete_bitmap index=9 leaving=nothing
         end_file end=zeros tail=9<<1",
    );
    let steps = changes(&explanation);
    assert_eq!(steps[0], ["clusters: 12"]);
    // The table has only one entry.
    assert_eq!(steps[2], ["bitmap: 0", "entry: 0", "entries: 1"]);
    assert_eq!(steps[3], ["refcount table clusters: 2", "L1 entries: 9"]);
    assert_eq!(steps[4], ["guest cluster: 69", "clusters: 9"]);
    assert_eq!(steps[5], ["bitmap: 0"]);
    assert_eq!(steps[6], ["bytes of tail: 18"]);
}

#[test]
fn an_operation_that_continues_the_last_one_is_explained_alone() {
    // Both operations map neighbouring clusters to data that no write produced, so the journal has one record for both.
    let line = "preallocate at=last+0 clusters=2\n";
    let explanation = explained(&line.repeat(2));
    let steps = changes(&explanation);
    assert_eq!(steps[0], ["guest 0x0+0x2000 data at host 0x3000+0x2000"]);
    assert_eq!(steps[1], ["guest 0x2000+0x2000 data at host 0x5000+0x2000"]);
}

#[test]
fn what_comes_behind_is_listed_and_not_run() {
    let mut input = encoded("write at=start+0 clusters=1\nwrite at=start+5 clusters=1");
    let explanation = explain(&input, Limits::WALKED, 1, &FileNames::default());
    assert_eq!(explanation.steps.len(), 2);
    assert!(explanation.steps[1].effect.is_none() && explanation.steps[1].operation.is_some());
    let there = |extent: &&Extent| extent.mapping.data;
    assert_eq!(explanation.expected.iter().filter(there).count(), 1);
    // The explanation also lists a record without a meaning.
    input[28..30].copy_from_slice(&[33, 255]);
    let explanation = explain(&input, Limits::WALKED, usize::MAX, &FileNames::default());
    assert!(explanation.steps[1].operation.is_none() && explanation.steps.len() == 2);
}

#[test]
fn every_byte_of_a_file_has_a_role_or_is_a_hole() {
    let explanation = explained(
        "write at=start+0 clusters=2
         reserve gap=5<<0
         compress at=start+4 clusters=2 shape=text skew=packed
         snapshot
         discard at=start+1 clusters=1
         write at=start+0 clusters=1",
    );
    let [file] = explanation.files.as_slice() else { panic!("{}", explanation.files.len()) };
    assert!(file.fault.is_none());
    let mut at = 0;
    for run in &file.runs {
        assert_eq!(run.bytes.start, at, "{run:?}");
        assert!(run.bytes.end > at);
        assert_eq!(run.references, run.on_disk, "the build counts right: {run:?}");
        at = run.bytes.end;
    }
    assert_eq!(at, file.length_bytes);
    let of = |role| file.runs.iter().filter(|run| run.role == role).collect::<Vec<_>>();
    assert_eq!(of(None).iter().map(|run| run.bytes.end - run.bytes.start).sum::<u64>(), 5 << 12);
    assert_eq!(of(Some(Role::Header))[0].bytes, 0..1 << 12);
    // Two compressed clusters are in one host cluster: one of the snapshot, one of the active disk.
    let [compressed] = of(Some(Role::Compressed))[..] else { panic!() };
    assert_eq!((compressed.references, &compressed.operations[..]), (4, &[2][..]));
    let writers: Vec<_> =
        of(Some(Role::Data)).iter().flat_map(|run| run.operations.clone()).collect();
    assert_eq!(writers, [0, 5]);
    // The active table lists an operation for every entry that it maps.
    let tables = of(Some(Role::L2Table));
    assert!(tables.iter().any(|run| run.operations == [0, 2, 4, 5]), "{tables:?}");
}

#[test]
fn entries_are_spelled_and_go_back_to_operations() {
    let input = encoded(
        "write at=start+0 clusters=1
         zero at=start+1 clusters=1 keep=no
         compress at=start+2 clusters=1 shape=text skew=packed",
    );
    let mut explanation = explain(&input, Limits::WALKED, usize::MAX, &FileNames::default());
    let watched = reads(&input, Limits::WALKED, usize::MAX);
    explanation.note_reads(&watched);
    let entries = &explanation.files[0].entries;
    let l2: Vec<_> = entries.iter().filter(|entry| entry.part == Part::L2).collect();
    let spelled: Vec<_> = l2.iter().map(|entry| &*entry.spelled).collect();
    assert_eq!(spelled[..2], ["COPIED, normal at 0x3000", "zero"]);
    assert!(spelled[2].starts_with("compressed at 0x4000, "), "{spelled:?}");
    let operations: Vec<_> = l2.iter().map(|entry| entry.operation).collect();
    assert_eq!(operations, [Some(0), Some(1), Some(2)]);
    assert!(l2.iter().all(|entry| entry.read));
    // A walker reads no refcounts to map a disk.
    let counted = |entry: &&ExplainedEntry| entry.part == Part::RefcountBlock;
    assert!(entries.iter().filter(counted).all(|entry| !entry.read));
    assert!(entries.iter().filter(counted).count() > 5);
    let size = entries.iter().find(|entry| entry.name == "size").unwrap();
    assert_eq!((size.value.value, &*size.spelled), (64 << 12, "262144"));
    assert!(entries.iter().all(|entry| entry.damaged.is_none()));
}

#[test]
fn damage_is_reported_beside_the_built_value() {
    let input =
        encoded("write at=start+0 clusters=2\npatch part=l2 depth=0 nth=2 transform=flip value=0");
    let explanation = explain(&input, Limits::HOSTILE, usize::MAX, &FileNames::default());
    let entries = &explanation.files[0].entries;
    assert_eq!(changes(&explanation)[1], ["on L2 table at host 0x2008"]);
    let damaged: Vec<_> = entries.iter().filter(|entry| entry.damaged.is_some()).collect();
    let [entry] = damaged[..] else { panic!("{damaged:?}") };
    let damaged = entry.damaged.as_ref().unwrap();
    assert_eq!((entry.part, entry.value.value ^ damaged.value.value), (Part::L2, 1));
    assert_eq!(damaged.spelled, "COPIED, zero, allocated at 0x4000");
    let (actual, ended) = walked(&explanation);
    assert!(ended.is_none() && actual != explanation.expected);
}

#[test]
fn every_program_is_explained() {
    use crate::programs::generate::generate_any;
    for rng_seed in 0..150 {
        let program = generate_any(rng_seed, 30);
        let input = program.encode();
        let explanation = explain(&input, Limits::WALKED, usize::MAX, &FileNames::default());
        let (actual, ended) = walked(&explanation);
        assert_eq!((actual, ended), (explanation.expected, None), "seed {rng_seed}");
        for file in &explanation.files {
            assert!(file.fault.is_none(), "seed {rng_seed}: {:?}", file.fault);
            let ends = file.runs.windows(2).all(|runs| runs[0].bytes.end == runs[1].bytes.start);
            assert!(ends, "seed {rng_seed}");
        }
    }
}

#[test]
fn files_beside_an_image_are_explained_with_their_own_operations() {
    let text =
        "image version=3 cluster_bits=12 refcount_order=4 features=none size=40<<12+0 rng_seed=0 \
                blocks=append table=append tolerance=0 base=EXTENTS
                extent kind=flat length=1<<3 lead=2
                extent kind=se_sparse length=1<<3 lead=0
                extent kind=sparse length=1<<0 lead=0
                write at=start+6 clusters=4
                write at=start+20 clusters=1";
    let base = ImageFormat::with_extents().next().unwrap().name();
    let program = assemble(&text.replace("EXTENTS", base)).unwrap();
    let built = explain(&program.encode(), Limits::WALKED, 99, &FileNames::default());
    let runs = |kind: FileKind| {
        let file = built.files.iter().find(|file| file.kind == kind).unwrap();
        assert_eq!(file.fault, None);
        let data = file.runs.iter().filter(|run| run.role == Some(Role::Data));
        data.map(|run| (run.bytes.clone(), run.operations.clone())).collect::<Vec<_>>()
    };
    assert_eq!(runs(FileKind::OtherImage), []);
    // The first two clusters of the write lie behind two unused sectors and six other clusters.
    assert_eq!(runs(FileKind::Extent(0)), [(0x6400..0x8400, vec![3])]);
    let [(in_sesparse, writers)] = &runs(FileKind::Extent(1))[..] else { panic!("not one run") };
    assert_eq!((in_sesparse.end - in_sesparse.start, writers), (0x2000, &vec![3]));
    let [(in_sparse, writers)] = &runs(FileKind::Extent(2))[..] else { panic!("not one run") };
    assert_eq!((in_sparse.end - in_sparse.start, writers), (0x1000, &vec![4]));
    let places: Vec<_> = changes(&built).into_iter().flatten().collect();
    assert!(places.iter().any(|place| place == "guest 0x6000+0x4000 data"), "{places:?}");
    // The entries have a meaning, the guest range of the disk, and the operation that wrote them.
    let stored = |kind: FileKind| {
        let file = built.files.iter().find(|file| file.kind == kind).unwrap();
        let entries = file.entries.iter().filter(|entry| entry.part == Part::Table);
        let used = entries.filter(|entry| !entry.guest.is_empty());
        used.map(|it| (it.guest.start, it.spelled.clone(), it.operation)).collect::<Vec<_>>()
    };
    let [first, second] = &stored(FileKind::Extent(1))[..] else { panic!("not two entries") };
    assert_eq!((first.0, first.2, second.0), (0x8000, Some(3), 0x9000));
    assert_eq!(first.1, format!("grain at {:#x}", in_sesparse.start));
    let [only] = &stored(FileKind::Extent(2))[..] else { panic!("not one entry") };
    assert_eq!(*only, (0x14000, format!("grain at {:#x}", in_sparse.start), Some(4)));
    assert_eq!(stored(FileKind::Extent(0)), []);
}

#[test]
fn damaged_files_are_explained() {
    use crate::disk::offsets::HostOffset;
    use crate::disk::storage::Storage;
    use crate::images::content::entropy::Entropy;
    use crate::programs::generate::generate_any;
    let mut entropy = Entropy::new(9);
    let mut faults = 0;
    for rng_seed in 0..300 {
        let program = generate_any(rng_seed, 12);
        let built = explain(&program.encode(), Limits::WALKED, 99, &FileNames::default());
        let top = &built.built.files().1.top().image;
        let mut bytes = vec![0; top.length_bytes().min(1 << 16) as usize];
        top.read_at(HostOffset::ZERO, &mut bytes).unwrap();
        let there: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        if there.is_empty() {
            // A fixed disk that has data only far behind.
            continue;
        }
        for _ in 0..1 + entropy.below(6) {
            let at = there[entropy.below(there.len() as u64) as usize];
            bytes[at] = entropy.next_u64() as u8;
        }
        let mut image = Image::default();
        image.write(HostOffset::ZERO, &bytes);
        image.seal(bytes.len() as u64);
        let view = explain_file(&image);
        faults += usize::from(view.fault.is_some());
        let follows = |runs: &[FileRun]| runs[0].bytes.end <= runs[1].bytes.start;
        assert!(view.runs.windows(2).all(follows), "seed {rng_seed}");
        let _ = walk(&mut Walker::default(), &Chain::alone(image));
    }
    assert!((20..280).contains(&faults), "{faults}");
}
