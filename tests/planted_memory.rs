//! The oracle `memory` finds an engine that allocates without measure, on valid images, damaged ones and files of any
//! content, and accepts it if its policy says so.

use std::hint::black_box;

use qcowfuzz::harness::PeakAlloc;
use qcowfuzz::harness::engine::claims::{EnginePolicy, MemoryPolicy};
use test_support::prelude::*;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Allocates `bytes` bytes for each image that the engine opens.
#[derive(Clone)]
struct Greedy {
    bytes: usize,
    policy: MemoryPolicy,
}

impl Change for Greedy {
    fn facts(&self, facts: Facts) -> Facts {
        let policy = EnginePolicy { memory: self.policy, ..EnginePolicy::default() };
        Facts { policy, ..facts }
    }

    fn begin(&mut self, _: Opening, _: &Chain) -> Answer {
        drop(black_box(Vec::<u8>::with_capacity(self.bytes)));
        Ok(())
    }
}

/// Returns the fingerprint of a run of `target`, if it finds anything.
fn found(target: TargetKind, bytes: usize, policy: MemoryPolicy) -> Option<String> {
    let program = "image version=3 cluster_bits=16 refcount_order=4 features=none size=1<<16+0 rng_seed=0 \
                   blocks=append table=append tolerance=0\nwrite at=start+0 clusters=1\n";
    let input = match target {
        TargetKind::RawImage => vec![0; 512],
        _ => assemble(program).unwrap().encode(),
    };
    let change = Greedy { bytes, policy };
    let mut target = match target.limits().requests {
        0 => target.judging(Changed::walker(change)),
        _ => target.judging(Changed::writer(change)),
    };
    let ran = target.run(&input, Checks::AtCheckpoints);
    ran.err().map(|failure| failure.violation.fingerprint())
}

#[test]
fn an_engine_that_allocates_too_much_is_found() {
    // Planted: "257 MiB are allocated for each image".
    const FOUND: Option<&str> = Some("memory: peak, within bounds → more");
    use TargetKind::{Hostile, HostileWrites, MapExtents, RawImage};
    for target in [MapExtents, Hostile, RawImage, HostileWrites] {
        let found = |bytes, policy| found(target, bytes, policy);
        assert_eq!(found(257 << 20, MemoryPolicy::default()).as_deref(), FOUND, "{target:?}");
        assert_eq!(found(100 << 20, MemoryPolicy::default()), None, "{target:?}");
        assert_eq!(found(257 << 20, MemoryPolicy::NotJudged), None, "{target:?}");
        assert_eq!(found(9 << 20, MemoryPolicy::AtMost(8 << 20)).as_deref(), FOUND, "{target:?}");
    }
}
