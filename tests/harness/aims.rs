//! The mutations that aim change what the engine under test reads, also where our walker reads nothing.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::harness::Implementation;
use qcowfuzz::harness::cases::tracer::{AccessedRange, Tracer};
use qcowfuzz::internal::fuzzing::mutators::{
    FileContext, MUTATIONS, MutationContext, Weights, mutate_file, mutate_program,
};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::prelude::*;

/// Also reads one refcount when it opens an image: the one of [`CLUSTER`].
#[derive(Clone)]
struct Counting {
    reads: AccessFeedback,
    panics: bool,
}

impl Change for Counting {
    fn facts(&self, facts: Facts) -> Facts {
        Facts { claims: Claims::ALL, reads: self.reads, ..facts }
    }

    fn begin(&mut self, _: Opening, chain: &Chain) -> Answer {
        let number = |at: u64| -> Answer<u64> {
            let mut bytes = [0; 8];
            chain.image().read_exact_at(at, &mut bytes)?;
            Ok(u64::from_be_bytes(bytes))
        };
        let block = number(number(48)?)?;
        // The counts of the test have two bytes.
        chain.image().read_exact_at(block.saturating_add(CLUSTER * 2), &mut [0; 2])?;
        assert!(!self.panics, "planted");
        Ok(())
    }
}

/// The cluster whose count the engine reads, behind those that the mutation tries in any case.
const CLUSTER: u64 = 100;

fn counting(reads: AccessFeedback, panics: bool) -> Implementation {
    Changed::walker(Counting { reads, panics }).into()
}

/// Returns the weights with which only the mutation of that name is chosen.
fn only(name: &str) -> Weights {
    std::array::from_fn(|place| u64::from(MUTATIONS[place].name == name))
}

/// Returns a program whose image has more than 100 clusters, one after the other.
fn program() -> Program {
    let image = "image version=3 cluster_bits=12 refcount_order=4 features=none size=400<<12+0 rng_seed=0 \
                 blocks=append table=append tolerance=0";
    let write = |at| format!("write at=start+{at} clusters=16");
    let lines: Vec<_> =
        [image.to_string()].into_iter().chain((0..8).map(|n| write(n * 20))).collect();
    assemble(&lines.join("\n")).unwrap()
}

/// Returns the refcounts that the mutation patches, by their indices among those that are not zero.
fn patched_counts(implementation: &Implementation) -> BTreeSet<u16> {
    let sound = program();
    let input = sound.encode();
    let mut tracer = Tracer::new(implementation, TargetKind::Hostile);
    let mut counts = BTreeSet::new();
    for rng_seed in 0..200 {
        let mutated = |tracer: &mut Tracer| {
            let mut program = sound.clone();
            let trace = &mut || tracer.trace(&input, Checks::AtCheckpoints);
            let (entropy, limits) = (Entropy::new(rng_seed), Limits::HOSTILE);
            let mut context =
                MutationContext { entropy, limits, most: 64, other: None, sound: true, trace };
            mutate_program(&mut program, &mut context, &only("accessed entry"));
            program
        };
        let program = mutated(&mut tracer);
        // A mutation depends on the input and the seed, and not on the runs before.
        if rng_seed < 8 {
            assert_eq!(mutated(&mut Tracer::new(implementation, TargetKind::Hostile)), program);
        }
        for operation in program.operations.iter().skip(sound.operations.len()) {
            if let Operation::Patch { part: Part::RefcountBlock, nth, .. } = operation {
                counts.insert(nth / 2);
            }
        }
    }
    counts
}

#[test]
fn a_refcount_that_only_the_engine_reads_is_attacked() {
    let own = patched_counts(&counting(AccessFeedback::Ordered, false));
    assert!(own.contains(&(CLUSTER as u16)), "{own:?}");
    // Our walker reads no refcounts: of those, the mutation tries only the first.
    for implementation in [
        Implementation::our_walker(),
        counting(AccessFeedback::None, false),
        counting(AccessFeedback::Ordered, true),
    ] {
        let counts = patched_counts(&implementation);
        assert!(!counts.is_empty() && counts.iter().all(|nth| *nth < 64), "{counts:?}");
    }
}

#[test]
fn an_engine_is_run_only_where_its_accesses_are_feedback() {
    let input = program().encode();
    let traced = |implementation: &Implementation, kind| {
        Tracer::new(implementation, kind).trace(&input, Checks::AtCheckpoints)
    };
    let ordered = counting(AccessFeedback::Ordered, false);
    for kind in [TargetKind::MapExtents, TargetKind::Hostile] {
        let accessed = traced(&ordered, kind).unwrap();
        let is_count = |it: &AccessedRange| it.bytes.end - it.bytes.start == 2 && it.depth == 0;
        assert!(accessed.iter().any(is_count), "{}: {accessed:?}", kind.name());
        assert_eq!(traced(&counting(AccessFeedback::None, false), kind), None);
        // Its events say more, and the mutation walks with it.
        assert_eq!(traced(&Implementation::our_walker(), kind), None);
    }
    assert_eq!(traced(&ordered, TargetKind::Refcounts), None);
    // The small writer reports no events.
    let written = traced(&small_writer::implementation(None), TargetKind::Writes);
    assert!(written.is_some_and(|accessed| accessed.len() > 3));
}

/// An engine that reads the magic number, one number inside of the guest data, and nothing else.
#[derive(Clone)]
struct Far;

const FAR: std::ops::Range<usize> = 5000..5004;

struct FarDisk;

impl Engine for Far {
    fn facts(&self) -> Facts {
        Facts::new("far")
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        chain.image().read_exact_at(0, &mut [0; 8])?;
        chain.image().read_exact_at(FAR.start as u64, &mut [0; 4])?;
        Ok(Box::new(FarDisk))
    }
}

impl OpenDisk for FarDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        0
    }
}

/// Returns the file of that image.
fn file() -> Vec<u8> {
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program().encode());
    let mut bytes = vec![0; image.length_bytes() as usize];
    image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
    bytes
}

/// Returns the places of the bytes that the mutations of files with these weights change.
fn changed_places(implementation: &Implementation, weights: &Weights) -> Vec<usize> {
    let file = file();
    let mut tracer = Tracer::new(implementation, TargetKind::RawImage);
    let mut changed = Vec::new();
    for rng_seed in 0..200 {
        let mut child = file.clone();
        let trace = &mut || tracer.trace(&file, Checks::AtCheckpoints);
        let (entropy, other, max_bytes) = (Entropy::new(rng_seed), &file[..], file.len());
        let mut context = FileContext { entropy, other, max_bytes, sound: true, trace };
        mutate_file(&mut child, &mut context, weights);
        assert_eq!(child.len(), file.len());
        changed.extend((0..file.len()).filter(|at| child[*at] != file[*at]));
    }
    changed
}

#[test]
fn only_bytes_of_a_file_that_the_engine_reads_are_changed() {
    let places = changed_places(&Far.into(), &only("file accessed"));
    assert!(places.iter().all(|at| *at < 8 || FAR.contains(at)), "{places:?}");
    let far = places.iter().filter(|at| FAR.contains(at)).count();
    assert!(far > 10 && places.len() - far > 50, "{far} of {}", places.len());
    // A mutation that knows nothing about the engine hits the number only by luck.
    let places = changed_places(&Far.into(), &only("file word"));
    assert!(places.len() > 100 && !places.iter().any(|at| FAR.contains(at)));
}

#[test]
fn our_walker_is_an_engine_that_reads_files() {
    let places = changed_places(&Implementation::our_walker(), &only("file accessed"));
    let (mut header, mut tables) = (0, 0);
    for at in &places {
        header += usize::from(*at < 112);
        tables += usize::from(*at >= 4096);
    }
    assert!(header > 50 && tables > 50, "{header} and {tables} of {}", places.len());
}
