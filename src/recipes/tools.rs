//! QEMU's tools, which perform the commands of recipes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::processes::{Executable, Reply, run};

use super::perform::QemuTool;

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

    /// Returns the program of a tool.
    pub(crate) fn executable(&self, tool: QemuTool) -> Executable {
        Executable::new(
            match tool {
                QemuTool::Img => &self.img,
                QemuTool::Io => &self.io,
            },
            [],
        )
    }
}

/// Runs a program in a folder. Its messages are in English, and its dates in UTC. Returns its CPU time, too.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run_tool(
    program: Executable,
    arguments: &[String],
    folder: &Path,
    timeout: Duration,
) -> io::Result<(Reply, Duration)> {
    let program = program.with(arguments).in_folder(Some(folder));
    run(&program.with_variable("TZ", "UTC").with_variable("LC_ALL", "C"), timeout)
}

fn version(path: &Path, before: &str) -> Result<String, ToolError> {
    let asked = Executable::new(path, ["--version".into()]);
    let (answer, _) = run(&asked, VERSION_TIMEOUT)
        .map_err(|error| ToolError::NotRun { path: path.to_path_buf(), error })?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let version = text.strip_prefix(before).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or(ToolError::NoVersion { path: path.to_path_buf() })
}
