//! Performs the commands of a recipe in the folder of its disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::error::Error;
use crate::disk::files::Existing;
use crate::findings::explain::explain;
use crate::harness::export;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Walker};
use crate::images::limits::Limits;

use super::divergence::{Divergence, DivergenceKind, without_numbers};
use super::recipe::{ABORT, Command, FOLDER};
use super::sides::Sides;
use crate::processes::Reply;

/// The reason why a recipe could not be carried out: no verdict about either side.
#[derive(Debug, thiserror::Error)]
pub enum IterationError {
    /// A process could not be started or read.
    #[error("cannot run a program: {0}")]
    Process(io::Error),
    /// A file could not be written or read.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The folder of the iteration could not be emptied.
    #[error(transparent)]
    Folder(Error),
    /// The image of a program could not be written.
    #[error("cannot write the image of a program: {0}")]
    Export(Error),
    /// A command of the recipe has no meaning.
    #[error("the recipe is malformed: {0}")]
    Recipe(String),
}

impl IterationError {
    /// Describes the error without the folder of the campaign: the same fault has the same text in every iteration.
    pub(super) fn without_folder(&self) -> String {
        match self {
            Self::File { path, error } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                without_numbers(&format!("{name}: {error}"))
            }
            Self::Process(error) => without_numbers(&format!("cannot run a program: {error}")),
            Self::Folder(_) => "cannot empty the folder".to_string(),
            Self::Export(_) => "cannot write the image of a program".to_string(),
            Self::Recipe(_) => "the recipe is malformed".to_string(),
        }
    }
}

/// The result of a command.
pub(super) enum Performed {
    /// A tool of QEMU ran.
    Reply(Reply),
    /// A file was written, and the oracles perhaps found a fault in a program.
    Written(Option<Divergence>),
}

/// Performs a command in the folder of the disk.
pub(super) fn perform(
    command: &Command,
    sides: &Sides,
    folder: &Path,
) -> Result<Performed, IterationError> {
    let run = |program: &Path, words: &[String]| {
        let here = folder.to_string_lossy();
        let words: Vec<String> = words.iter().map(|word| word.replace(FOLDER, &here)).collect();
        let reply = sides.qemu(program, &words, folder).map_err(IterationError::Process);
        Ok(Performed::Reply(reply?))
    };
    let mut divergence = None;
    match command {
        Command::QemuImg(words) => return run(&sides.qemu.img, words),
        Command::QemuIo { options, requests, file } => {
            let mut words = options.clone();
            words.extend(requests.iter().flat_map(|request| ["-c".to_string(), request.clone()]));
            words.push(file.clone());
            return run(&sides.qemu.io, &words);
        }
        Command::Program { input, file } => divergence = write_program(input, &folder.join(file))?,
        Command::Folder { name } => {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|error| file_error(&path, error))?;
        }
        Command::Pattern { content, file } => {
            let path = folder.join(file);
            content.write(&path).map_err(|error| file_error(&path, error))?;
        }
        Command::Damage { file, at, bytes } => damage(&folder.join(file), *at, bytes)?,
    }
    Ok(Performed::Written(divergence))
}

/// Returns the finding that a command of QEMU is: a crash without an `abort`, or a hang.
pub(super) fn crash_or_hang(command: &Command, answer: &Reply) -> Option<Divergence> {
    let is_abort = |last: &String| last == ABORT;
    let wanted = matches!(command, Command::QemuIo { requests, .. } if requests.last().is_some_and(is_abort));
    let kind = DivergenceKind::of_end(answer.end)?;
    if wanted && kind == DivergenceKind::Signal {
        return None;
    }
    let message = answer.message();
    let last = message.lines().last().map_or(String::new(), without_numbers);
    let after = if last.is_empty() { "" } else { ", after: " };
    let what = format!("qemu, {}{after}{last}", answer.end.brief());
    Some(Divergence::new(kind, what, message))
}

/// Writes the files of a program, after our walker and all oracles have judged them. Returns their finding.
fn write_program(input: &str, path: &Path) -> Result<Option<Divergence>, IterationError> {
    let input = hex::decode(input).map_err(|error| IterationError::Recipe(error.to_string()))?;
    let names = export::names(path);
    let mut target = TargetKind::Hostile.judging(Walker::default());
    let found = target.run(&input, Checks::AtCheckpoints).err();
    let explained = explain(&input, Limits::HOSTILE, usize::MAX, &names);
    export::write_small_filled(path, Existing::Replace, explained.built())
        .map_err(IterationError::Export)?;
    Ok(found.map(|failure| {
        let violation = failure.violation;
        Divergence::new(DivergenceKind::ModelDivergence, violation.fingerprint(), &violation)
    }))
}

fn damage(path: &Path, at: u64, bytes: &str) -> Result<(), IterationError> {
    use std::os::unix::fs::FileExt;
    let bytes = hex::decode(bytes).map_err(|error| IterationError::Recipe(error.to_string()))?;
    let opened = fs::File::options().write(true).open(path);
    match opened.and_then(|file| file.write_all_at(&bytes, at)) {
        // QEMU refused to create the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|error| file_error(path, error)),
    }
}

pub(super) fn file_error(path: &Path, error: io::Error) -> IterationError {
    IterationError::File { path: path.to_path_buf(), error }
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), IterationError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(path, error)),
        _ => Ok(()),
    }
}
