//! A long-running qemu-io: one command at a time, and its output up to the next prompt. If QEMU cannot work, the run
//! ends without a verdict.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::harness::engine::failure;
use crate::harness::engines::engine_process::{EngineProcess, Ran, Silence, run_to_end};

/// The text that qemu-io prints when it waits for a command.
const PROMPT: &[u8] = b"qemu-io> ";
/// The command line. Errors join the output, so that they are part of the answer to a command.
const COMMAND: &str = "qemu-io 2>&1";
/// Opens the driver that compares data, without any file.
const OPEN_BLKVERIFY: &str = "open -r -o driver=blkverify,\
                              test.driver=null-co,test.size=512,test.read-zeroes=on,\
                              raw.driver=null-co,raw.size=512,raw.read-zeroes=on";

/// A qemu-io, which starts with the first command.
#[derive(Debug, Default)]
pub(super) struct QemuIo {
    process: Option<EngineProcess>,
    /// The folder in which it works, if not that of this process.
    folder: Option<PathBuf>,
    line: String,
    output: String,
}

impl QemuIo {
    /// Ends the process. The next command starts another one.
    pub(super) fn restart(&mut self) {
        self.process = None;
    }

    /// Has it work in a folder: QEMU looks for data files there.
    pub(super) fn work_in(&mut self, folder: Option<&Path>) {
        if self.folder.as_deref() != folder {
            self.folder = folder.map(Path::to_path_buf);
            self.restart();
        }
    }

    /// Sends a command, and returns its output; or the end of qemu-io in place of an answer, with the output since the
    /// command.
    pub(super) fn ask(&mut self, command: fmt::Arguments<'_>) -> Result<&str, Box<Ran>> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => started(self.folder.as_deref()).unwrap_or_else(|what| fail(&what)),
        };
        let Self { line, output, .. } = self;
        line.clear();
        // A string takes everything.
        let _ = writeln!(line, "{command}");
        output.clear();
        let exchanged = exchange(&mut process, line.as_bytes(), output);
        match exchanged {
            Ok(()) => {
                self.process = Some(process);
                Ok(&self.output)
            }
            Err(Silence::Failed(what)) => fail(&format!("qemu-io: {what}")),
            Err(Silence::Ended(end)) => {
                let output = process.unread_text().trim().to_string();
                Err(Box::new(Ran { end, output }))
            }
        }
    }
}

/// Starts qemu-io, and waits for its prompt.
fn started(folder: Option<&Path>) -> Result<EngineProcess, String> {
    let mut process = EngineProcess::start(COMMAND, folder)
        .map_err(|error| format!("qemu-io does not start: {error}"))?;
    match exchange(&mut process, b"", &mut String::new()) {
        Ok(()) => Ok(process),
        Err(Silence::Failed(what)) => Err(format!("qemu-io does not start: {what}")),
        Err(Silence::Ended(end)) => {
            let said = [process.unread_text(), end.detail].join(" ");
            Err(format!("qemu-io does not start: {}: {}", end.process, said.trim()))
        }
    }
}

/// Sends a line, and puts the output up to the next prompt into `output`.
fn exchange(process: &mut EngineProcess, line: &[u8], output: &mut String) -> Result<(), Silence> {
    process.exchange(line, &mut |bytes| match bytes.strip_suffix(PROMPT) {
        Some(answer) => {
            output.push_str(&String::from_utf8_lossy(answer));
            Ok((bytes.len(), true))
        }
        None => Ok((0, false)),
    })
}

/// Starts qemu-io, and returns its version.
pub(super) fn version() -> Result<String, String> {
    let mut process = started(None)?;
    let mut output = String::new();
    exchange(&mut process, format!("{OPEN_BLKVERIFY}\n").as_bytes(), &mut output)
        .map_err(|silence| format!("qemu-io: {silence:?}"))?;
    if !output.is_empty() {
        return Err(format!("qemu-io cannot compare data: {}", output.trim()));
    }
    printed_version("qemu-io")
}

/// Runs `tool --version`, and returns the version that it prints.
pub(crate) fn printed_version(tool: &str) -> Result<String, String> {
    let printed = run_to_end(&format!("{tool} --version 2>&1"), None)
        .map_err(|what| format!("{tool} does not start: {what}"))?;
    let first = printed.output.lines().next().unwrap_or_default();
    let version = first.split_once(" version ").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or_else(|| format!("{tool} does not start: {first}"))
}

/// Runs qemu-img to its end, in a folder if there is one.
pub(super) fn run_qemu_img(arguments: &str, folder: Option<&Path>) -> Ran {
    let ran = run_to_end(&format!("qemu-img {arguments}"), folder);
    ran.unwrap_or_else(|what| fail(&format!("qemu-img: {what}")))
}

/// Ends the run without a verdict: QEMU cannot work, and no image is to blame.
pub(super) fn fail(what: &str) -> ! {
    failure::fail(format!("qemu: {what}"))
}
