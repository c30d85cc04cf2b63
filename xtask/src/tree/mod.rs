//! A copy of the tree in which one change after another is built: planted bugs, mutants, switches.

pub mod planted;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{command, files_below, output, quiet, root, target_folder};

/// Files of the tree with other contents, by their paths below the root.
pub type Changes = BTreeMap<String, String>;

/// A copy of the tree, below cargo's target folder.
pub struct Tree {
    /// The folder of the copy, of its builds, and of the kept measurements.
    pub work: PathBuf,
    files: Vec<String>,
    _lock: File,
}

impl Tree {
    /// Locks the folder `NAME` of cargo's target folder: two measurements would run each other's builds. The copy has
    /// the files that git knows or would add, below the paths, or all.
    pub fn new(name: &str, paths: &[&str]) -> Result<Self> {
        let work = target_folder("").join(name);
        fs::create_dir_all(work.join("tree"))?;
        let lock = File::create(work.join("lock"))?;
        if lock.try_lock().is_err() {
            bail!("another measurement uses {}; wait for it, or use another clone", work.display());
        }
        let this = Self { work, files: files(paths)?, _lock: lock };
        for path in files_below(&this.folder())? {
            let name = path.strip_prefix(this.folder())?.to_string_lossy().into_owned();
            if this.files.binary_search(&name).is_err() {
                fs::remove_file(path)?;
            }
        }
        Ok(this)
    }

    /// Returns the folder of the copy.
    pub fn folder(&self) -> PathBuf {
        self.work.join("tree")
    }

    /// Gives each file of the copy the content of the original, or the changed one. Cargo compares dates, so a file
    /// that has the content already is not written.
    pub fn write(&self, changes: &Changes) -> Result<()> {
        for name in &self.files {
            let (from, to) = (root().join(name), self.folder().join(name));
            let wanted = match changes.get(name) {
                Some(text) => text.clone().into_bytes(),
                None => fs::read(&from).with_context(|| name.clone())?,
            };
            if fs::read(&to).ok().as_ref() != Some(&wanted) {
                fs::create_dir_all(to.parent().context("a file without a folder")?)?;
                fs::write(&to, wanted)?;
                fs::set_permissions(&to, fs::metadata(from)?.permissions())?;
            }
        }
        Ok(())
    }

    /// Plants the bug of a patch, in the place of the one before. The lines around a change must be there exactly.
    pub fn plant(&self, patch: &Path) -> Result<()> {
        self.write(&Changes::new())?;
        let mut apply = command("patch");
        let apply = apply.args(["-s", "-p1", "-F0", "-i"]).arg(patch).current_dir(self.folder());
        quiet(apply).map(drop).with_context(|| format!("{}: does not apply", patch.display()))
    }

    /// Returns a command of cargo that runs in the copy, and builds into the folder `builds` beside it. It shares
    /// nothing with the builds of the tree: cargo takes two packages of one name and version for one, and would keep a
    /// bug.
    pub fn cargo(&self, builds: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(self.folder()).env("CARGO_TARGET_DIR", self.work.join(builds));
        cargo
    }
}

/// Returns the files of the tree that git knows or would add, sorted, below the paths, or all.
pub fn files(paths: &[&str]) -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "-co", "--exclude-standard", "--"];
    let listed = output(command("git").args(list).args(paths))?;
    let mut files: Vec<_> = listed.split_terminator('\0').map(str::to_owned).collect();
    // A file may be removed and not committed yet.
    files.retain(|name| root().join(name).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns a short hash of the names and contents of files.
pub fn hash_of(files: &[String]) -> Result<String> {
    let hashes = git_hash("--stdin-paths", &files.join("\n"))?;
    let named: Vec<_> =
        files.iter().zip(hashes.lines()).map(|(a, b)| format!("{a} {b}\n")).collect();
    Ok(git_hash("--stdin", &named.concat())?.chars().take(12).collect())
}

fn git_hash(option: &str, input: &str) -> Result<String> {
    let mut git = command("git");
    git.args(["hash-object", option]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = git.spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let input = input.to_owned();
    // Git writes while it reads.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let done = child.wait_with_output()?;
    writer.join().ok().context("a thread panicked")??;
    match done.status.success() {
        true => Ok(String::from_utf8(done.stdout)?),
        false => bail!("git hash-object: {}, expected success", done.status),
    }
}
