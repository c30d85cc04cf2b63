//! The limits of time, and the clock of a process that has one.

use std::time::{Duration, Instant};

use super::process::Process;

/// The time between two looks at the CPU time.
const TICK: Duration = Duration::from_millis(100);

/// The time that a process may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// The time on the clock.
    Clock(Duration),
    /// The CPU time, because a machine may be busy. A process that waits for something would wait forever, so the time
    /// in which it neither uses the CPU nor prints anything is bounded, too.
    Cpu { used: Duration, idle: Duration },
}

/// The clock of a process.
pub(super) struct Clock {
    limit: TimeLimit,
    start: Instant,
    looked: Instant,
    /// The CPU time at the first look, and at the last.
    cpu: Option<(Duration, Duration)>,
    progressed: Instant,
}

impl Clock {
    pub(super) fn new(limit: TimeLimit) -> Self {
        let start = Instant::now();
        Self { limit, start, looked: start, cpu: None, progressed: start }
    }

    /// Records that the process has printed something.
    pub(super) fn progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// Returns the time after which to look at the clock again.
    pub(super) fn interval(&self) -> Duration {
        match self.limit {
            TimeLimit::Clock(limit) => limit.saturating_sub(self.start.elapsed()),
            TimeLimit::Cpu { .. } => TICK,
        }
    }

    /// Reports whether the time of the process is over.
    pub(super) fn is_over(&mut self, process: &Process) -> bool {
        let (limit, idle) = match self.limit {
            TimeLimit::Clock(limit) => return self.start.elapsed() >= limit,
            TimeLimit::Cpu { .. } if self.looked.elapsed() < TICK => return false,
            TimeLimit::Cpu { used, idle } => (used, idle),
        };
        self.looked = Instant::now();
        let mut spent = Duration::ZERO;
        // A system without the count has only the other limit.
        if let Some(now) = process.cpu_time() {
            let (first, last) = *self.cpu.get_or_insert((now, now));
            if now > last {
                (self.cpu, self.progressed) = (Some((first, now)), self.looked);
            }
            spent = now.saturating_sub(first);
        }
        spent >= limit || self.looked.duration_since(self.progressed) >= idle
    }
}
