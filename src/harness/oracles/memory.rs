//! The memory that an engine needs for an image is bounded: opening, walking and reading allocate no more bytes at a
//! time than its policy allows. The process counts them if [`PeakAlloc`] is its global allocator; otherwise, this
//! oracle is idle. The buffers of the harness, which are small and reused, are included. Does not check memory that no
//! allocator of Rust counts.

use peak_alloc::PeakAlloc;

use crate::harness::engine::claims::MemoryPolicy;

use super::{OracleResult, violation};

const ORACLE: &str = "memory";
const MIB_BYTES: u64 = 1 << 20;

/// The memory of this process when an engine begins to work.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMeter {
    before: usize,
}

impl MemoryMeter {
    /// Begins to measure.
    pub fn begin() -> Self {
        PeakAlloc.reset_peak_usage();
        Self { before: PeakAlloc.current_usage() }
    }

    /// Checks the highest number of bytes that were allocated at a time since the beginning.
    pub fn check(self, policy: MemoryPolicy) -> OracleResult {
        let MemoryPolicy::AtMost(allowed) = policy else { return Ok(()) };
        let allocated = PeakAlloc.peak_usage().saturating_sub(self.before) as u64;
        if allocated <= allowed {
            return Ok(());
        }
        violation(ORACLE, "peak", ("within bounds", "more"), || {
            // Whole units: two runs of one input differ by some bytes, and must report the same.
            let [allocated, allowed] = [allocated, allowed].map(|bytes| bytes.div_ceil(MIB_BYTES));
            format!("{allocated} MiB were allocated at a time, {allowed} MiB allowed")
        })
    }
}
