//! Performs the commands of a recipe in the folder of its disk: QEMU's tools run, programs build images, files are
//! written.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use super::RecipeError;
use super::recipe::{Command, FOLDER};
use crate::base::files::Existing;
use crate::images::damage::Damage;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::processes::{Executable, Reply, run};
use crate::programs::{Program, Vm, export};

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

/// A program that has run like those of the target `hostile`, and the files that it has built and damaged.
#[derive(Debug)]
pub struct BuiltProgram {
    pub(super) vm: Vm,
    pub(super) images: Images,
}

impl BuiltProgram {
    /// Runs the program that `input` encodes. Its images name each other by `names`.
    pub(super) fn new(input: &[u8], names: &FileNames) -> Self {
        let program = Program::decode(input);
        let (mut vm, mut images) = (Vm::new(), Images::default());
        vm.begin(&program.prologue, Limits::HOSTILE);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(names, &mut images, &());
        Damage::default().apply(&mut images, vm.attacks());
        Self { vm, images }
    }
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
    /// qemu-img or qemu-io does not run, or their versions differ.
    pub fn find(img: &Path) -> Result<Self, ToolError> {
        // Commands run in other folders, so a path becomes absolute. A bare name stays, and is looked up on PATH.
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

/// Runs a program in a folder. Its messages are in English, and its dates in UTC.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run_tool(
    program: Executable,
    arguments: &[String],
    folder: &Path,
    timeout: Duration,
) -> io::Result<Reply> {
    let program = program.with(arguments).in_folder(Some(folder));
    run(&program.with_variable("TZ", "UTC").with_variable("LC_ALL", "C"), timeout)
}

fn version(path: &Path, before: &str) -> Result<String, ToolError> {
    let asked = Executable::new(path, ["--version".into()]);
    let answer = run(&asked, VERSION_TIMEOUT)
        .map_err(|error| ToolError::NotRun { path: path.to_path_buf(), error })?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let version = text.strip_prefix(before).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or(ToolError::NoVersion { path: path.to_path_buf() })
}
