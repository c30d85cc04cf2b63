//! What `replay`, `state` and `fuzz` run: for each fuzz target, that which the target itself runs on.

use qcowfuzz::engines::Walker;
use qcowfuzz::extent::Extent;
use qcowfuzz::harness::{Checks, Failure, Harness, Outcome};
use qcowfuzz::images::FileNames;
use qcowfuzz::observer::Observer;
use qcowfuzz::oracles::Violation;
use qcowfuzz::oracles::raw::RawOutcome;
use qcowfuzz::targets::{Hostile, RawImage, Refcounts};
use qcowfuzz::vm::Program;

use super::files::Built;
use super::panics::{self, PanicNote};

/// What an input is for. A target that is added here gets its arm in [`Runner`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// A program: its image is built and walked, all oracles judge
    #[default]
    #[value(name = "map_extents")]
    MapExtents,
    /// A program, with larger limits: its image is built, and only its refcounts are judged
    #[value(name = "refcounts")]
    Refcounts,
    /// A program whose image is damaged: whatever it is then, reading it stays within bounds
    #[value(name = "hostile")]
    Hostile,
    /// An image file of any content: the walker's answers are held against each other
    #[value(name = "raw_image")]
    RawImage,
}

impl Target {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MapExtents => "map_extents",
            Self::Refcounts => "refcounts",
            Self::Hostile => "hostile",
            Self::RawImage => "raw_image",
        }
    }

    /// Whether an input is a program, which builds images.
    pub fn runs_programs(self) -> bool {
        self != Self::RawImage
    }
}

/// What became of one run.
#[derive(Debug)]
pub enum Found {
    /// Nothing was found in a program.
    Nothing(Outcome),
    /// Nothing was found in a file.
    File(RawOutcome),
    /// An oracle found something in a program.
    Failure(Box<Failure>),
    /// An oracle found something in a file.
    Violation(Box<Violation>),
    /// The code under test panicked.
    Panic(PanicNote),
}

impl Found {
    /// Fingerprint and detail of what was found, if anything was.
    pub fn finding(&self) -> Option<(String, String)> {
        let violated = |it: &Violation| Some((it.fingerprint(), it.detail.clone()));
        match self {
            Self::Nothing(_) | Self::File(_) => None,
            Self::Failure(failure) => violated(&failure.violation),
            Self::Violation(violation) => violated(violation),
            Self::Panic(note) => Some((format!("panic: {}", note.file), note.detail.clone())),
        }
    }
}

/// A target's buffers, reused from input to input.
pub enum Runner<O: Observer> {
    /// Of `map_extents`.
    MapExtents(Box<Harness<Walker<O>, O>>),
    /// Of `refcounts`.
    Refcounts(Box<Refcounts<O>>),
    /// Of `hostile`.
    Hostile(Box<Hostile<Walker<O>, O>>),
    /// Of `raw_image`.
    RawImage(Box<RawImage<O>>),
}

impl<O: Observer + Clone> Runner<O> {
    /// For inputs of `target`. Images call other files by `names`; what happens is told to `observer`.
    pub fn new(target: Target, names: FileNames, observer: &O) -> Self {
        let observer = || observer.clone();
        match target {
            Target::MapExtents => {
                let harness = Harness::observed(Walker::observed(observer()), observer());
                Self::MapExtents(Box::new(harness.named(names)))
            }
            Target::Refcounts => {
                Self::Refcounts(Box::new(Refcounts::observed(observer()).named(names)))
            }
            Target::Hostile => {
                let hostile = Hostile::observed(Walker::observed(observer()), observer());
                Self::Hostile(Box::new(hostile.named(names)))
            }
            Target::RawImage => Self::RawImage(Box::new(RawImage::observed(observer()))),
        }
    }

    /// Runs an input, and takes a panic of the code under test for what was found. Whoever goes on afterwards
    /// takes a new runner: what the panic left behind belongs to no run.
    pub fn run_guarded(&mut self, input: &[u8], checks: Checks) -> Found {
        panics::caught(|| self.run(input, checks)).unwrap_or_else(Found::Panic)
    }

    /// Runs an input. A file is judged once, whatever `checks` says.
    fn run(&mut self, input: &[u8], checks: Checks) -> Found {
        let program = |run: Result<_, _>| run.map_or_else(Found::Failure, Found::Nothing);
        match self {
            Self::MapExtents(harness) => program(harness.run(input, checks)),
            Self::Refcounts(refcounts) => program(refcounts.run(input, checks)),
            Self::Hostile(hostile) => program(hostile.run(input, checks)),
            Self::RawImage(raw) => raw.run(input).map_or_else(Found::Violation, Found::File),
        }
    }

    /// The program of the last run, where inputs are programs.
    pub fn program(&self) -> Option<&Program> {
        match self {
            Self::MapExtents(harness) => Some(harness.program()),
            Self::Refcounts(refcounts) => Some(refcounts.program()),
            Self::Hostile(hostile) => Some(hostile.program()),
            Self::RawImage(_) => None,
        }
    }

    /// What was built last, where images are built.
    pub fn built(&self) -> Option<Built<'_>> {
        match self {
            Self::MapExtents(harness) => Some((harness.vm(), harness.images())),
            Self::Refcounts(refcounts) => Some((refcounts.vm(), refcounts.images())),
            Self::Hostile(hostile) => Some((hostile.vm(), hostile.images())),
            Self::RawImage(_) => None,
        }
    }

    /// The extents that were expected and those that came, where there is an expectation.
    pub fn extents(&self) -> Option<(&[Extent], &[Extent])> {
        match self {
            Self::MapExtents(harness) => Some((harness.expected(), harness.actual())),
            Self::Refcounts(_) | Self::Hostile(_) | Self::RawImage(_) => None,
        }
    }
}
