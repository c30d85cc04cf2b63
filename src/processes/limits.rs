//! Limits of a process that runs inputs: the CPU time of a run, and the address space. The process itself enforces
//! them.
//!
//! The limit is CPU time, because a run on a loaded machine may take any time on the clock without being a hang. The
//! process that supervises the runs waits ten times as long on the clock. This ends runs that wait for ever without
//! using CPU time.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// A run may take this many times its CPU time on the clock.
const WALL_CLOCK_FACTOR: u32 = 10;

/// The limits of a process that runs inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// The CPU time of a run. A process whose run exceeds it ends with the signal `SIGXCPU`.
    pub cpu_time: Duration,
    /// The address space in MiB. A larger allocation fails. 0 is no limit.
    pub memory_mib: u64,
}

/// The name of the option with the CPU time of a run in milliseconds.
pub(crate) const CPU_OPTION: &str = "--cpu-milliseconds";
/// The name of the option with the address space in MiB.
pub(crate) const MEMORY_OPTION: &str = "--memory-mib";

/// Counts the runs of a process, so that the limit holds for each run by itself.
#[derive(Clone, Debug, Default)]
pub struct RunCounter(Arc<AtomicU64>);

impl RunCounter {
    /// Begins the next run.
    pub fn begin_run(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl ProcessLimits {
    /// Returns the options of a command that enforces these limits.
    pub fn options(&self) -> [OsString; 4] {
        let milliseconds = self.cpu_time.as_millis().to_string();
        [
            CPU_OPTION.into(),
            milliseconds.into(),
            MEMORY_OPTION.into(),
            self.memory_mib.to_string().into(),
        ]
    }

    /// Returns the time on the clock after which the supervisor ends a run.
    pub fn wall_clock(&self) -> Duration {
        self.cpu_time.saturating_mul(WALL_CLOCK_FACTOR)
    }

    /// Sets the limits of this process. The CPU time of a run counts from the last call of [`RunCounter::begin_run`].
    ///
    /// # Errors
    /// The system refuses the limit of the address space.
    pub fn enforce(self) -> io::Result<RunCounter> {
        if self.memory_mib > 0 {
            // A limit that was set before may be lower, and stays.
            let maximum = getrlimit(Resource::As).maximum;
            let bytes = self.memory_mib.saturating_mul(1 << 20);
            let current = Some(maximum.map_or(bytes, |maximum| bytes.min(maximum)));
            setrlimit(Resource::As, Rlimit { current, maximum })?;
        }
        let counter = RunCounter::default();
        let watched = counter.clone();
        std::thread::spawn(move || watch(&watched, self.cpu_time));
        Ok(counter)
    }
}

/// Ends the process when a run uses more CPU time than `limit`.
fn watch(runs: &RunCounter, limit: Duration) {
    let interval = (limit / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let mut run = (runs.0.load(Ordering::Relaxed), cpu_time());
    loop {
        std::thread::sleep(interval);
        let (number, now) = (runs.0.load(Ordering::Relaxed), cpu_time());
        if number != run.0 {
            run = (number, now);
        } else if now.saturating_sub(run.1) > limit {
            // If the signal cannot be sent, the supervisor ends the process later.
            let _ = kill_process(getpid(), Signal::XCPU);
        }
    }
}

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The clock of a process counts from 0.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
