//! The CPU time of a campaign: of QEMU's processes, of those of the program under test, and of the campaign itself.
//!
//! The system counts the time of a process with all its threads, and with the children for which it has waited. The
//! campaign gets it when it waits for the process itself. The clock of a process would leave out the children of a
//! shell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Counts the CPU time of processes, in nanoseconds.
#[derive(Debug, Default)]
pub struct CpuCounters {
    qemu: AtomicU64,
    tested: AtomicU64,
}

impl CpuCounters {
    /// Adds the time of a process of QEMU.
    pub(super) fn add_qemu(&self, time: Duration) {
        add(&self.qemu, time);
    }

    /// Adds the time of a process of the program under test.
    pub(super) fn add_tested(&self, time: Duration) {
        add(&self.tested, time);
    }

    /// Returns the times so far, with that of this process.
    pub fn seconds(&self) -> CpuSeconds {
        let seconds = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / 1e9;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let harness = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
        CpuSeconds { qemu: seconds(&self.qemu), tested: seconds(&self.tested), harness }
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanoseconds, Ordering::Relaxed);
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// The processes of QEMU.
    pub qemu: f64,
    /// The processes of the program under test.
    pub tested: f64,
    /// The campaign itself.
    pub harness: f64,
}

impl CpuSeconds {
    /// Returns the names of the three, and their shares of the whole from 0 to 1.
    pub fn shares(&self) -> [(&'static str, f64); 3] {
        let all = (self.qemu + self.tested + self.harness).max(1e-9);
        [
            ("QEMU's processes", self.qemu / all),
            ("the program under test", self.tested / all),
            ("the campaign itself", self.harness / all),
        ]
    }
}
