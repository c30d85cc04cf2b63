//! What `replay`, `state` and `fuzz` run: for each fuzz target, that which the target itself runs on.

use qcowfuzz::disk::observer::Observer;
use qcowfuzz::harness::oracles::Violation;
use qcowfuzz::harness::oracles::raw::RawOutcome;
use qcowfuzz::harness::targets::{Hostile, RawImage, Refcounts};
use qcowfuzz::harness::{Checks, Failure as HarnessFailure, Harness, Outcome, Walker};
use qcowfuzz::images::files::FileNames;
use qcowfuzz::images::limits::Limits;
use qcowfuzz::programs::Program;

use super::exit::Failure;
use qcowfuzz::findings::panics;
use qcowfuzz::findings::panics::PanicNote;
use qcowfuzz::images::files::Images;
use qcowfuzz::programs::Vm;

/// The virtual machine that ran a program, and the images that the program built.
pub type Built<'b> = (&'b Vm, &'b Images);

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

    /// What its programs may cost.
    pub fn limits(self) -> Limits {
        match self {
            Self::MapExtents | Self::RawImage => Limits::WALKED,
            Self::Refcounts => Limits::ALLOCATED,
            Self::Hostile => Limits::HOSTILE,
        }
    }

    /// Refuses a target whose inputs are no programs, for the sake of `option`.
    pub fn must_run_programs(self, option: &str) -> Result<(), Failure> {
        if self == Self::RawImage {
            let name = self.name();
            let what = "has files for inputs, expected a target whose inputs are programs";
            return Err(Failure::Told(format!("{option}: {name} {what}")));
        }
        Ok(())
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
    Failure(Box<HarnessFailure>),
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
            Self::Panic(note) => Some((note.fingerprint(), note.detail.clone())),
        }
    }
}

/// A target, whose buffers are reused from input to input.
pub struct Runner<O: Observer> {
    target: Target,
    names: FileNames,
    observer: O,
    buffers: Buffers<O>,
    /// The last run panicked: what it left behind belongs to no run.
    panicked: bool,
}

/// The buffers of a target.
enum Buffers<O: Observer> {
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
        let buffers = Buffers::new(target, names.clone(), observer);
        Self { target, names, observer: observer.clone(), buffers, panicked: false }
    }

    /// Runs an input, and takes a panic of the code under test for what was found. Until the next run, what it
    /// built can still be looked at.
    pub fn run_guarded(&mut self, input: &[u8], checks: Checks) -> Found {
        if std::mem::take(&mut self.panicked) {
            self.buffers = Buffers::new(self.target, self.names.clone(), &self.observer);
        }
        let buffers = &mut self.buffers;
        panics::caught(|| buffers.run(input, checks)).unwrap_or_else(|note| {
            self.panicked = true;
            Found::Panic(note)
        })
    }

    /// The program of the last run, where inputs are programs.
    pub fn program(&self) -> Option<&Program> {
        match &self.buffers {
            Buffers::MapExtents(harness) => Some(harness.program()),
            Buffers::Refcounts(refcounts) => Some(refcounts.program()),
            Buffers::Hostile(hostile) => Some(hostile.program()),
            Buffers::RawImage(_) => None,
        }
    }

    /// What was built last, where images are built.
    pub fn built(&self) -> Option<Built<'_>> {
        match &self.buffers {
            Buffers::MapExtents(harness) => Some((harness.vm(), harness.images())),
            Buffers::Refcounts(refcounts) => Some((refcounts.vm(), refcounts.images())),
            Buffers::Hostile(hostile) => Some((hostile.vm(), hostile.images())),
            Buffers::RawImage(_) => None,
        }
    }

    /// How many operations had run when the last run ended; of files, none.
    pub fn operations_run(&self) -> usize {
        match &self.buffers {
            Buffers::MapExtents(harness) => harness.operations_run(),
            Buffers::Refcounts(refcounts) => refcounts.operations_run(),
            Buffers::Hostile(hostile) => hostile.operations_run(),
            Buffers::RawImage(_) => 0,
        }
    }
}

impl<O: Observer + Clone> Buffers<O> {
    fn new(target: Target, names: FileNames, observer: &O) -> Self {
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
}
