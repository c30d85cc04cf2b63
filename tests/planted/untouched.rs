//! The target `hostile` judges data and statuses in the parts of an image that no attack has touched: also of an engine
//! that does not map, and also if the program makes no attack.

use std::fs;
use std::path::Path;

use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Walker};
use qcowfuzz::prelude::*;

/// A fault of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// All reads return zeros.
    ReadsZeros,
    /// The status of all bytes is that of a hole.
    SeesHoles,
}

/// Our walker with a fault. It maps the disk only if `maps`.
struct Planted {
    walker: Walker,
    maps: bool,
    fault: Fault,
}

struct PlantedDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    maps: bool,
    fault: Fault,
}

impl Engine for Planted {
    fn facts(&self) -> Facts {
        Facts { claims: Claims::ALL, ..Facts::new("planted") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let Self { maps, fault, .. } = *self;
        Ok(Box::new(PlantedDisk { disk: self.walker.open(chain)?, maps, fault }))
    }
}

impl OpenDisk for PlantedDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.disk.read(guest, into)?;
        if self.fault == Fault::ReadsZeros {
            into.fill(0);
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        match self.fault {
            Fault::SeesHoles if guest.get() < self.disk.virtual_size_bytes() => {
                Ok(GuestRun { length_bytes: 1, status: GuestStatus::Hole })
            }
            _ => self.disk.status(guest),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        match self.maps {
            true => self.disk.map(window, visitor),
            false => Err(EngineError::NoAnswer),
        }
    }
}

/// Returns the committed seeds of a target.
fn seeds(target: TargetKind) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name());
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Returns the fingerprints that the target `hostile` gets for an engine.
fn found(maps: bool, fault: Fault, inputs: &[Vec<u8>]) -> Vec<String> {
    let mut hostile =
        TargetKind::Hostile.judging(Planted { walker: Walker::default(), maps, fault });
    let runs = inputs.iter().filter_map(|input| hostile.run(input, Checks::AtCheckpoints).err());
    runs.map(|failure| failure.violation.fingerprint()).collect()
}

#[test]
fn an_engine_without_a_fault_passes() {
    for target in [TargetKind::Hostile, TargetKind::MapExtents] {
        for maps in [false, true] {
            assert_eq!(found(maps, Fault::None, &seeds(target)), Vec::<String>::new());
        }
    }
}

#[test]
fn wrong_answers_about_untouched_parts_are_found() {
    let zeros = "hostile: normal, what was written → zeros";
    for (maps, fault, expected) in [
        // Planted: "an engine without map reads only zeros".
        (false, Fault::ReadsZeros, zeros),
        // Planted: "an engine with the right map reads only zeros".
        (true, Fault::ReadsZeros, zeros),
        // Planted: "an engine without map sees only holes".
        (false, Fault::SeesHoles, "hostile: status, normal → hole"),
    ] {
        // The seeds of the other target make no attack.
        for (target, least) in [(TargetKind::Hostile, 20), (TargetKind::MapExtents, 60)] {
            let found = found(maps, fault, &seeds(target));
            let count = found.iter().filter(|it| *it == expected).count();
            assert!(count >= least, "{maps} {fault:?}, {}: {count} of {found:?}", target.name());
        }
    }
}
