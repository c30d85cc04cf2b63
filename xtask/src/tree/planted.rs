//! Copies of the tree in which bugs are planted.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::process::{ROOT, command, quiet, root, run};

/// The bug that is a condition in the source, and no patch.
pub const CANARY: &str = "canary";

/// A build script that sets the condition for the walker only. RUSTFLAGS would rebuild all dependencies.
pub const CANARY_SCRIPT: &str = r#"//! Plants the canary.
fn main() {
    println!("cargo::rustc-cfg=qcowfuzz_canary");
    println!("cargo::rerun-if-changed=build.rs");
}
"#;

/// The files that state the versions of our packages.
const STATED: [&str; 4] =
    ["Cargo.toml", "crates/walker/Cargo.toml", "Cargo.lock", "fuzz/Cargo.lock"];

/// A copy of the tree with bugs. It shares all built dependencies with the tree.
pub struct Planted {
    /// The copy.
    pub tree: PathBuf,
    /// The folder of its build: the target folder of cargo.
    pub target: PathBuf,
}

impl Planted {
    /// Copies the tree to `target/planted/NAME-tree`, and plants bugs: [`CANARY`], or patches of `bugs/` without
    /// `.patch`.
    ///
    /// # Errors
    ///
    /// Fails if a patch does not apply, or if a file cannot be written.
    pub fn new(name: &str, bugs: &[&str]) -> Result<Self> {
        let planted = root().join("target/planted");
        let (tree, target) = (planted.join(format!("{name}-tree")), planted.join(name));
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        fs::create_dir_all(&tree)?;
        fs::create_dir_all(root().join("fuzz/target"))?;
        copy_tree(&tree)?;
        let this = Self { tree, target };
        bugs.iter().try_for_each(|bug| this.plant(bug))?;
        this.name_version(&[&[name], bugs].concat().join("."))?;
        symlink(root().join("target"), this.tree.join("target"))?;
        symlink(root().join("fuzz/target"), this.tree.join("fuzz/target"))?;
        Ok(this)
    }

    fn plant(&self, bug: &str) -> Result<()> {
        if bug == CANARY {
            let script = self.tree.join("crates/walker/build.rs");
            fs::write(&script, CANARY_SCRIPT)?;
            return self.date(&["crates/walker/build.rs"]);
        }
        let patch = root().join("bugs").join(format!("{bug}.patch"));
        let file = File::open(&patch).with_context(|| patch.display().to_string())?;
        run(command("patch").args(["-s", "-p1"]).current_dir(&self.tree).stdin(file))
    }

    /// Gives our packages a version that names the bugs. Cargo builds a crate of another version beside the sound one.
    /// It compares dates only, and would keep a bug that is no longer planted.
    fn name_version(&self, bugs: &str) -> Result<()> {
        let bugs = bugs.replace(|it: char| !it.is_ascii_alphanumeric() && it != '.', "-");
        for name in STATED {
            let path = self.tree.join(name);
            let mut ours = false;
            let mut text = String::new();
            for line in fs::read_to_string(&path)?.lines() {
                let version = line.strip_prefix("version = ").and_then(|it| it.strip_suffix('"'));
                match version.filter(|_| ours) {
                    Some(version) => text += &format!("version = {version}+{bugs}\"\n"),
                    None => text += &format!("{line}\n"),
                }
                ours = ["name = \"qcowfuzz\"", "name = \"qcowfuzz-walker\""].contains(&line);
            }
            fs::write(&path, text)?;
        }
        self.date(&STATED)
    }

    /// Gives files a date that does not change from run to run, so that a second run builds nothing.
    fn date(&self, files: &[&str]) -> Result<()> {
        let date = fs::metadata(root().join("Cargo.toml"))?.modified()?;
        for name in files {
            File::options().append(true).open(self.tree.join(name))?.set_modified(date)?;
        }
        Ok(())
    }

    /// Returns a command that runs in the copy and builds into a folder of its own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = command(program);
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        // Cargo before 1.91 ignores this variable and then shares nothing.
        command.env("CARGO_BUILD_BUILD_DIR", "{workspace-root}/target");
        command
    }

    /// Returns this program, which works on the copy.
    pub fn xtask(&self) -> Result<Command> {
        let mut command = self.command(std::env::current_exe()?);
        command.env(ROOT, &self.tree);
        Ok(command)
    }
}

/// Builds the command with bugs in it, and returns its place.
pub fn planted_command(name: &str, bugs: &[&str]) -> Result<PathBuf> {
    let planted = Planted::new(name, bugs)?;
    quiet(planted.command("cargo").args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
    Ok(planted.target.join("debug/qcowfuzz"))
}

/// Copies all files that git knows or would add, with their dates.
pub fn copy_tree(to: &Path) -> Result<()> {
    let line = "git ls-files -z -co --exclude-standard | tar --null -T - -c | tar -x -C \"$0\"";
    run(command("bash").args(["-c", line]).arg(to))
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
