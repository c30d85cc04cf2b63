//! The target `hostile` judges data and statuses in the parts of an image that no attack has touched: also of an engine
//! that does not map, and also if the program makes no attack.

use test_support::prelude::*;

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

/// An engine with a fault. It maps the disk only if `maps`.
#[derive(Clone)]
struct Planted {
    maps: bool,
    fault: Fault,
}

impl Change for Planted {
    fn facts(&self, facts: Facts) -> Facts {
        Facts { claims: Claims::ALL, ..facts }
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        disk.read(guest, into)?;
        if self.fault == Fault::ReadsZeros {
            into.fill(0);
        }
        Ok(())
    }

    fn status(&mut self, disk: &mut Inner, guest: GuestOffset) -> Answer<GuestRun> {
        match self.fault {
            Fault::SeesHoles if guest.get() < disk.virtual_size_bytes() => {
                Ok(GuestRun { length_bytes: 1, status: GuestStatus::Hole })
            }
            _ => disk.status(guest),
        }
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answer {
        match self.maps {
            true => disk.map(window, visitor),
            false => Err(EngineError::NoAnswer),
        }
    }
}

/// Returns the fingerprints that the target `hostile` gets for an engine.
fn found(maps: bool, fault: Fault, inputs: &[Vec<u8>]) -> Vec<String> {
    let mut hostile = TargetKind::Hostile.judging(Changed::walker(Planted { maps, fault }));
    let runs = inputs.iter().filter_map(|input| hostile.run(input, Checks::AtCheckpoints).err());
    runs.map(|failure| failure.violation.fingerprint()).collect()
}

#[test]
fn an_engine_without_a_fault_passes() {
    for target in [TargetKind::Hostile, TargetKind::MapExtents] {
        for maps in [false, true] {
            assert_eq!(
                found(maps, Fault::None, &corpus::inputs(target.name())),
                Vec::<String>::new()
            );
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
            let found = found(maps, fault, &corpus::inputs(target.name()));
            let count = found.iter().filter(|it| *it == expected).count();
            assert!(count >= least, "{maps} {fault:?}, {}: {count} of {found:?}", target.name());
        }
    }
}
