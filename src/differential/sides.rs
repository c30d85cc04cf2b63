//! The two sides: QEMU, which changes the images and answers, and the program under test, which only answers.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
        self.run(self.qemu.executable(tool), arguments, folder)
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
        self.run(self.tested.executable(), arguments, folder)
    }

    fn run(&self, program: Executable, arguments: &[String], folder: &Path) -> io::Result<Reply> {
        run_tool(program.with_variable(MARK, folder), arguments, folder, self.timeout)
    }
}
