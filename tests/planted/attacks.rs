//! The oracle `hostile` judges the undamaged parts of attacked VHD, VHDX and VMDK images, and only these: a walker with
//! a bug is found if the bug concerns a block that no attack has touched.

use std::ops::ControlFlow;

use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Walker};
use qcowfuzz::prelude::*;
use qcowfuzz::programs::text::assemble;

/// Our walker, with a wrong host offset for the data of one block.
struct WrongAbout {
    walker: Walker,
    /// The guest bytes of the block.
    block: std::ops::Range<u64>,
}

struct WrongDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    block: std::ops::Range<u64>,
}

/// The distance between the wrong offset and the right one.
const DISTANCE: u64 = 1 << 40;

impl Engine for WrongAbout {
    fn facts(&self) -> Facts {
        Facts { claims: Claims::ALL, ..Facts::new("wrong about a block") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let block = self.block.clone();
        Ok(Box::new(WrongDisk { disk: self.walker.open(chain)?, block }))
    }
}

impl OpenDisk for WrongDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let block = self.block.clone();
        let mut wrong = |mut extent: Extent| -> ControlFlow<()> {
            if block.contains(&extent.start.get()) {
                let right = extent.mapping.offset;
                extent.mapping.offset = right.map(|offset| offset + DISTANCE);
            }
            visitor.extent(extent)
        };
        self.disk.map(window, &mut wrong)
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
    let engine = WrongAbout { walker: Walker::default(), block };
    let mut hostile = TargetKind::Hostile.judging(engine);
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
