//! The two sides: QEMU, which changes the images and answers, and the program under test, which only answers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::cpu::CpuCounters;
use super::recipe::{AskedDisk, DiskQuestion, quoted};
use crate::processes::{Executable, Reply, run, survivors};

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

/// QEMU's tools.
#[derive(Clone, Debug, Default)]
pub struct QemuTools {
    /// The program `qemu-img`.
    pub img: PathBuf,
    /// The program `qemu-io`.
    pub io: PathBuf,
    /// The version that `qemu-img --version` prints, such as `10.0.2`.
    pub version: String,
}

/// The reason why QEMU's tools cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program does not run.
    #[error("{}: cannot be run ({error}), expected qemu-img of the package qemu-utils, or --qemu-img", .path.display())]
    NotRun {
        /// The program.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The two programs are of different versions.
    #[error("{}: has version {io}, expected {img}, which qemu-img beside it has", .path.display())]
    Versions {
        /// qemu-io.
        path: PathBuf,
        /// The version of qemu-img.
        img: String,
        /// The version of qemu-io.
        io: String,
    },
    /// The program prints no version.
    #[error("{}: printed no version, expected 'qemu-img version N'", .path.display())]
    NoVersion {
        /// The program.
        path: PathBuf,
    },
}

/// The time limit of `--version`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

impl QemuTools {
    /// Finds the tools. qemu-io lies beside qemu-img.
    ///
    /// # Errors
    /// One of the two does not run, or they are of different versions.
    pub fn find(img: &Path) -> Result<Self, ToolError> {
        // Commands run in other folders. A name without a folder is looked up on PATH.
        let img = match img.components().count() {
            0 | 1 => img.to_path_buf(),
            _ => std::path::absolute(img)
                .map_err(|error| ToolError::NotRun { path: img.to_path_buf(), error })?,
        };
        let io = img.with_file_name("qemu-io");
        let found = version(&img, "qemu-img version ")?;
        let of_io = version(&io, "qemu-io version ")?;
        match found == of_io {
            true => Ok(Self { img, io, version: found }),
            false => Err(ToolError::Versions { path: io, img: found, io: of_io }),
        }
    }
}

fn version(path: &Path, before: &str) -> Result<String, ToolError> {
    let asked = Executable::new(path, ["--version".into()]);
    let (answer, _) = run(&asked, VERSION_TIMEOUT)
        .map_err(|error| ToolError::NotRun { path: path.to_path_buf(), error })?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let version = text.strip_prefix(before).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or(ToolError::NoVersion { path: path.to_path_buf() })
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

    /// Reports whether the program can answer.
    pub fn answers(&self, question: &DiskQuestion) -> bool {
        match self {
            Self::Command { maps_only: true, .. } => matches!(question, DiskQuestion::Map { .. }),
            Self::Ours(_) | Self::Command { .. } => true,
        }
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
    pub fn qemu(&self, program: &Path, arguments: &[String], folder: &Path) -> io::Result<Reply> {
        let (reply, time) = self.run(Executable::new(program, []), arguments, folder)?;
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
        self.qemu(&self.qemu.img, &arguments, folder)
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
        let arguments = question.arguments(disk, output);
        let (reply, time) = self.run(self.tested.executable(), &arguments, folder)?;
        self.cpu.add_tested(time);
        Ok(reply)
    }

    /// Runs a program in a folder. Its messages are in English, and its dates in UTC. Returns its CPU time, too.
    fn run(
        &self,
        program: Executable,
        arguments: &[String],
        folder: &Path,
    ) -> io::Result<(Reply, Duration)> {
        let program = program.with(arguments).in_folder(Some(folder));
        let program = program.with_variable("TZ", "UTC").with_variable("LC_ALL", "C");
        run(&program.with_variable(survivors::MARK, folder), self.timeout)
    }
}
