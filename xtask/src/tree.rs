//! Copies of the tree in which something is planted: bugs, mutants, faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{ROOT, command, files_below, output, quiet, read, root};

/// The bug that is a condition in the source, and no patch.
pub const CANARY: &str = "canary";
/// A build script that sets the condition for the walker only. RUSTFLAGS would rebuild all dependencies.
pub const CANARY_SCRIPT: (&str, &str) = (
    "crates/walker/build.rs",
    "//! Plants the canary.\nfn main() {\n    println!(\"cargo::rustc-cfg=qcowfuzz_canary\");\n    \
     println!(\"cargo::rerun-if-changed=build.rs\");\n}\n",
);
/// The files that state the versions of our packages.
const STATED: [&str; 4] =
    ["Cargo.toml", "crates/walker/Cargo.toml", "Cargo.lock", "fuzz/Cargo.lock"];

/// Files with other contents than those of the tree, by their paths below the root.
pub type Changes = BTreeMap<String, String>;

/// A copy of the tree, which shares all built dependencies with the tree.
pub struct Tree {
    name: String,
    /// The copy.
    pub folder: PathBuf,
    /// The folder of its programs: the target folder of cargo.
    pub target: PathBuf,
    _lock: File,
}

impl Tree {
    /// Creates the folder of a copy, `target/planted/NAME-tree`, and locks it.
    pub fn new(name: &str) -> Result<Self> {
        let planted = root().join("target/planted");
        let (folder, target) = (planted.join(format!("{name}-tree")), planted.join(name));
        for below in ["target", "fuzz/target"] {
            fs::create_dir_all(root().join(below))?;
            let link = folder.join(below);
            fs::create_dir_all(link.parent().context("a link without a folder")?)?;
            if !link.is_symlink() {
                symlink(root().join(below), link)?;
            }
        }
        let lock = File::create(planted.join(format!("{name}-lock")))?;
        if lock.try_lock().is_err() {
            bail!("another process uses {}; wait for it, or use another clone", folder.display());
        }
        Ok(Self { name: name.to_owned(), folder, target, _lock: lock })
    }

    /// Copies the tree, and plants bugs in the copy: [`CANARY`], or patches of `bugs/` without `.patch`.
    pub fn planted(name: &str, bugs: &[&str]) -> Result<Self> {
        let tree = Self::new(name)?;
        tree.plant(bugs)?;
        Ok(tree)
    }

    /// Plants bugs, in the place of those before. The lines around a change must be there exactly.
    pub fn plant(&self, bugs: &[&str]) -> Result<()> {
        let (mut changes, work) = (Changes::new(), tempfile::tempdir()?);
        let (sound, planted) = (work.path().join("sound"), work.path().join("planted"));
        for bug in bugs {
            if *bug == CANARY {
                changes.insert(CANARY_SCRIPT.0.to_owned(), CANARY_SCRIPT.1.to_owned());
                continue;
            }
            let patch = root().join("bugs").join(format!("{bug}.patch"));
            let text = fs::read_to_string(&patch).with_context(|| patch.display().to_string())?;
            let file = text.lines().find_map(|line| line.strip_prefix("--- a/"));
            let file = file.with_context(|| format!("{bug}: expected a patch of a file"))?;
            fs::write(&sound, changes.get(file).cloned().map_or_else(|| read(file), Ok)?)?;
            let mut apply = command("patch");
            apply.args(["-s", "-F0", "-o"]).args([&planted, &sound, &patch]);
            quiet(&mut apply).with_context(|| format!("{bug}: does not apply"))?;
            changes.insert(file.to_owned(), fs::read_to_string(&planted)?);
        }
        self.write(changes)
    }

    /// Makes the copy the tree with changes. Our packages get a version that names the copy: cargo builds a crate of
    /// another version beside the sound one.
    pub fn write(&self, mut changes: Changes) -> Result<()> {
        for name in STATED {
            let (mut is_ours, mut text) = (false, String::new());
            for line in changes.remove(name).map_or_else(|| read(name), Ok)?.lines() {
                let version = line.strip_prefix("version = ").and_then(|it| it.strip_suffix('"'));
                text += &match version.filter(|_| is_ours) {
                    Some(version) => format!("version = {version}+{}\"\n", self.name),
                    None => format!("{line}\n"),
                };
                is_ours = ["name = \"qcowfuzz\"", "name = \"qcowfuzz-walker\""].contains(&line);
            }
            changes.insert(name.to_owned(), text);
        }
        copy(&self.folder, &changes)
    }

    /// Returns a command that runs in the copy, and builds into a folder of its own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command(program);
        command.current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.target);
        // Cargo before 1.91 ignores this variable and then shares nothing.
        command.env("CARGO_BUILD_BUILD_DIR", "{workspace-root}/target");
        command
    }

    /// Builds the command, not optimized, and returns its path.
    pub fn qcowfuzz(&self) -> Result<PathBuf> {
        quiet(self.command("cargo").args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
        Ok(self.target.join("debug/qcowfuzz"))
    }

    /// Returns this program, which works on the copy.
    pub fn xtask(&self) -> Result<Command> {
        let mut command = self.command(std::env::current_exe()?);
        command.env(ROOT, &self.folder);
        Ok(command)
    }
}

/// Makes a folder a copy of the files that git knows or would add, with changes. Links stay links. Cargo compares
/// dates, so a file that has the content already keeps its date.
pub fn copy(to: &Path, changes: &Changes) -> Result<()> {
    let listed = output(command("git").args(["ls-files", "-z", "-co", "--exclude-standard"]))?;
    let is_there = |path: PathBuf| path.is_file() || path.is_symlink();
    let listed = listed.split_terminator('\0').filter(|name| is_there(root().join(name)));
    let names: BTreeSet<_> = listed.chain(changes.keys().map(String::as_str)).collect();
    fs::create_dir_all(to)?;
    for path in files_below(to)?.into_iter().filter(|path| !path.is_symlink()) {
        if !path.strip_prefix(to)?.to_str().is_some_and(|name| names.contains(name)) {
            fs::remove_file(path)?;
        }
    }
    for name in names {
        let (from, to) = (root().join(name), to.join(name));
        fs::create_dir_all(to.parent().context("a file without a folder")?)?;
        if from.is_symlink() {
            if !to.is_symlink() {
                symlink(fs::read_link(from)?, to)?;
            }
            continue;
        }
        let wanted = changes.get(name).map_or_else(|| fs::read(&from), |it| Ok(it.clone().into()));
        let wanted = wanted.with_context(|| name.to_owned())?;
        if fs::read(&to).ok().as_ref() != Some(&wanted) {
            fs::write(&to, wanted)?;
            if let Ok(metadata) = fs::metadata(from) {
                fs::set_permissions(&to, metadata.permissions())?;
            }
        }
    }
    Ok(())
}

/// Has AddressSanitizer instrument C code, too: that of zstd. A command with `-s none` runs as it is.
pub fn sanitized(command: &mut Command) -> &mut Command {
    let none = command.get_args().collect::<Vec<_>>().windows(2).any(|it| it == ["-s", "none"]);
    if !none {
        let given = std::env::var("CFLAGS").map_or(String::new(), |it| it + " ");
        // Both runtimes are LLVM's, so code of GCC and of rustc can share one.
        command.env("CFLAGS", given + "-fsanitize=address -fno-omit-frame-pointer");
    }
    command.stdin(Stdio::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_tree_with_its_changes() {
        let (work, mut changes) = (tempfile::tempdir().unwrap(), Changes::new());
        let path = |name: &str| work.path().join(name);
        changes.insert("deny.toml".to_owned(), "planted".to_owned());
        changes.insert("new/file".to_owned(), "new".to_owned());
        copy(work.path(), &changes).unwrap();
        let date = |name: &str| fs::metadata(path(name)).unwrap().modified().unwrap();
        let (same, text) =
            (date("Cargo.toml"), |name: &str| fs::read_to_string(path(name)).unwrap());
        assert_eq!((text("deny.toml").as_str(), text("new/file").as_str()), ("planted", "new"));
        assert_eq!(fs::read_link(path("fuzz/corpus")).unwrap(), Path::new("../corpus"));
        copy(work.path(), &Changes::new()).unwrap();
        assert_eq!(text("deny.toml"), read("deny.toml").unwrap());
        assert!(!path("new/file").exists() && date("Cargo.toml") == same);
    }
}
