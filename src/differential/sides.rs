//! The two sides: QEMU, which changes the images and answers, and the program under test, which only answers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::processes::{Executable, MARK, Reply};
use crate::recipes::perform::{QemuTool, QemuTools, run_tool};
use crate::recipes::recipe::{AskedDisk, DiskQuestion, quoted};

/// The programs of a campaign.
#[derive(Clone, Debug)]
pub struct Sides {
    /// QEMU's tools.
    pub qemu: QemuTools,
    /// The program under test.
    pub tested: Tested,
    /// The time limit of each process.
    pub timeout: Duration,
    /// The CPU time of all processes so far.
    pub cpu: Arc<CpuCounters>,
}

/// The program under test.
#[derive(Clone, Debug)]
pub enum Tested {
    /// The verbs of this command, in processes of their own.
    Ours(PathBuf),
    /// A program of the user that has the command line of qemu-img. A shell runs the text.
    Command {
        /// The text.
        text: String,
        /// The program has the verb `map` only.
        maps_only: bool,
        /// The program also performs the commands of qemu-img that make and change images.
        executes: bool,
    },
}

impl Tested {
    /// Returns the name in reports.
    pub fn name(&self) -> String {
        match self {
            Self::Ours(_) => format!("qcowfuzz {}", env!("CARGO_PKG_VERSION")),
            Self::Command { text, .. } => text.clone(),
        }
    }

    /// Reports whether the program can answer. A program that only reads images need not know `measure`.
    pub fn answers(&self, question: &DiskQuestion) -> bool {
        match self {
            Self::Command { maps_only: true, .. } => matches!(question, DiskQuestion::Map { .. }),
            Self::Command { executes: false, .. } => *question != DiskQuestion::Measure,
            Self::Ours(_) | Self::Command { .. } => true,
        }
    }

    /// Reports whether the program performs the commands of recipes, too, on a copy of its own.
    pub fn executes(&self) -> bool {
        matches!(self, Self::Command { executes: true, .. })
    }

    /// Returns the command line as a person types it.
    pub fn line(&self, arguments: &[String]) -> String {
        match self {
            Self::Ours(_) => format!("qcowfuzz {}", quoted(arguments)),
            Self::Command { text, .. } => format!("{text} {}", quoted(arguments)),
        }
    }

    /// Returns the program to start.
    fn executable(&self) -> Executable {
        match self {
            Self::Ours(path) => Executable::new(path, []),
            Self::Command { text, .. } => Executable::shell(text),
        }
    }
}

impl Sides {
    /// Runs one of QEMU's tools in a folder.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn qemu(&self, tool: QemuTool, arguments: &[String], folder: &Path) -> io::Result<Reply> {
        let (reply, time) = self.run(self.qemu.executable(tool), arguments, folder)?;
        self.cpu.add_qemu(time);
        Ok(reply)
    }

    /// Returns QEMU's answer. Data are written to `output`.
    ///
    /// # Errors
    /// qemu-img cannot be started.
    pub fn ask_qemu(
        &self,
        question: &DiskQuestion,
        disk: &AskedDisk,
        folder: &Path,
        output: &str,
    ) -> io::Result<Reply> {
        let mut arguments = question.arguments(disk, output);
        if *question == DiskQuestion::Read {
            // The file is read once and deleted: it need not reach the disk.
            arguments.splice(1..1, ["-t", "unsafe"].map(str::to_string));
        }
        self.qemu(QemuTool::Img, &arguments, folder)
    }

    /// Returns the answer of the program under test. Data are written to `output`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn ask_tested(
        &self,
        question: &DiskQuestion,
        disk: &AskedDisk,
        folder: &Path,
        output: &str,
    ) -> io::Result<Reply> {
        self.tested_tool(&question.arguments(disk, output), folder)
    }

    /// Runs the program under test in place of qemu-img.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn tested_tool(&self, arguments: &[String], folder: &Path) -> io::Result<Reply> {
        let (reply, time) = self.run(self.tested.executable(), arguments, folder)?;
        self.cpu.add_tested(time);
        Ok(reply)
    }

    /// Runs a program in a folder. Returns its CPU time, too.
    fn run(
        &self,
        program: Executable,
        arguments: &[String],
        folder: &Path,
    ) -> io::Result<(Reply, Duration)> {
        let program = program.with_variable(MARK, folder);
        run_tool(program, arguments, folder, self.timeout)
    }
}

/// Counts the CPU time of processes, in nanoseconds.
#[derive(Debug, Default)]
pub struct CpuCounters {
    qemu: AtomicU64,
    tested: AtomicU64,
}

impl CpuCounters {
    /// Adds the time of a process of QEMU.
    fn add_qemu(&self, time: Duration) {
        add(&self.qemu, time);
    }

    /// Adds the time of a process of the program under test.
    fn add_tested(&self, time: Duration) {
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
