//! Runs of a command by both programs.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::walkers::chain::FileChain;

use crate::qemu::Checked;

/// The commands that both programs have.
pub const COMMANDS: [&str; 4] = ["map", "info", "check", "convert"];

/// The program of this project.
pub const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");

/// The size up to which disks are converted.
const MAX_CONVERTED_BYTES: u64 = 16 << 20;
/// The size up to which disks are mapped: qemu-img visits each grain.
const MAX_MAPPED_BYTES: u64 = 1 << 40;

/// The exit and the messages of a program.
#[derive(Debug)]
pub struct Run(Output);

impl Run {
    /// Runs a program. System errors have English texts.
    pub fn of(command: &mut Command) -> Checked<Self> {
        let output = command.env("LC_ALL", "C").output();
        output.map(Self).map_err(|error| format!("{command:?}: {error}"))
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub fn succeeded(&self) -> bool {
        self.0.status.success()
    }

    pub fn ended_by_signal(&self) -> bool {
        self.0.status.signal().is_some()
    }
}

/// The runs of both programs.
#[derive(Debug)]
pub struct Runs {
    pub ours: Run,
    pub theirs: Run,
}

impl Runs {
    /// Runs a command on an image by both programs, with answers in the form "json" or "human". Returns `None` if ours
    /// succeeds.
    pub fn on_image(
        (command, form): (&str, &str),
        format: ImageFormat,
        path: &Path,
    ) -> Checked<Option<Self>> {
        let run = |program: &str, output: &str| {
            let mut line = Command::new(program);
            line.args([command, "-f", format.name()]).arg(path);
            if command == "convert" {
                line.args([OsStr::new("-O"), OsStr::new("raw")]).arg(path.with_file_name(output));
            } else {
                line.arg(format!("--output={form}"));
            }
            // QEMU looks for data files in the current directory.
            line.current_dir(path.parent().ok_or("no folder")?);
            Run::of(&mut line)
        };
        let ours = run(OURS, "ours.raw")?;
        if ours.succeeded() {
            return Ok(None);
        }
        Ok(Some(Self { ours, theirs: run("qemu-img", "theirs.raw")? }))
    }
}

/// Returns the command, or another one if the disk is too large for it: qemu-img copies it whole. Returns `None` if
/// the disk is too large for any.
pub fn affordable(command: &'static str, format: ImageFormat, path: &Path) -> Option<&'static str> {
    let size = |chain: FileChain| chain.disk().ok().map(|disk| disk.virtual_size_bytes());
    match FileChain::open(path, Some(format)).ok().and_then(size) {
        Some(size) if size > MAX_MAPPED_BYTES => (command == "info").then_some(command),
        Some(size) if size > MAX_CONVERTED_BYTES && command == "convert" => Some("map"),
        _ => Some(command),
    }
}

/// Formats the reason why a test could not do its work.
pub fn failed(error: impl Display) -> String {
    error.to_string()
}
