//! A folder in which QEMU performs the commands of one recipe, step by step.

use std::time::Duration;

use tempfile::TempDir;

use crate::disk::features::FeatureSet;
use crate::disk::known_bytes::KnownBytes;
use crate::images::files::Images;

use super::claims;
use super::error::RecipeError;
use super::guest::{Expected, GuestModel, samples};
use super::made_files::{self, Taken};
use super::perform::{Performed, QemuTool, perform};
use super::recipe::{AskedDisk, COMPRESSED_WRITE, Command, RecipeStep};
use super::tools::{QemuTools, run_tool};

/// The time limit of a tool. One that takes longer is stopped, and counts as one that fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder, and what is known of the disks in it.
#[derive(Debug)]
pub struct Workshop {
    tools: QemuTools,
    folder: TempDir,
    guest: GuestModel,
    features: FeatureSet,
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

impl Workshop {
    /// Creates an empty folder. The caller chooses its place and its name.
    pub fn new(tools: QemuTools, folder: TempDir) -> Self {
        let (guest, features) = Default::default();
        Self { tools, folder, guest, features, is_damaged: false, is_lossy: false }
    }

    /// Performs the commands of a step. QEMU may refuse each of them.
    ///
    /// # Errors
    /// A tool does not start, or a file cannot be written.
    pub fn change(&mut self, step: &RecipeStep) -> Result<(), RecipeError> {
        for command in &step.commands {
            self.is_lossy |= loses_data(command);
            let Self { tools, folder, guest, features, is_damaged, .. } = self;
            let folder = folder.path();
            let run = &mut |tool: QemuTool, words: &[String]| {
                Ok(run_tool(tools.executable(tool), words, folder, PATIENCE)?.0)
            };
            let performed = perform(command, run, folder)?;
            guest.note(command, &performed);
            match performed {
                Performed::Program(built) => {
                    *features = features.with(built.vm.features());
                    *is_damaged |= !built.vm.attacks().is_empty();
                }
                Performed::Written => *is_damaged |= matches!(command, Command::Damage { .. }),
                Performed::Reply(_) => *features = features.with(claims::of_command(command)),
            }
        }
        Ok(())
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
        let folder = self.folder.path();
        let asked = run_tool(self.tools.executable(QemuTool::Img), &words, folder, PATIENCE);
        let (reply, _) = asked.map_err(RecipeError::Process)?;
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

/// Reports whether QEMU may lose data by a command: the faults `compressed-overwrite` and `preallocated-old-data` of
/// `docs/quirks.md`.
fn loses_data(command: &Command) -> bool {
    match command {
        Command::QemuImg(words) => words.iter().any(|word| word == "--preallocation=metadata"),
        Command::QemuIo { requests, .. } => {
            requests.iter().any(|request| request.starts_with(COMPRESSED_WRITE))
        }
        _ => false,
    }
}
