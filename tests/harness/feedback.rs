//! The feedback is a pure function of the input, and the committed seeds cover its counters.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use test_support::prelude::*;

use qcowfuzz::disk::observer::{Event, Observer, Rare, State, Vital};
use qcowfuzz::formats::rare_events;
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Implementation;
use qcowfuzz::harness::engine::claims::{EnginePolicy, SizePolicy};
use qcowfuzz::internal::findings::log::Log;
use qcowfuzz::internal::fuzzing::feedback::layout::{Counter, events_of, schema_hash};

/// All targets, observed by one recorder.
struct Targets {
    recorder: Rc<Recorder>,
    targets: [Harness; TargetKind::ALL.len()],
}

impl Targets {
    fn new() -> Self {
        Self::of(&small_writer::implementation(None))
    }

    fn of(implementation: &Implementation) -> Self {
        let recorder = Rc::new(Recorder::new());
        let create =
            |kind: TargetKind| kind.create(implementation, FileNames::default(), recorder.clone());
        Self { targets: TargetKind::ALL.map(create), recorder }
    }

    /// Returns the counters and the result of one run.
    fn run(&mut self, target: TargetKind, input: &[u8]) -> (Vec<(usize, u8)>, String) {
        self.recorder.begin_run();
        let target = &mut self.targets[target as usize];
        let ended = format!("{:?}", target.run(input, Checks::AtCheckpoints));
        assert_eq!(self.recorder.unlisted(), None, "an event that its state does not list");
        let mut counts = Vec::new();
        self.recorder.each(|index, count| counts.push((index, count)));
        (counts, ended)
    }
}

/// Returns the committed seeds of a target: the inputs that have a text.
fn seeds(target: TargetKind) -> Vec<Vec<u8>> {
    corpus::inputs(target.name())
}

/// Returns programs of every geometry and format, and bytes that no encoder produces.
fn others() -> Vec<Vec<u8>> {
    let mut entropy = Entropy::new(17);
    let any = |rng_seed| match rng_seed % 4 {
        3 => (0..entropy.below(300)).map(|_| entropy.next_u64() as u8).collect(),
        _ => generate_any(rng_seed, 24).encode(),
    };
    (0..100).map(any).chain((0..60).map(other_format)).collect()
}

/// Returns a program in another format than qcow2, in any variety, alone or below qcow2 images.
fn other_format(rng_seed: u64) -> Vec<u8> {
    let mut program = generate_any(rng_seed, 24);
    let bases: Vec<_> = Base::other_formats().map(Base::of).collect();
    program.prologue.base = bases[rng_seed as usize % bases.len()];
    program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
    if rng_seed.is_multiple_of(2) {
        program.operations.retain(|one| !matches!(one, Operation::Overlay { .. }));
    }
    program.encode()
}

#[test]
fn counters_are_the_same_again_and_after_any_other_runs() {
    let mut entropy = Entropy::new(3);
    for target in TargetKind::of_libfuzzer() {
        let mut all = seeds(target);
        all.extend(others());
        let fresh: Vec<_> = all.iter().map(|input| Targets::new().run(target, input)).collect();
        let mut used = Targets::new();
        for at in 0..all.len() {
            assert_eq!(used.run(target, &all[at]), fresh[at]);
            assert_eq!(used.run(target, &all[at]), fresh[at], "the second time");
            for _ in 0..1 + entropy.below(3) {
                let other = entropy.below(all.len() as u64) as usize;
                // Runs another target in between.
                let targets: Vec<_> = TargetKind::of_libfuzzer().collect();
                used.run(targets[entropy.below(targets.len() as u64) as usize], &all[at]);
                assert_eq!(used.run(target, &all[other]), fresh[other]);
            }
            assert_eq!(used.run(target, &all[at]), fresh[at], "after others");
        }
    }
}

#[test]
fn a_recorder_does_not_change_results() {
    let mut alone = Harness::new(Walker::default());
    let observer = || -> Rc<dyn Observer> { Rc::new(Recorder::new()) };
    let mut observed = Harness::observed(Walker::observed(observer()), observer());
    for input in others() {
        let checks = Checks::AtCheckpoints;
        assert_eq!(alone.run(&input, checks), observed.run(&input, checks));
        assert_eq!(alone.actual(), observed.actual());
    }
}

/// Returns the counters that the committed seeds reach: with our walker, and with an engine that reports no events.
fn reached() -> BTreeSet<Counter> {
    let reached = TargetKind::of_libfuzzer().flat_map(reached_by);
    reached.chain(TargetKind::of_libfuzzer().flat_map(reached_in_silence)).collect()
}

/// Returns the counters that the committed seeds of a target reach.
fn reached_by(target: TargetKind) -> BTreeSet<Counter> {
    counters(target, Targets::new())
}

/// Returns our walker without an observer: an engine that reports no events.
fn silent() -> Implementation {
    WritingWalker::default().into()
}

/// An engine that has an answer to reads only, and says how it rounds sizes.
#[derive(Clone)]
struct Reading(SizePolicy);

impl Change for Reading {
    fn facts(&self, facts: Facts) -> Facts {
        let policy = EnginePolicy { size: self.0, ..EnginePolicy::default() };
        Facts { policy, ..facts }
    }

    fn status(&mut self, _: &mut Inner, _: GuestOffset) -> Answer<GuestRun> {
        Err(EngineError::NoAnswer)
    }

    fn map(&mut self, _: &mut Inner, _: Window, _: &mut dyn Visitor) -> Answer {
        Err(EngineError::NoAnswer)
    }

    fn report(&mut self, _: &mut Inner, _: ReportKind) -> Answer<ImageReport> {
        Err(EngineError::NoAnswer)
    }
}

/// Most engines of others have an answer to reads only, and many round sizes in their own way.
#[test]
fn reads_of_an_engine_that_only_reads_are_feedback() {
    for size in [SizePolicy::WholeSectors, SizePolicy::Near] {
        for target in [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::RawImage] {
            let name = format!("{}, {size:?}", target.name());
            let reached = counters(target, Targets::of(&Changed::walker(Reading(size)).into()));
            let reads = edges(reached, State::FileReads);
            for edge in [(Event::Start, Event::Header), (Event::Table, Event::Normal)] {
                assert!(reads.contains(&edge), "{name}: {edge:?} of {reads:?}");
            }
        }
    }
}

/// Returns the same for an engine that reports no events.
fn reached_in_silence(target: TargetKind) -> BTreeSet<Counter> {
    counters(target, Targets::of(&silent()))
}

fn counters(target: TargetKind, mut targets: Targets) -> BTreeSet<Counter> {
    let runs = seeds(target).into_iter().map(|seed| targets.run(target, &seed).0);
    runs.flatten().map(|(index, _)| Counter::at(index).unwrap()).collect()
}

/// Returns the edges in a state.
fn edges(counters: BTreeSet<Counter>, of: State) -> BTreeSet<(Event, Event)> {
    let edge = |counter: Counter| match counter {
        Counter::Edge { state, previous, event } if state == of => Some((previous, event)),
        _ => None,
    };
    counters.into_iter().filter_map(edge).collect()
}

#[test]
fn answers_about_damaged_images_and_files_are_feedback() {
    for target in [TargetKind::Hostile, TargetKind::RawImage] {
        let reached = reached_by(target);
        let name = target.name();
        let has_edge = |of: State| {
            let edge =
                |counter: &Counter| matches!(counter, Counter::Edge { state, .. } if *state == of);
            reached.iter().any(edge)
        };
        assert!(has_edge(State::Emit) && has_edge(State::Check), "{name}");
        for vital in [Vital::Extents, Vital::Reads, Vital::ReadBytes, Vital::Questions] {
            let is_high = |one: &Counter| matches!(one, Counter::Vital { vital: of, magnitude: 2.. } if *of == vital);
            assert!(reached.iter().any(is_high), "{name}: {}", vital.name());
        }
    }
    let reasons = |counters: BTreeSet<Counter>| {
        counters.into_iter().filter(|one| matches!(one, Counter::Reason(_))).count()
    };
    let found = reasons(reached_by(TargetKind::Hostile));
    assert!(found >= 10, "the seeds have {found} reasons of refusals");
    // Valid images are never refused, and the failing reads of an oracle are no faults of an image.
    let valid = reached_by(TargetKind::MapExtents);
    for rare in [Rare::OpenFails, Rare::ErrorAfterExtent] {
        assert!(!valid.contains(&Counter::Rare(rare)), "{}", rare.name());
    }
    assert_eq!(reasons(valid), 0);
}

/// The parts of the files that an engine reads and writes are feedback if it reports no events of its own.
#[test]
fn accesses_to_files_are_feedback() {
    for target in TargetKind::of_libfuzzer().filter(|it| *it != TargetKind::Refcounts) {
        let (name, has_requests) = (target.name(), target.limits().requests > 0);
        // Our walker reports events in place of its reads. Its writer reports none.
        let of_walker = edges(reached_by(target), State::FileReads);
        assert_eq!(of_walker.is_empty(), !has_requests, "{name}: {of_walker:?}");
        let reads = edges(reached_in_silence(target), State::FileReads);
        for edge in [(Event::Start, Event::Header), (Event::Directory, Event::Table)] {
            assert!(reads.contains(&edge), "{name}: {edge:?} of {reads:?}");
        }
        let moved = |of: Vital| {
            let is_moved = |one: &Counter| matches!(one, Counter::Vital { vital, magnitude: 2.. } if *vital == of);
            reached_in_silence(target).iter().any(is_moved)
        };
        let accesses = if has_requests { Vital::FileWrites } else { Vital::ReadBytes };
        assert!(moved(accesses), "{name}: {}", accesses.name());
        let writes = edges(reached_in_silence(target), State::FileWrites);
        assert_eq!(writes.is_empty(), !has_requests, "{name}");
    }
    let all: BTreeSet<_> = edges(reached(), State::FileReads).into_iter().map(|it| it.1).collect();
    // A chain does not return to its start, and our walker reads no bitmaps. It reads zeros from no zero cluster.
    let except = [Event::Start, Event::Bitmap, Event::ZeroAllocated];
    let never = |event: &&Event| !all.contains(event) && !except.contains(event);
    let never: Vec<_> = events_of(State::FileReads).iter().filter(never).collect();
    assert!(never.is_empty(), "{never:?}");
}

#[test]
fn the_seeds_fire_every_rare_event() {
    let reached = reached();
    let never = rare_events::ALL.iter().filter(|rare| !reached.contains(&Counter::Rare(**rare)));
    let never: Vec<_> = never.map(|rare| rare.name()).collect();
    assert!(never.is_empty(), "never fired: {never:?}");
}

#[test]
fn the_seeds_fire_every_event_and_move_every_vital() {
    let reached = reached();
    let (mut events, mut states, mut vitals) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut changes = BTreeSet::new();
    for counter in &reached {
        match *counter {
            Counter::Edge { state, previous, event } => {
                states.insert(state);
                events.extend([previous, event]);
            }
            Counter::Vital { vital, magnitude: 1.. } => drop(vitals.insert(vital)),
            Counter::Delta { vital, magnitude: 1.., .. } => drop(changes.insert(vital)),
            Counter::Rare(_)
            | Counter::Vital { .. }
            | Counter::Delta { .. }
            | Counter::Reason(_) => {}
            Counter::Second(answer) => panic!("{}: without a second opinion", answer.name()),
        }
    }
    let missing = |all: &[Event]| {
        all.iter().filter(|event| !events.contains(event)).map(|event| event.name()).collect()
    };
    let missing: Vec<_> = missing(Event::ALL);
    assert!(missing.is_empty(), "never happened: {missing:?}");
    assert!(states.iter().eq(State::ALL));
    // A program has one image that an engine writes.
    changes.insert(Vital::FileWrites);
    let still = |moved: &BTreeSet<Vital>| {
        Vital::ALL.iter().filter(|vital| !moved.contains(vital)).map(|vital| vital.name()).collect()
    };
    assert_eq!((still(&vitals), still(&changes)), (Vec::<&str>::new(), Vec::new()));
}

/// The walker reads the tables of each format in states of their own.
#[test]
fn each_format_has_walks_of_its_own() {
    let states = |base: Base| {
        let mut targets = Targets::new();
        let mut walked = BTreeSet::new();
        for rng_seed in 0..40 {
            let mut program = generate_any(rng_seed, 24);
            program.prologue.base = base;
            program.operations.retain(|one| !matches!(one, Operation::Overlay { .. }));
            let (counts, _) = targets.run(TargetKind::MapExtents, &program.encode());
            for (index, _) in counts {
                if let Some(Counter::Edge { state, .. }) = Counter::at(index) {
                    walked.extend(state.is_walk().then_some(state.name()));
                }
            }
        }
        walked.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(states(Base::Qcow2), ["walk L1", "walk L2"]);
    assert_eq!(states(Base::of(ImageFormat::Vpc)), ["walk blocks"]);
    assert_eq!(states(Base::of(ImageFormat::Vhdx)), ["walk block states"]);
    assert_eq!(states(Base::of(ImageFormat::Vmdk)), ["walk directory", "walk grains"]);
}

#[test]
fn counters_keep_their_places() {
    // Corpora are selected by these counters. A new event, rare event or vital changes the hash. Explain the change
    // in the commit, and write the new hash here.
    assert_eq!(format!("{:08x}", schema_hash()), "7f0d521f");
}

/// The text of a log, of which the test keeps a copy.
#[derive(Clone, Default)]
struct LogText(Arc<Mutex<String>>);

impl fmt::Write for LogText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.lock().unwrap().push_str(text);
        Ok(())
    }
}

#[test]
fn the_log_lists_the_events_that_the_counters_count() {
    for input in seeds(TargetKind::MapExtents) {
        let (log, recorder) = (Rc::new(Log::default()), Rc::new(Recorder::new()));
        let printed = LogText::default();
        log.print_next_run(Box::new(printed.clone()));
        let run = |observer: Rc<dyn Observer>| {
            let walker = Walker::observed(Rc::clone(&observer));
            Harness::observed(walker, observer).run(&input, Checks::AtCheckpoints)
        };
        assert_eq!(run(log.clone()), run(recorder.clone()));
        log.end_run();
        let printed = printed.0.lock().unwrap();
        assert!(!printed.contains("more entries"), "{printed}");
        for rare in rare_events::ALL {
            let counted = recorder.count(Counter::Rare(rare));
            let lines =
                printed.lines().filter(|line| line.ends_with(&format!("rare  {}", rare.name())));
            assert_eq!(lines.count().min(255), usize::from(counted), "{}", rare.name());
        }
    }
}
