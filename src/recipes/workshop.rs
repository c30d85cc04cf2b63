//! A folder in which tools perform the commands of one recipe, step by step, and what is then known of the disks.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::features::FeatureSet;
use crate::base::known_bytes::KnownBytes;
use crate::images::files::Images;
use crate::processes::Reply;

use super::claims;
use super::error::RecipeError;
use super::guest::{Expected, GuestModel, samples};
use super::made_files::{self, Taken};
use super::perform::{Performed, QemuTool, RunTool, perform};
use super::recipe::{AskedDisk, COMPRESSED_WRITE, Command, RecipeStep, value_of};
use super::tools::{QemuTools, run_tool};

/// The time limit of a tool. One that takes longer is stopped, and counts as one that fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder, and what is known of the disks in it.
pub struct Workshop<'r> {
    run: Box<RunTool<'r>>,
    folder: PathBuf,
    guest: GuestModel,
    features: FeatureSet,
    /// A command has damaged an image.
    is_damaged: bool,
    /// A command may have made QEMU lose data.
    is_lossy: bool,
}

/// The files of a disk, in memory.
#[derive(Clone, Debug)]
pub struct MadeDisk {
    /// The features that the images may have.
    pub features: FeatureSet,
    /// A command has damaged an image, or QEMU does not open the disk: nothing is known about its content.
    pub is_any_content: bool,
    /// Bytes that a guest must read.
    pub known: Vec<KnownBytes>,
}

impl fmt::Debug for Workshop<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workshop").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl<'r> Workshop<'r> {
    /// Works in `folder`, which is empty or not yet there, with `run`.
    pub fn new(
        folder: &Path,
        run: impl Fn(QemuTool, &[String], &Path) -> io::Result<Reply> + 'r,
    ) -> Self {
        let (guest, features) = Default::default();
        let (run, folder) = (Box::new(run), folder.to_path_buf());
        Self { run, folder, guest, features, is_damaged: false, is_lossy: false }
    }

    /// Works in `folder`, which is empty, with QEMU's tools.
    pub fn of_qemu(tools: &'r QemuTools, folder: &Path) -> Self {
        Self::new(folder, |tool, words, folder| {
            Ok(run_tool(tools.executable(tool), words, folder, PATIENCE)?.0)
        })
    }

    /// Performs the commands of a step. A tool may refuse each of them.
    ///
    /// # Errors
    /// A tool does not start, or a file cannot be written.
    pub fn change(&mut self, step: &RecipeStep) -> Result<(), RecipeError> {
        step.commands.iter().try_for_each(|command| self.perform(command).map(|_| ()))
    }

    /// Performs a command.
    ///
    /// # Errors
    /// As for [`Workshop::change`].
    pub fn perform(&mut self, command: &Command) -> Result<Performed, RecipeError> {
        let Self { run, folder, guest, features, is_damaged, is_lossy } = self;
        let performed = perform(command, run, folder)?;
        guest.note(command, &performed);
        *is_lossy |= loses_data(command);
        match &performed {
            Performed::Program(built) => {
                *features = features.with(built.vm.features());
                *is_damaged |= !built.vm.attacks().is_empty();
            }
            Performed::Written => *is_damaged |= matches!(command, Command::Damage { .. }),
            Performed::Reply(_) => *features = features.with(claims::of_command(command)),
        }
        Ok(performed)
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the bytes that guests must read.
    pub(crate) fn guest(&self) -> &GuestModel {
        &self.guest
    }

    /// Reads the files of a disk into `images`. Returns `None` if there is no disk, its files are too large, or QEMU
    /// opens it only in this folder.
    ///
    /// # Errors
    /// A tool does not start, or a file cannot be read.
    pub fn take(
        &self,
        disk: &AskedDisk,
        images: &mut Images,
    ) -> Result<Option<MadeDisk>, RecipeError> {
        let words = chain_words(disk);
        let folder = self.folder();
        let reply = (self.run)(QemuTool::Img, &words, folder).map_err(RecipeError::Process)?;
        let taken = made_files::take(&reply, disk, folder, images)?;
        let is_any_content = match taken {
            Taken::Nothing => return Ok(None),
            Taken::Chain => self.is_damaged,
            Taken::Alone => true,
        };
        let known = match self.guest.disk(&disk.file) {
            Some(data) if !is_any_content && !self.is_lossy => {
                samples(&Expected::new(data, folder)?)
            }
            _ => Vec::new(),
        };
        Ok(Some(MadeDisk { features: self.features, is_any_content, known }))
    }
}

/// Returns the command that describes the images of a disk.
fn chain_words(disk: &AskedDisk) -> Vec<String> {
    let mut words = ["info", "-U", "--backing-chain", "--output=json"].map(str::to_string).to_vec();
    words.extend(disk.format.iter().flat_map(|format| ["-f".to_string(), format.clone()]));
    words.push(disk.file.clone());
    words
}

/// Reports whether QEMU may lose data by a command: the faults `compressed-overwrite`, `preallocated-old-data`
/// and `preallocated-end-of-file` of `docs/quirks.md`.
fn loses_data(command: &Command) -> bool {
    match command {
        Command::QemuImg(words) => {
            let preallocation = words.iter().find_map(|word| word.strip_prefix("--preallocation="));
            preallocation.is_some_and(|value| value != "off")
                && value_of(words, "-f") == Some("qcow2")
        }
        Command::QemuIo { requests, .. } => {
            requests.iter().any(|request| request.starts_with(COMPRESSED_WRITE))
        }
        _ => false,
    }
}
