//! A folder in which tools perform the commands of one recipe, step by step: the facts that are then known of its
//! disks, and their files in memory, as QEMU names them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use serde::Deserialize;

use super::guest::GuestModel;
use super::guest_data::{Expected, samples};
use super::perform::{Performed, QemuTool, QemuTools, RunTool, perform, run_tool};
use super::recipe::{AskedDisk, COMPRESSED_WRITE, Command, RecipeStep, value_of};
use super::{RecipeError, claims};
use crate::base::features::FeatureSet;
use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::MAX_LAYERS;
use crate::base::ranges::KnownBytes;
use crate::disk::error::StorageError;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, GRAIN_BYTES, PIECE_BYTES, Storage, each_data};
use crate::images::files::image::Image;
use crate::images::files::{Images, LayerFiles};
use crate::processes::Reply;

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
            run_tool(tools.executable(tool), words, folder, PATIENCE)
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
        let taken = take(&reply, disk, folder, images)?;
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
/// and `preallocated-end-of-file` of `docs/differential.md`.
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

/// The highest number of bytes of all files that are not zeros.
const MAX_TAKEN_BYTES: u64 = 48 << 20;
/// The unit of holes. Zeros of this length in a file count as a hole, so that the file system has no say in it.
const SMALLEST_HOLE_BYTES: usize = 4096;

/// The files that were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// None: there are no files, they are too many or too large, or the names do not lead to them from another folder.
    Nothing,
    /// The image at the top alone: QEMU does not open it.
    Alone,
    /// All images, with the files beside them.
    Chain,
}

/// An image of a chain, as `qemu-img info` describes it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ImageJson {
    filename: String,
    format: String,
    format_specific: Option<OwnFormatJson>,
}

/// The fields that only some formats have.
#[derive(Deserialize)]
struct OwnFormatJson {
    data: DataJson,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DataJson {
    data_file: Option<String>,
    #[serde(default)]
    data_file_raw: bool,
    #[serde(default)]
    extents: Vec<ExtentJson>,
}

#[derive(Deserialize)]
struct ExtentJson {
    filename: String,
}

/// Takes the files of a disk in `folder`, which `info`, the answer of `qemu-img info --backing-chain`, describes.
fn take(
    info: &Reply,
    disk: &AskedDisk,
    folder: &Path,
    images: &mut Images,
) -> Result<Taken, RecipeError> {
    let folder = folder.canonicalize().map_err(|error| RecipeError::file(folder, error))?;
    let mut taking = Taking { folder, left: MAX_TAKEN_BYTES };
    if !info.is_success() {
        let format = disk.format.as_deref().unwrap_or("qcow2");
        let top = ImageJson {
            filename: disk.file.clone(),
            format: format.to_string(),
            format_specific: None,
        };
        let is_taken = taking.layers(&[top], images)?;
        return Ok(if is_taken { Taken::Alone } else { Taken::Nothing });
    }
    let chain: Vec<ImageJson> = serde_json::from_slice(&info.stdout).map_err(|error| {
        RecipeError::Recipe(format!("qemu-img info: {error}, expected a list of images"))
    })?;
    let is_taken = taking.layers(&chain, images)?;
    Ok(if is_taken { Taken::Chain } else { Taken::Nothing })
}

/// Files that are being taken.
struct Taking {
    folder: PathBuf,
    /// The bytes that may be taken.
    left: u64,
}

impl Taking {
    /// Takes a chain, the image at the top first. Returns false if it cannot be taken.
    fn layers(&mut self, chain: &[ImageJson], images: &mut Images) -> Result<bool, RecipeError> {
        if chain.is_empty() || chain.len() > MAX_LAYERS {
            return Ok(false);
        }
        images.resize(chain.len());
        images.set_unchanged(0);
        for (height, image) in chain.iter().rev().enumerate() {
            if !self.layer(image, images.layer_mut(height))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn layer(&mut self, image: &ImageJson, files: &mut LayerFiles) -> Result<bool, RecipeError> {
        let Some(format) = ImageFormat::named(image.format.as_bytes()) else { return Ok(false) };
        let Some((path, name)) = self.place_of(&image.filename) else { return Ok(false) };
        files.begin(format);
        files.name.clone_from(&name);
        if !self.file(&path, format == ImageFormat::Raw, &mut files.image)? {
            return Ok(false);
        }
        let Some(OwnFormatJson { data }) = &image.format_specific else { return Ok(true) };
        if let Some(named) = &data.data_file {
            // QEMU looks for it in the current folder, and other readers in that of the image.
            let place = self.place_of(named).filter(|_| !name.contains('/'));
            let Some((path, name)) = place else { return Ok(false) };
            (files.has_data_file, files.data_file_is_raw) = (true, data.data_file_raw);
            files.data_file_name = name;
            if !self.file(&path, false, &mut files.data_file)? {
                return Ok(false);
            }
        }
        let beside = data.extents.iter().filter_map(|extent| {
            let there = self.place_of(&extent.filename);
            (there.as_ref().map(|(path, _)| path) != Some(&path)).then_some(there)
        });
        let beside: Vec<_> = beside.collect();
        if beside.len() > MAX_EXTENT_FILES {
            return Ok(false);
        }
        for (nth, place) in beside.into_iter().enumerate() {
            let Some((path, name)) = place else { return Ok(false) };
            if let Some(named) = files.extent_names.get_mut(nth) {
                *named = name;
            }
            if !self.file(&path, false, files.extents.add())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the path of a file that QEMU names, and its name in the folder. A file elsewhere has none.
    fn place_of(&self, named: &str) -> Option<(PathBuf, String)> {
        let path = self.folder.join(named).canonicalize().ok()?;
        let name = path.strip_prefix(&self.folder).ok()?.to_str()?.to_string();
        Some((path, name))
    }

    /// Takes a file. Returns false if it is too large.
    fn file(
        &mut self,
        path: &Path,
        has_holes: bool,
        into: &mut Image,
    ) -> Result<bool, RecipeError> {
        let failed = |error: String| RecipeError::file(path, std::io::Error::other(error));
        let file = FileStorage::open(path).map_err(|error| failed(error.to_string()))?;
        into.clear();
        if has_holes {
            into.stored.begin();
        }
        let length_bytes = file.length_bytes();
        let end = length_bytes.checked_next_multiple_of(GRAIN_BYTES).unwrap_or(u64::MAX);
        let mut scratch = vec![0; PIECE_BYTES];
        let range = HostOffset::ZERO..HostOffset::new(end);
        let taken = each_data::<_, StorageError>(&file, range, &mut scratch, |data| {
            let pieces = data.bytes.chunks(SMALLEST_HOLE_BYTES).enumerate();
            for (nth, piece) in pieces.filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)) {
                let at = data.offset + (nth * SMALLEST_HOLE_BYTES) as u64;
                let there = length_bytes.saturating_sub(at.get()).min(piece.len() as u64);
                let Some(left) = self.left.checked_sub(there) else {
                    return Ok(ControlFlow::Break(()));
                };
                self.left = left;
                into.write(at, piece.get(..there as usize).unwrap_or_default());
                into.stored.add(at, SMALLEST_HOLE_BYTES as u64);
            }
            Ok(ControlFlow::Continue(()))
        });
        let taken = taken.map_err(|error| failed(error.to_string()))?;
        into.seal(length_bytes);
        Ok(taken.is_continue())
    }
}
