//! A long-running qemu-io: one command at a time, and its output up to the next prompt. If QEMU cannot work, the run
//! ends without a verdict. QEMU opens the files of a chain in a folder, and beside them one with the data that the
//! engine reads, which its driver blkverify compares with the image. The files are reused from image to image.
//!
//! # Arithmetic
//! An offset that is held at 2^64 - 1 lies past the end of every file.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk::offsets::GuestOffset;
use crate::harness::ChainFiles;
use crate::harness::against::second_opinion::ReadDisk;
use crate::harness::engine::{EngineEnd, ErrorKind, failure};
use crate::harness::engines::engine_process::{EndedProgram, EngineProcess, Silence, run_to_end};
use crate::harness::files::chain::{Chain, ChainFolder};
use crate::processes::cause_in;

use super::answers::has_many_snapshots;

/// The text that qemu-io prints when it waits for a command.
const PROMPT: &[u8] = b"qemu-io> ";
/// The command line. Errors join the output, so that they are part of the answer to a command.
const COMMAND: &str = "qemu-io 2>&1";
/// Opens the driver that compares data, without any file.
const OPEN_BLKVERIFY: &str = "open -r -o driver=blkverify,\
                              test.driver=null-co,test.size=512,test.read-zeroes=on,\
                              raw.driver=null-co,raw.size=512,raw.read-zeroes=on";

/// The longest command: qemu-io would take the rest of a longer line as another one (QEMU, `MAXREADLINESZ` in
/// qemu-io.c).
pub(super) const MAX_COMMAND_BYTES: usize = 1022;
/// The most runs of a process. With each image that qemu-io opens, it keeps more memory: after some 2,000 damaged
/// ones, it has none left, and refuses valid images.
const MAX_RUNS_OF_PROCESS: u32 = 128;

/// A qemu-io, which starts with the first command.
#[derive(Debug, Default)]
pub(super) struct QemuIo {
    process: Option<EngineProcess>,
    /// The folder in which it works, if not that of this process.
    folder: Option<PathBuf>,
    /// The runs since the process has started.
    runs: u32,
    line: String,
    output: String,
}

impl QemuIo {
    /// Ends the process. The next command starts another one.
    pub(super) fn restart(&mut self) {
        (self.process, self.runs) = (None, 0);
    }

    /// Begins a run, in another process after [`MAX_RUNS_OF_PROCESS`].
    pub(super) fn begin_run(&mut self) {
        self.runs += 1;
        if self.runs > MAX_RUNS_OF_PROCESS {
            self.restart();
        }
    }

    /// Waits until it waits for something itself.
    pub(super) fn wait_until_asleep(&self) {
        self.process.iter().for_each(EngineProcess::wait_until_asleep);
    }

    /// Has it work in a folder, from which the names of files begin.
    pub(super) fn work_in(&mut self, folder: Option<&Path>) {
        if self.folder.as_deref() != folder {
            self.folder = folder.map(Path::to_path_buf);
            self.restart();
        }
    }

    /// Sends a command, and returns its output; or the end of qemu-io in place of an answer, with the output since the
    /// command.
    pub(super) fn ask(&mut self, command: fmt::Arguments<'_>) -> Result<&str, Box<EndedProgram>> {
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
                // The errors of qemu-io are in its output.
                let cause = end.cause.or_else(|| Some(cause_in(&output)?.message));
                let end = EngineEnd { cause, detail: [end.detail, output.clone()].concat(), ..end };
                Err(Box::new(EndedProgram { end, output }))
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
    // Requests in flight print when they end, also behind the prompt.
    process.exchange(line, &mut |bytes| match place_of_prompt(bytes) {
        Some(at) => {
            let (answer, rest) = bytes.split_at(at);
            output.push_str(&String::from_utf8_lossy(answer));
            output.push_str(&String::from_utf8_lossy(rest.get(PROMPT.len()..).unwrap_or_default()));
            Ok((bytes.len(), true))
        }
        None => Ok((0, false)),
    })
}

/// Returns the place of the prompt, mostly at the end.
fn place_of_prompt(bytes: &[u8]) -> Option<usize> {
    let at_end = bytes.strip_suffix(PROMPT).map(<[u8]>::len);
    at_end.or_else(|| memchr::memmem::rfind(bytes, PROMPT))
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
pub(super) fn run_qemu_img(arguments: &str, folder: Option<&Path>) -> EndedProgram {
    let ran = run_to_end(&format!("qemu-img {arguments}"), folder);
    ran.unwrap_or_else(|what| fail(&format!("qemu-img: {what}")))
}

/// Ends the run without a verdict: QEMU cannot work, and no image is to blame.
pub(super) fn fail(what: &str) -> ! {
    failure::fail(format!("qemu: {what}"))
}

/// The files of one chain at a time.
#[derive(Debug, Default)]
pub(super) struct DeviceFiles {
    files: ChainFiles,
    /// QEMU follows the names of lower layers and data files, too.
    names_all: bool,
}

impl DeviceFiles {
    /// Takes the files of `chain`. Returns false if they are too large, or an image has too many snapshots. If
    /// `is_damaged`, an image may no longer name the files below it, or other formats for them, so QEMU follows the
    /// names.
    pub(super) fn hold(&mut self, chain: &Chain, is_damaged: bool) -> bool {
        self.names_all = is_damaged && chain.has_other_files();
        !chain.layers().iter().any(has_many_snapshots) && self.files.write(chain).is_ok()
    }

    /// Returns the folder of the files, if there was a chain.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.files.folder().map(ChainFolder::path)
    }

    /// Returns the chain as a block device of QEMU: a JSON object without spaces. It names every file, so QEMU does not
    /// follow the file names in images. There are two exceptions: the names of extents, which no option can replace,
    /// and all names in damaged images.
    pub(super) fn device(&self, chain: &Chain) -> String {
        let mut line = String::new();
        let Some(folder) = self.folder() else { return line };
        let layers = if self.names_all { &chain.layers()[..1] } else { chain.layers() };
        for (depth, layer) in layers.iter().enumerate() {
            let separator = if depth == 0 { "" } else { ",\"backing\":" };
            // A string takes everything.
            let _ = write!(line, "{separator}{{\"driver\":\"{}\"", layer.format.name());
            let mut file = |key: &str, name: &str| {
                let path = folder.join(name);
                let _ = write!(
                    line,
                    ",\"{key}\":{{\"driver\":\"file\",\"locking\":\"off\",\"filename\":\"{}\"}}",
                    path.display()
                );
            };
            file("file", layer.name());
            if let Some(data_file) = layer.data_file.as_ref().filter(|_| !self.names_all) {
                file("data-file", data_file.name());
            }
        }
        if !self.names_all
            && layers.last().is_some_and(|last| last.format.facts().has_backing_files)
        {
            line.push_str(",\"backing\":null");
        }
        layers.iter().for_each(|_| line.push('}'));
        line
    }
}

/// The number of bytes that the engine reads at once.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// The unit in which bytes that are all zeros stay a hole of the file.
const PIECE_OF_ZEROS_BYTES: usize = 4096;

/// A part of the disk, and whether the engine can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadPart {
    /// The guest bytes.
    pub(super) range: Range<u64>,
    /// The engine can read all of the bytes. If false, it can read some or none of them.
    pub(super) is_readable: bool,
}

/// The data of a disk, in a file.
#[derive(Debug)]
pub(super) struct EngineData {
    path: PathBuf,
    file: File,
    chunk: Vec<u8>,
    parts: Vec<ReadPart>,
}

impl EngineData {
    /// Creates the file in a folder. If the system refuses it, no image is to blame.
    pub(super) fn new(folder: &Path) -> Self {
        let path = folder.join("engine-data");
        let file = File::create(&path)
            .unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())));
        Self { path, file, chunk: vec![0; READ_CHUNK_BYTES], parts: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the parts of the disk, in order.
    pub(super) fn parts(&self) -> &[ReadPart] {
        &self.parts
    }

    /// Reads the `windows` of a disk, and puts their bytes into the file, at their place on the disk. The file gets
    /// `length_bytes`.
    pub(super) fn read(
        &mut self,
        length_bytes: u64,
        windows: &[Range<u64>],
        read: &mut ReadDisk<'_>,
    ) -> io::Result<()> {
        let Self { file, chunk, parts, .. } = self;
        // All of it is a hole.
        file.set_len(0)?;
        file.set_len(length_bytes)?;
        parts.clear();
        for window in windows {
            for start in window.clone().step_by(READ_CHUNK_BYTES) {
                let end = window.end.min(start.saturating_add(READ_CHUNK_BYTES as u64));
                let length = usize::try_from(end - start).unwrap_or(READ_CHUNK_BYTES);
                let bytes = &mut chunk[..length];
                let is_readable = match read(GuestOffset::new(start), bytes) {
                    Ok(()) => true,
                    Err(error) if error.kind() == ErrorKind::NoAnswer => {
                        parts.clear();
                        return Ok(());
                    }
                    Err(_) => false,
                };
                match parts.last_mut() {
                    Some(last) if is_readable && last.is_readable && last.range.end == start => {
                        last.range.end = end;
                    }
                    _ => parts.push(ReadPart { range: start..end, is_readable }),
                }
                if is_readable {
                    write_pages(file, bytes, start)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes the pages that are not all zeros.
fn write_pages(file: &File, bytes: &[u8], start: u64) -> io::Result<()> {
    let mut at = start;
    for page in bytes.chunks(PIECE_OF_ZEROS_BYTES) {
        if page.iter().fold(0, |any, byte| any | byte) != 0 {
            file.write_all_at(page, at)?;
        }
        at += page.len() as u64;
    }
    Ok(())
}
