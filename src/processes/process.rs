//! A running process: how it is stopped, and how its end is found out.

use std::io;
use std::process::{Child, ChildStdin, Command};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use wait4::Wait4;

use super::end::ProcessEnd;
use super::outputs::Outputs;

/// The longest time between two checks whether a process has ended. Most end at once.
const MAX_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A process, which is stopped with this value. All processes of its group end with it, also if it ends by itself.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    shares_group: bool,
    /// The end, and the CPU time with that of the processes for which it has waited.
    ended: Option<(ProcessEnd, Duration)>,
}

impl Process {
    pub(super) fn spawn(command: &mut Command, shares_group: bool) -> io::Result<Self> {
        Ok(Self { child: command.spawn()?, shares_group, ended: None })
    }

    pub(super) fn take_outputs(&mut self) -> io::Result<Outputs> {
        Outputs::new(self.child.stdout.take(), self.child.stderr.take())
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pipe to standard input, if it is open.
    pub(super) fn input(&mut self) -> &mut Option<ChildStdin> {
        &mut self.child.stdin
    }

    /// Closes standard input.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn wait(&mut self) -> io::Result<ProcessEnd> {
        if self.ended.is_none() {
            // Others of its group live until then.
            self.has_ended(WaitIdOptions::empty())?;
        }
        self.stop()
    }

    /// Waits until the process ends, but not after `deadline`. Returns `None` if it has not ended then.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ProcessEnd>> {
        let mut interval = Duration::from_micros(20);
        while self.ended.is_none() && !self.has_ended(WaitIdOptions::NOHANG)? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(interval);
            interval = interval.saturating_mul(2).min(MAX_END_CHECK_INTERVAL);
        }
        self.stop().map(Some)
    }

    /// Reports whether the process has ended. The process stays: as long as the system keeps its number, no other group
    /// gets that.
    fn has_ended(&self, options: WaitIdOptions) -> io::Result<bool> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let id = Pid::from_child(&self.child);
        Ok(retry_on_intr(|| waitid(WaitId::Pid(id), options))?.is_some())
    }

    /// Stops the process with all that it has started, unless it has ended. Returns its end.
    ///
    /// # Errors
    /// The system cannot wait for the process.
    pub(crate) fn stop(&mut self) -> io::Result<ProcessEnd> {
        if let Some((end, _)) = self.ended {
            return Ok(end);
        }
        let pid = Pid::from_child(&self.child);
        // Each fails if all processes have ended already.
        let _ = match self.shares_group {
            true => kill_process(pid, Signal::KILL),
            false => kill_process_group(pid, Signal::KILL),
        };
        self.has_ended(WaitIdOptions::empty())?;
        let reaped = self.child.wait4()?;
        let end = ProcessEnd::of(reaped.status);
        self.ended = Some((end, reaped.rusage.utime.saturating_add(reaped.rusage.stime)));
        Ok(end)
    }

    /// Returns the CPU time of a process that has ended, with that of the processes for which it has waited.
    #[cfg(feature = "cli")]
    pub(super) fn spent(&self) -> Duration {
        self.ended.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// Returns the CPU time of the running process, as Linux reports it.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        // The name of the executable, which may contain anything, is in brackets.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
        let ticks = times.next()??.checked_add(times.next()??)?;
        let in_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis(ticks.checked_mul(1000)?.checked_div(in_second)?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process for which the system cannot wait has ended.
        let _ = self.stop();
    }
}
