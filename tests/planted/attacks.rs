//! The oracle `hostile` judges the undamaged parts of attacked VHD, VHDX and VMDK images, and only these: a walker with
//! a bug is found if the bug concerns a block that no attack has touched.

use test_support::prelude::*;

/// A wrong host offset for the data of one block: its guest bytes.
#[derive(Clone)]
struct WrongAbout(std::ops::Range<u64>);

/// The distance between the wrong offset and the right one.
const DISTANCE: u64 = 1 << 40;

impl Change for WrongAbout {
    fn facts(&self, facts: Facts) -> Facts {
        Facts { claims: Claims::ALL, ..facts }
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answer {
        disk.map(window, &mut |mut extent: Extent| {
            if self.0.contains(&extent.start.get()) {
                extent.mapping.offset = extent.mapping.offset.map(|right| right + DISTANCE);
            }
            visitor.extent(extent)
        })
    }

    fn status(&mut self, _: &mut Inner, _: GuestOffset) -> Answer<GuestRun> {
        Err(EngineError::NoAnswer)
    }
}

/// Returns the fingerprint that the walker with the wrong block `wrong` gets for an image in which an attack exchanges
/// the entries of two other blocks, 2 and 5.
fn found(base: &str, block_bytes: u64, wrong: u64) -> Option<String> {
    let program = assemble(&format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=12<<20+0 rng_seed=0 \
         blocks=append table=append tolerance=0 {base}
         write at=start+2 clusters=1
         write at=start+5 clusters=1
         write at=start+8 clusters=1
         patch part=table depth=0 nth=0 transform=swap value=0"
    ));
    let block = wrong * block_bytes..(wrong + 1) * block_bytes;
    let mut hostile = TargetKind::Hostile.judging(Changed::walker(WrongAbout(block)));
    let judged = hostile.run(&program.unwrap().encode(), Checks::AtCheckpoints);
    match judged {
        Ok(outcome) => {
            assert_eq!((outcome.refused, outcome.failed, outcome.unsupported), (0, 0, false));
            None
        }
        Err(failure) => Some(failure.violation.fingerprint()),
    }
}

#[test]
fn blocks_that_no_attack_touches_are_judged() {
    let bases = [
        ("base=vpc", 512),
        ("base=vhdx", 1 << 20),
        ("base=vmdk", 512),
        ("base=vmdk form=24", 512),
        ("base=vdi", 1 << 20),
    ];
    for (base, block_bytes) in bases {
        let found = |wrong| found(base, block_bytes, wrong);
        assert_eq!(found(8).as_deref(), Some("hostile: offset, normal → normal"), "{base}");
        // The attack may have changed the mapping of these two.
        assert_eq!([found(2), found(5)], [None, None], "{base}");
        // The disk has no data there.
        assert_eq!(found(3), None, "{base}");
    }
}
