//! The implementation under test, with the known findings that `--known` adds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::disk::files;
use crate::findings::isolation::Executable;
use crate::harness::engine::Engine;
use crate::harness::implementation::Implementation;
use crate::harness::qemu_io::{AgainstQemu, Qemu};
use crate::harness::{Knowing, KnownFindings};

use super::against;
use super::engine;
use super::exit::CommandError;

/// The option `--known`.
#[derive(Debug, clap::Args)]
pub struct KnownOption {
    /// Set the known findings in this TOML file aside, too; with 'triage', also a folder of regressions
    #[arg(long, value_name = "FILE", global = true)]
    known: Vec<PathBuf>,
}

impl KnownOption {
    /// Rejects the option for the verb `name`, which runs no implementation.
    pub fn reject(&self, name: &str) -> Result<(), CommandError> {
        match self.known.is_empty() {
            true => Ok(()),
            false => Err(CommandError::Message(format!(
                "--known: '{name}' runs no inputs, expected a command that does"
            ))),
        }
    }
}

/// An implementation, and what else a verb needs to run inputs with it.
pub struct UnderTest<I> {
    /// The implementation, with its known findings and those of the option.
    pub implementation: AgainstQemu<Knowing<I>>,
    /// The known findings.
    pub known: KnownFindings,
    /// The folders of known bugs that the option names.
    pub folders: Vec<PathBuf>,
    /// The QEMU that judges the images, too.
    pub qemu: Option<Qemu>,
    files: Vec<PathBuf>,
}

impl<I: Implementation> UnderTest<I> {
    /// Reads the files that the option names. `qemu` judges the images, too.
    pub fn new(
        implementation: &I,
        option: &KnownOption,
        qemu: Option<Qemu>,
    ) -> Result<Self, CommandError> {
        let mut known = implementation.engine(&()).known_findings();
        let (folders, files): (Vec<_>, Vec<_>) =
            option.known.iter().cloned().partition(|path| path.is_dir());
        for path in &files {
            known = known.and(&read(path)?);
        }
        let implementation = Knowing::new(implementation, known.clone());
        let implementation = AgainstQemu::new(&implementation, qemu.clone());
        Ok(Self { implementation, known, folders, qemu, files })
    }

    /// Rejects folders, which only `triage` reads.
    pub fn reject_folders(&self) -> Result<(), CommandError> {
        match self.folders.first() {
            None => Ok(()),
            Some(path) => Err(CommandError::at(
                path,
                "is a folder, expected a file of known findings; only 'triage' reads folders",
            )),
        }
    }

    /// Returns the file of this process, even if another file has taken its name since. It is called with the same
    /// options `--engine-command`, `--against` and `--known`.
    pub fn executable(&self) -> Result<Executable, CommandError> {
        let running = Path::new("/proc/self/exe");
        let path = match running.exists() {
            true => running.to_path_buf(),
            false => std::env::current_exe().map_err(|error| {
                CommandError::Message(format!("cannot find the running executable: {error}"))
            })?,
        };
        let option = |file: &PathBuf| {
            let mut option = OsString::from("--known=");
            option.push(file);
            option
        };
        let engine = engine::arguments().into_iter().chain(against::arguments(self.qemu.as_ref()));
        Ok(Executable::new(path, engine.chain(self.files.iter().map(option))))
    }
}

/// Reads a file of known findings.
fn read(path: &Path) -> Result<KnownFindings, CommandError> {
    let text = String::from_utf8(files::read(path, u64::MAX)?)
        .map_err(|_| CommandError::at(path, "is not UTF-8, expected a text in TOML"))?;
    KnownFindings::parse(&text).map_err(|error| CommandError::at(path, error))
}
