//! The reports of a campaign: a folder for each fingerprint.

mod issue;

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::divergence::DivergenceKind;
use super::iteration::Met;
use super::minimize::MinimizedRecipe;
use super::sides::Sides;
use super::workdir::{WorkFolder, files_below};
use crate::base::error::Error;
use crate::base::files::replace;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, PIECE_BYTES, Storage, each_data};
use crate::recipes::recipe::Recipe;
use issue::{commands_of, issue, script};

/// The text of an issue about the divergence.
pub const ISSUE_FILE: &str = "issue.md";
/// The facts about the divergence.
const REPORT_FILE: &str = "divergence.json";
/// The longest name of a report's folder, without its digest.
const MAX_NAME: usize = 60;

/// A divergence, as its report states it.
#[derive(Clone, Debug, Serialize)]
pub struct DivergenceReport {
    /// The fingerprint.
    pub fingerprint: String,
    /// The kind.
    pub kind: DivergenceKind,
    /// The difference in the minimized image.
    pub detail: String,
    /// The seed of the campaign.
    pub rng_seed: u64,
    /// The iteration that met it first.
    pub iteration: u64,
    /// The version of qemu-img.
    pub qemu_version: String,
    /// The program under test.
    pub tested: String,
    /// The minimized recipe.
    pub minimized: Recipe,
    /// The recipe of the iteration.
    pub recipe: Recipe,
    /// The shell commands of the minimized recipe, and the question.
    pub commands: Vec<String>,
    /// The number of recipes that were tried to minimize it.
    pub tries: usize,
    /// The divergence has been minimized. A campaign that is killed before that leaves the recipe as it was found.
    pub is_minimized: bool,
    /// Images that are too long to keep.
    pub left_out: Vec<String>,
    /// The folder of the report, inside the folder of all reports.
    pub folder: String,
}

/// The iteration that showed a divergence.
#[derive(Clone, Copy, Debug)]
pub struct ReportOrigin<'o> {
    /// The seed of the campaign.
    pub rng_seed: u64,
    /// The number of the iteration.
    pub iteration: u64,
    /// Its recipe.
    pub recipe: &'o Recipe,
    /// The programs.
    pub sides: &'o Sides,
}

/// Returns the commands that show a known divergence of the recipe of `origin`, and the text of an issue about it.
/// `reason` says why it is a bug.
pub(super) fn describe_known(
    origin: ReportOrigin<'_>,
    met: &Met,
    reason: &str,
) -> (Vec<String>, String) {
    let mut recipe = origin.recipe.clone();
    recipe.steps.truncate(met.step.saturating_add(1));
    let commands = commands_of(origin.sides, &MinimizedRecipe::as_found(&recipe, met.clone()));
    let body = format!("{reason}\n\n{}", met.divergence.detail);
    let text = issue(met, &body, &commands, origin.sides);
    (commands, text)
}

/// The folder of all reports.
#[derive(Debug)]
pub struct Reports {
    dir: PathBuf,
    /// The files and folders that are still written.
    incomplete: WorkFolder,
}

impl Reports {
    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// It cannot be created, or files that a killed campaign had not completed cannot be removed.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        Ok(Self { incomplete: WorkFolder::incomplete(dir)?, dir: dir.to_path_buf() })
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the report of a divergence, whose recipe was carried out in `disk` last. The folder of the report appears
    /// whole. An earlier report of the same divergence between the same programs stays, unless it is not minimized and
    /// this one is.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write(
        &self,
        origin: ReportOrigin<'_>,
        minimized: &MinimizedRecipe,
        disk: &Path,
    ) -> Result<DivergenceReport, Error> {
        let met = &minimized.met;
        let (commands, left_out) = (commands_of(origin.sides, minimized), Vec::new());
        let folder = folder_name(&met.fingerprint, origin.sides);
        let mut report = DivergenceReport {
            fingerprint: met.fingerprint.clone(),
            kind: met.divergence.kind,
            detail: met.divergence.detail.clone(),
            rng_seed: origin.rng_seed,
            iteration: origin.iteration,
            qemu_version: origin.sides.qemu.version.clone(),
            tested: origin.sides.tested.name(),
            minimized: minimized.recipe.clone(),
            recipe: origin.recipe.clone(),
            commands,
            tries: minimized.tries,
            is_minimized: minimized.is_minimized,
            left_out,
            folder: folder.clone(),
        };
        let path = self.dir.join(&folder);
        let stays = || path.exists() && !(report.is_minimized && is_as_found(&path));
        if stays() {
            return Ok(report);
        }
        let failed = |error| Error::file(&self.dir, error);
        let staged = tempfile::tempdir_in(self.incomplete.path()).map_err(failed)?;
        copy_images(disk, &staged.path().join("disk"), &mut report.left_out)?;
        write_outputs(met, staged.path())?;
        write(
            &staged.path().join(ISSUE_FILE),
            issue(met, &met.divergence.detail, &report.commands, origin.sides).as_bytes(),
        )?;
        write(&staged.path().join("commands.sh"), script(&report.commands).as_bytes())?;
        let json = serde_json::to_vec_pretty(&report).map_err(|error| failed(error.into()))?;
        write(&staged.path().join(REPORT_FILE), &json)?;
        put(&staged.keep(), &path).map_err(|error| Error::file(&path, error))?;
        Ok(report)
    }

    /// Replaces a file of the folder: at any moment, the old or the new one is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        replace(&self.dir.join(name), self.incomplete.path(), bytes)
    }
}

/// Reports whether an earlier campaign was killed before it minimized the divergence of a report.
fn is_as_found(report: &Path) -> bool {
    #[derive(Deserialize)]
    struct Earlier {
        is_minimized: bool,
    }
    let json = fs::read(report.join(REPORT_FILE)).unwrap_or_default();
    serde_json::from_slice(&json).is_ok_and(|earlier: Earlier| !earlier.is_minimized)
}

/// Returns the name of a report's folder: the fingerprint in letters that every file system takes, and a digest of the
/// fingerprint and both sides.
fn folder_name(fingerprint: &str, sides: &Sides) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let text: String = fingerprint.chars().map(plain).collect();
    let words: Vec<&str> = text.split('-').filter(|word| !word.is_empty()).collect();
    let name: String = words.join("-").chars().take(MAX_NAME).collect();
    let whole = [fingerprint, &sides.qemu.version, &sides.tested.name()].join("\n");
    let digest = hex::encode(Sha256::digest(whole));
    format!("{}-{}", name.trim_end_matches('-'), digest.get(..8).unwrap_or_default())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|error| Error::file(path, error))
}

/// Writes both complete outputs.
fn write_outputs(met: &Met, staged: &Path) -> Result<(), Error> {
    let Some((qemu, tested)) = &met.answers else { return Ok(()) };
    for (side, answer) in [("qemu", Some(qemu)), ("tested", tested.as_ref())] {
        let Some(answer) = answer else { continue };
        write(&staged.join(format!("{side}.stdout")), &answer.stdout)?;
        write(&staged.join(format!("{side}.stderr")), &answer.stderr)?;
        write(&staged.join(format!("{side}.end")), format!("{}\n", answer.end.brief()).as_bytes())?;
    }
    Ok(())
}

/// Moves a folder to `path`. If a folder is there, both change places, and the older one is removed.
fn put(staged: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(staged, path) {
        Err(_) if path.exists() => {}
        renamed => return renamed,
    }
    if exchange(staged, path).is_err() {
        // The file system cannot exchange two names. Between these two calls, the report is missing.
        fs::remove_dir_all(path)?;
        return fs::rename(staged, path);
    }
    fs::remove_dir_all(staged)
}

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The most bytes of an image that a report keeps. Holes do not count.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
/// Copies the images of a folder, and notes the names of those that are too long. Without the folder, there are none.
fn copy_images(from: &Path, to: &Path, left_out: &mut Vec<String>) -> Result<(), Error> {
    fs::create_dir(to).map_err(|error| Error::file(to, error))?;
    if !from.exists() {
        return Ok(());
    }
    for path in files_below(from).map_err(|error| Error::file(from, error))? {
        let name = path.strip_prefix(from).unwrap_or(&path);
        let source = FileStorage::open(&path)?;
        if source.allocated_bytes().is_some_and(|bytes| bytes > MAX_IMAGE_BYTES) {
            left_out.push(name.to_string_lossy().into_owned());
            continue;
        }
        let target = to.join(name);
        let copied =
            fs::create_dir_all(target.parent().unwrap_or(to)).and_then(|()| copy(&source, &target));
        copied.map_err(|error| Error::file(&target, error))?;
    }
    Ok(())
}

fn copy(source: &FileStorage, target: &Path) -> io::Result<()> {
    let file = File::create(target)?;
    file.set_len(source.length_bytes())?;
    let range = HostOffset::ZERO..HostOffset::new(source.length_bytes());
    let copied = each_data::<_, io::Error>(source, range, &mut vec![0; PIECE_BYTES], |data| {
        file.write_all_at(data.bytes, data.offset.get())?;
        Ok(ControlFlow::Continue(()))
    });
    copied.map(drop)
}
