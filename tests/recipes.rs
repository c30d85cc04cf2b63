//! The target `recipes` finds readers that are wrong about images that QEMU made and changed: by the bytes that the
//! commands wrote, and by QEMU's answers. Each fault is our walker with one wrong answer.

use test_support::prelude::*;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::internal::recipes::draw;

/// The number of bytes that choose a recipe.
const INPUT_BYTES: usize = 384;

/// Returns the bytes that choose a recipe.
fn input(seed: u64) -> Vec<u8> {
    let mut entropy = Entropy::new(seed);
    (0..INPUT_BYTES).map(|_| entropy.next_u64() as u8).collect()
}

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The data of the layers below are lost: holes.
    LosesLayersBelow,
    /// The engine has no map, and reads zeros only.
    ReadsZeros,
    /// A snapshot is the active disk.
    OpensActiveDisk,
    /// VMDK images with a parent are refused.
    RefusesParents,
    /// Each read panics.
    Panics,
}

/// Panics: the crate of the function is that of this test.
#[inline(never)]
fn reads_nothing() {
    panic!("planted");
}

#[derive(Clone, Debug)]
struct Faulty(Walker, Option<Fault>);

struct FaultyDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    fault: Option<Fault>,
}

/// All extents.
struct All(Vec<Extent>);

impl Visitor for All {
    fn extent(&mut self, extent: Extent) -> ControlFlow<()> {
        self.0.push(extent);
        ControlFlow::Continue(())
    }
}

impl Engine for Faulty {
    fn facts(&self) -> Facts {
        self.0.facts()
    }

    fn begin_run(&mut self) {
        self.0.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let Self(walker, fault) = self;
        let (fault, format) = (*fault, chain.format());
        if fault == Some(Fault::RefusesParents)
            && format == ImageFormat::Vmdk
            && chain.layers().len() > 1
        {
            return Err(EngineError::untyped("parents are not supported".to_string()));
        }
        Ok(Box::new(FaultyDisk { disk: walker.open(chain)?, fault }))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        match self.1 {
            Some(Fault::OpensActiveDisk) => self.0.open(chain),
            _ => self.0.open_snapshot(chain, index),
        }
    }
}

impl FaultyDisk<'_> {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl OpenDisk for FaultyDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        if self.is(Fault::ReadsZeros) {
            return Err(EngineError::NoAnswer);
        }
        if !self.is(Fault::LosesLayersBelow) {
            return self.disk.map(window, visitor);
        }
        let mut all = All(Vec::new());
        self.disk.map(window, &mut all)?;
        let mut merged: Vec<Extent> = Vec::new();
        for mut extent in all.0 {
            if extent.mapping.depth > 0 {
                extent.mapping = Mapping::HOLE;
            }
            match merged.last_mut() {
                Some(last) if last.mapping == Mapping::HOLE && extent.mapping == Mapping::HOLE => {
                    last.length_bytes += extent.length_bytes;
                }
                _ => merged.push(extent),
            }
        }
        for extent in merged {
            if visitor.extent(extent).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        match self.fault {
            Some(Fault::ReadsZeros | Fault::LosesLayersBelow) => Err(EngineError::NoAnswer),
            _ => self.disk.status(guest),
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.disk.read(guest, into)?;
        if self.is(Fault::Panics) {
            reads_nothing();
        }
        if self.is(Fault::ReadsZeros) {
            into.fill(0);
        }
        if self.is(Fault::LosesLayersBelow) {
            let mut all = All(Vec::new());
            self.disk.map(Window::ALL, &mut all)?;
            let (from, until) = (guest.get(), guest.get() + into.len() as u64);
            for extent in all.0.iter().filter(|extent| extent.mapping.depth > 0) {
                let start = extent.start.get().clamp(from, until);
                let end = (extent.start.get() + extent.length_bytes).clamp(from, until);
                into[(start - from) as usize..(end - from) as usize].fill(0);
            }
        }
        Ok(())
    }
}

/// Returns the finding of an engine with a fault.
fn finding(fault: Option<Fault>, seed: u64) -> Option<String> {
    let mut target = TargetKind::Recipes.judging(Faulty(Walker::default(), fault));
    let found = target.run(&input(seed), Checks::default()).err();
    found.map(|failure| failure.violation.fingerprint())
}

/// Each fault with its name, a recipe that shows it, and the finding.
const FAULTS: [(Fault, &str, u64, &str); 5] = [
    (Fault::LosesLayersBelow, "the layers below are lost", 18, "known_bytes: byte, data → zeros"),
    (
        Fault::LosesLayersBelow,
        "the layers below are lost",
        22,
        "qemu: map: kind, normal → unallocated",
    ),
    (Fault::ReadsZeros, "all bytes are zeros", 0, "known_bytes: byte, data → zeros"),
    (
        Fault::OpensActiveDisk,
        "a snapshot is the active disk",
        305,
        "against snapshot: data, unallocated → other bytes",
    ),
    (
        Fault::RefusesParents,
        "VMDK parents are refused",
        21,
        "qemu: open, opened → refused (parents are not supported)",
    ),
];

#[test]
fn wrong_readers_are_found_and_the_walker_is_right() {
    for (fault, name, seed, expected) in FAULTS {
        assert_eq!(finding(Some(fault), seed).as_deref(), Some(expected), "{name}");
        assert_eq!(finding(None, seed), None, "{name}");
    }
}

/// Both are known in recipes with certain commands only: a violation, and a panic.
#[test]
fn findings_are_known_in_certain_recipes_only() {
    let _silence = PanicNotes::take_over();
    for (fault, fingerprint) in [
        (Fault::ReadsZeros, "known_bytes: byte, data → zeros"),
        (Fault::Panics, "panic: recipes, reads_nothing"),
    ] {
        let ran = |recipes: &str| {
            let text = format!(
                "[[finding]]\nfingerprint = '{fingerprint}'\nreason = 'a test'\nrecipes = [['{recipes}']]\n\
                 [[finding]]\nfingerprint = 'qemu: *'\nreason = 'a test'\n"
            );
            let engine = Faulty(Walker::default(), Some(fault));
            let known = KnownFindings::parse(&text).unwrap();
            let implementation = Implementation::from(engine).knowing(known);
            let names = FileNames::default();
            let mut runner =
                Runner::new(&implementation, TargetKind::Recipes, names, no_observer());
            let ran = runner.run(&input(0), Checks::default());
            let met = runner.met().iter().any(|met| met.known == fingerprint);
            (ran.finding().map(|finding| finding.fingerprint), met)
        };
        let (finding, met) = ran("qemu-img create *");
        assert!(met && (finding.is_none() || fault == Fault::Panics), "{finding:?}");
        assert_eq!(ran("qemu-img frobnicate *"), (Some(fingerprint.to_string()), false));
    }
}

/// Images of recipes lie in several folders, and name each other from one to the other.
#[test]
fn images_in_several_folders_are_judged() {
    let names_folder = |seed: &u64| {
        let recipe = draw::recipe_of_bytes(&input(*seed));
        let mut commands = recipe.steps.iter().flat_map(|step| &step.commands);
        commands.any(|command| command.to_string().contains(" -b ../"))
    };
    let seed = (0..500).find(names_folder).unwrap();
    let mut target = TargetKind::Recipes.judging(Walker::default());
    let outcome = target.run(&input(seed), Checks::default()).unwrap();
    assert!(outcome.second.compared > 0, "{outcome:?}");
}

#[test]
fn the_same_input_gives_the_same_outcome() {
    let mut target = TargetKind::Recipes.judging(Walker::default());
    let mut run = |seed| target.run(&input(seed), Checks::default()).unwrap();
    let first = run(2);
    run(3);
    assert_eq!(run(2), first);
    assert!(first.images > 1 && first.second.compared > 1, "{first:?}");
}
