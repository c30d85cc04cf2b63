//! Performs the commands of a recipe in the folder of its disk.

use std::fs;
use std::io;
use std::path::Path;

use crate::base::files::Existing;
use crate::processes::Reply;
use crate::programs::export;

use super::error::RecipeError;
use super::program::BuiltProgram;
use super::recipe::{Command, FOLDER};

/// A tool of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QemuTool {
    /// The program `qemu-img`.
    Img,
    /// The program `qemu-io`.
    Io,
}

/// Runs a tool of QEMU, or a program in its place, with some arguments in a folder.
pub(super) type RunTool<'r> = dyn Fn(QemuTool, &[String], &Path) -> io::Result<Reply> + 'r;

/// The result of a command.
pub enum Performed {
    /// A tool of QEMU ran.
    Reply(Reply),
    /// A file was written.
    Written,
    /// The files of a program were written.
    Program(Box<BuiltProgram>),
}

/// Performs a command in the folder of the disk, in which `run` runs tools.
///
/// # Errors
/// A tool does not start, a file cannot be written, or the command has no meaning.
pub(super) fn perform(
    command: &Command,
    run: &RunTool<'_>,
    folder: &Path,
) -> Result<Performed, RecipeError> {
    let run = |tool, words: &[String]| {
        let here = folder.to_string_lossy();
        let words: Vec<String> = words.iter().map(|word| word.replace(FOLDER, &here)).collect();
        run(tool, &words, folder).map(Performed::Reply).map_err(RecipeError::Process)
    };
    match command {
        Command::QemuImg(words) => return run(QemuTool::Img, words),
        Command::QemuIo { options, requests, file } => {
            let mut words = options.clone();
            words.extend(requests.iter().flat_map(|request| ["-c".to_string(), request.clone()]));
            words.push(file.clone());
            return run(QemuTool::Io, &words);
        }
        Command::Program { input, file } => return write_program(input, &folder.join(file)),
        Command::Folder { name } => {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|error| RecipeError::file(&path, error))?;
        }
        Command::Pattern { content, file } => {
            let path = folder.join(file);
            content.write(&path).map_err(|error| RecipeError::file(&path, error))?;
        }
        Command::Damage { file, at, bytes } => damage(&folder.join(file), *at, bytes)?,
    }
    Ok(Performed::Written)
}

/// Returns the bytes that digits stand for.
///
/// # Errors
/// They are no hexadecimal digits.
pub fn bytes_of(digits: &str) -> Result<Vec<u8>, RecipeError> {
    hex::decode(digits).map_err(|error| RecipeError::Recipe(error.to_string()))
}

fn write_program(input: &str, path: &Path) -> Result<Performed, RecipeError> {
    let built = BuiltProgram::new(&bytes_of(input)?, &export::names(path));
    export::write_small_filled(path, Existing::Replace, (&built.vm, &built.images))
        .map_err(RecipeError::Export)?;
    Ok(Performed::Program(Box::new(built)))
}

fn damage(path: &Path, at: u64, bytes: &str) -> Result<(), RecipeError> {
    use std::os::unix::fs::FileExt;
    let bytes = bytes_of(bytes)?;
    let opened = fs::File::options().write(true).open(path);
    match opened.and_then(|file| file.write_all_at(&bytes, at)) {
        // QEMU refused to create the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|error| RecipeError::file(path, error)),
    }
}
