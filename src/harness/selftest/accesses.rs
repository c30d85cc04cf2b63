//! Measures whether the accesses of an engine to the files depend on the images alone: the harness asks one engine the
//! same about the same images three times, the last time in the reverse order, and compares the traces. Does not notice
//! accesses that vary only with other questions or images.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::disk::extent::Window;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::claims::{Claim, Claims};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{AccessFeedback, Answer, Engine, EngineError, Request, failure};
use crate::harness::files::chain::Chain;
use crate::harness::files::meter::{FileAccess, MAX_ACCESSES, Meter};
use crate::harness::oracles::bounds::Collector;
use crate::harness::{Harness, Walker};
use crate::images::files::Images;
use crate::programs::generate::generate_any;
use crate::programs::text::assemble;

use super::images::plain_images;

/// The number of generated programs whose images are asked about, beside the plain images, and of their operations.
const GENERATED: u64 = 16;
const PROGRAM_OPERATIONS: usize = 16;
/// The number of bytes of a read and of a write.
const PLACE_BYTES: u64 = 512;
/// The highest number of steps of a walk.
const WALK_STEPS: u64 = 1 << 16;

/// How the accesses of an engine depend on the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// There are none: the engine reads the files in another way, or opens no image.
    NoAccesses,
    /// The same accesses in the same order.
    Ordered,
    /// The same accesses in any order.
    Unordered,
    /// Other accesses each time, or those of several threads.
    Random,
}

/// A declaration about accesses, and the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessCheck {
    /// The engine had the images open for writing.
    pub writing: bool,
    /// The declaration of the engine.
    pub declared: AccessFeedback,
    /// The measurement. There is none if the engine panicked.
    pub measured: Option<AccessOrder>,
}

impl AccessCheck {
    /// Returns the declaration that fits the measurement. Any fits an engine without accesses.
    pub fn fitting(&self) -> AccessFeedback {
        match self.measured {
            None | Some(AccessOrder::NoAccesses) => self.declared,
            Some(AccessOrder::Ordered) => AccessFeedback::Ordered,
            Some(AccessOrder::Unordered) => AccessFeedback::Parts,
            Some(AccessOrder::Random) => AccessFeedback::None,
        }
    }

    /// Reports whether the engine declares more than it keeps. A campaign would report runs that are not the same.
    pub fn is_wrong(&self) -> bool {
        self.declared as u8 > self.fitting() as u8
    }
}

/// Measures the accesses of new engines: for reading, and for writing if they write.
pub(super) fn check(create: &dyn Fn() -> Box<dyn Engine>) -> Vec<AccessCheck> {
    let facts = create().facts();
    let sides = [
        (false, facts.reads, images_within(&facts.claims)),
        (true, facts.writes(), images_within(&facts.write_claims())),
    ];
    let checked = sides.into_iter().map(|(writing, declared, images)| {
        // The engine is not used again.
        let measure = AssertUnwindSafe(|| {
            let mut engine = TestedEngine::new(create(), facts.clone());
            measure(&mut engine, &images, writing)
        });
        let measured = catch_unwind(measure).map_err(|panic| failure::pass_on(&*panic)).ok();
        AccessCheck { writing, declared, measured }
    });
    // An engine that does not write has no accesses then.
    checked.filter(|it| !it.writing || it.measured != Some(AccessOrder::NoAccesses)).collect()
}

/// Builds the plain images and the images of some generated programs, each in its own harness. Returns those that an
/// engine with these claims supports.
fn images_within(claims: &Claims) -> Vec<Harness> {
    let plain = plain_images().filter_map(|image| assemble(&image.text()).ok());
    let programs = plain.chain((0..GENERATED).map(|seed| generate_any(seed, PROGRAM_OPERATIONS)));
    let built = programs.filter_map(|program| {
        let mut harness = Harness::new(Walker::default());
        harness.build(&claims.fold(&program.encode()));
        (claims.about(harness.vm().features()) == Claim::Yes).then_some(harness)
    });
    built.collect()
}

/// Asks an engine about all images, again, and in the reverse order, and compares the accesses.
fn measure(engine: &mut TestedEngine, built: &[Harness], writing: bool) -> AccessOrder {
    let mut traces = |built: &mut dyn Iterator<Item = &Harness>| -> Vec<EngineTrace> {
        built.map(|harness| EngineTrace::of(engine, harness.images(), writing)).collect()
    };
    let first = traces(&mut built.iter());
    if first.iter().all(|trace| trace.accesses.is_empty() && !trace.has_several_threads) {
        return AccessOrder::NoAccesses;
    }
    let again = traces(&mut built.iter());
    let mut last = traces(&mut built.iter().rev());
    last.reverse();
    let pairs = || first.iter().zip(&again).chain(first.iter().zip(&last));
    if first.iter().any(|trace| trace.has_several_threads) {
        AccessOrder::Random
    } else if pairs().all(|(one, other)| one == other) {
        AccessOrder::Ordered
    } else if pairs().all(|(one, other)| one.has_same_set(other)) {
        AccessOrder::Unordered
    } else {
        AccessOrder::Random
    }
}

/// The accesses of an engine while it answers about one image.
#[derive(Debug, PartialEq)]
struct EngineTrace {
    accesses: Vec<FileAccess>,
    has_several_threads: bool,
}

impl EngineTrace {
    /// Asks an engine about an image. Its answers do not matter.
    fn of(engine: &mut TestedEngine, images: &Images, writing: bool) -> Self {
        let meter = Arc::new(Meter::default());
        let chain = match writing {
            true => Chain::metered(images, &meter).writable(None, false),
            false => Chain::metered(images, &meter),
        };
        engine.begin_run();
        meter.begin_trace(None);
        let _ = match writing {
            true => write(engine, &chain),
            false => read(engine, &chain),
        };
        let has_several_threads = meter.traces_several_threads();
        Self { accesses: meter.end_trace(), has_several_threads }
    }

    /// Reports whether two traces have the same accesses, in any order and any number. The first accesses of a longer
    /// trace depend on its order, so it is never compared, nor reported.
    fn has_same_set(&self, other: &Self) -> bool {
        let is_cut = |trace: &Self| trace.accesses.len() >= MAX_ACCESSES;
        let set = |trace: &Self| {
            let mut keys: Vec<_> = trace.accesses.iter().map(ToString::to_string).collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        is_cut(self) || is_cut(other) || set(self) == set(other)
    }
}

/// Walks a disk, and asks about some places.
fn read(engine: &mut TestedEngine, chain: &Chain) -> Answer {
    let mut disk = engine.open(chain)?;
    let size = disk.virtual_size_bytes();
    let _ = disk.map(Window::ALL, &mut Collector::new(&mut Vec::new(), WALK_STEPS));
    let mut bytes = [0; PLACE_BYTES as usize];
    for (place, length) in places(size) {
        let _ = disk.status(place);
        let _ = disk.read(place, &mut bytes[..length]);
    }
    disk.close()
}

/// Writes to some places of a disk.
fn write(engine: &mut TestedEngine, chain: &Chain) -> Answer {
    let mut disk = engine.open_to_write(chain)?;
    let size = disk.virtual_size_bytes();
    let bytes = [0x5A; PLACE_BYTES as usize];
    for (place, length) in places(size) {
        disk.request(&Request::Write { guest: place, bytes: &bytes[..length] })?;
    }
    match disk.request(&Request::Flush) {
        Ok(()) | Err(EngineError::NoAnswer) => disk.close(),
        error => error,
    }
}

/// Returns some places of a disk, with the number of bytes there.
fn places(size_bytes: u64) -> impl Iterator<Item = (GuestOffset, usize)> {
    let last = size_bytes.saturating_sub(PLACE_BYTES);
    let starts = [last, 0, size_bytes / 2, size_bytes / 3].into_iter().map(move |it| it.min(last));
    let length = size_bytes.min(PLACE_BYTES) as usize;
    starts.filter(move |_| length > 0).map(move |start| (GuestOffset::new(start), length))
}

impl fmt::Display for AccessOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAccesses => "none",
            Self::Ordered => "the same in every run",
            Self::Unordered => "the same in every run, but in another order",
            Self::Random => "not the same in every run",
        })
    }
}

/// Returns the declaration in words.
fn words(declared: AccessFeedback) -> &'static str {
    match declared {
        AccessFeedback::None => "no feedback",
        AccessFeedback::Parts => "feedback without their order",
        AccessFeedback::Ordered => "feedback",
    }
}

/// For example `file reads: the same in every run; declared and fitting: feedback`.
impl fmt::Display for AccessCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question = if self.writing { "accesses of a writer" } else { "accesses of a reader" };
        let Some(measured) = self.measured else {
            return write!(f, "{question}: not measured, because of a panic");
        };
        let [declared, fitting] = [self.declared, self.fitting()].map(words);
        write!(f, "{question}: {measured}; declared: {declared}")?;
        match declared == fitting {
            true => Ok(()),
            false if self.is_wrong() => write!(f, "; WRONG, expected: {fitting}"),
            false => write!(f, "; fitting: {fitting}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::engine::{Facts, Opened};
    use crate::harness::selftest::{SelfTest, self_test};

    /// Our walker, which reads some more bytes of the image when it opens it.
    struct Odd {
        walker: Walker,
        opened: u64,
        /// Returns the offsets of these reads, if this many images were opened before.
        more: fn(u64) -> Vec<u64>,
        reads: AccessFeedback,
        in_thread: bool,
    }

    impl Engine for Odd {
        fn facts(&self) -> Facts {
            Facts { claims: Claims::ALL, reads: self.reads, ..Facts::new("odd") }
        }

        fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
            for offset in (self.more)(self.opened) {
                let read = || chain.image().read_exact_at(offset, &mut [0]);
                match self.in_thread {
                    true => std::thread::scope(|scope| scope.spawn(read).join().unwrap())?,
                    false => read()?,
                }
            }
            self.opened += 1;
            self.walker.open(chain)
        }
    }

    fn checked(more: fn(u64) -> Vec<u64>, reads: AccessFeedback, in_thread: bool) -> AccessCheck {
        let create = move || -> Box<dyn Engine> {
            Box::new(Odd { walker: Walker::default(), opened: 0, more, reads, in_thread })
        };
        let [check] = check(&create)[..] else { panic!("the engine does not write") };
        check
    }

    #[test]
    fn each_order_of_accesses_is_measured() {
        let measured = |more| {
            let [honest, boasting] = [AccessFeedback::None, AccessFeedback::Ordered]
                .map(|reads| checked(more, reads, false));
            assert_eq!(honest.measured, boasting.measured);
            (honest.measured.unwrap(), honest.is_wrong(), boasting.is_wrong())
        };
        assert_eq!(measured(|_| vec![]), (AccessOrder::Ordered, false, false));
        assert_eq!(measured(|_| vec![8, 4]), (AccessOrder::Ordered, false, false));
        let unordered = |opened| if opened % 3 == 0 { vec![8, 4] } else { vec![4, 8] };
        assert_eq!(measured(unordered), (AccessOrder::Unordered, false, true));
        assert_eq!(measured(|opened| vec![opened]), (AccessOrder::Random, false, true));
        // An engine that keeps a cache from run to run.
        let first_only = |opened| if opened == 0 { vec![4] } else { vec![] };
        assert_eq!(measured(first_only), (AccessOrder::Random, false, true));
        let of_threads = checked(|_| vec![4], AccessFeedback::Ordered, true);
        assert_eq!((of_threads.measured, of_threads.is_wrong()), (Some(AccessOrder::Random), true));
    }

    /// An engine that declares nothing about its accesses, and keeps a byte of the first image.
    #[derive(Default)]
    struct Keeping {
        walker: Walker,
        first: Option<u8>,
        forgets: bool,
    }

    impl Engine for Keeping {
        fn facts(&self) -> Facts {
            Facts { claims: Claims::ALL, ..Facts::new("keeping") }
        }

        fn begin_run(&mut self) {
            self.first = self.first.filter(|_| !self.forgets);
        }

        fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
            if self.first.is_none() {
                let mut byte = [0];
                chain.image().read_exact_at(4, &mut byte)?;
                self.first = Some(byte[0]);
            }
            self.walker.open(chain)
        }
    }

    #[test]
    fn an_engine_that_declares_nothing_is_measured_too() {
        for forgets in [false, true] {
            let checks = check(&|| Box::new(Keeping { forgets, ..Keeping::default() }));
            let [reader] = &checks[..] else { panic!("the engine does not write") };
            assert_eq!((reader.declared, reader.is_wrong()), (AccessFeedback::Ordered, !forgets));
            let is_named = reader.to_string().ends_with("; WRONG, expected: no feedback");
            assert_eq!(is_named, !forgets, "{reader}");
            // The exit code of the command follows from it, although all answers are right.
            let answers = self_test(&|| Box::new(Walker::default()));
            assert_eq!(SelfTest { accesses: checks, ..answers }.passed(), forgets);
        }
    }

    /// An engine that copies the files, and reads nothing else.
    #[cfg(feature = "fuzzer")]
    struct Copying(crate::harness::ChainFiles);

    #[cfg(feature = "fuzzer")]
    impl Engine for Copying {
        fn facts(&self) -> Facts {
            Facts::new("copying")
        }

        fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
            self.0.write(chain)?;
            Err(EngineError::untyped("no disk"))
        }
    }

    #[test]
    #[cfg(feature = "fuzzer")]
    fn copies_of_the_files_are_no_accesses() {
        let checks = check(&|| Box::new(Copying(Default::default())));
        let [reader] = &checks[..] else { panic!("the engine does not write") };
        assert_eq!(reader.measured, Some(AccessOrder::NoAccesses));
        assert!(!reader.is_wrong());
    }

    #[test]
    fn a_line_names_the_declaration_that_fits() {
        use AccessFeedback as Declared;
        use AccessOrder::{Ordered, Unordered};
        for (writing, declared, measured, expected) in [
            (
                false,
                Declared::Ordered,
                Some(Ordered),
                "reader: the same in every run; declared: feedback",
            ),
            (
                false,
                Declared::None,
                Some(Ordered),
                "reader: the same in every run; declared: no feedback; fitting: feedback",
            ),
            (
                true,
                Declared::Ordered,
                Some(Unordered),
                "writer: the same in every run, but in another order; declared: feedback; \
                 WRONG, expected: feedback without their order",
            ),
            (true, Declared::Ordered, None, "writer: not measured, because of a panic"),
        ] {
            let check = AccessCheck { writing, declared, measured };
            assert_eq!(check.to_string(), format!("accesses of a {expected}"));
        }
    }
}
