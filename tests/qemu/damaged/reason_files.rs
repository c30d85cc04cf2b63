//! Files that cannot be opened, and wrong command lines.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use test_support::prelude::*;

use qcowfuzz::internal::differential::reason::ReasonClass;
use tempfile::TempDir;

use super::reasons::{OURS, Run, Runs};

/// The number of a user without privileges. The administrator may open every file.
const OTHER_USER: u32 = 65_534;
/// The number of open files after which QEMU gives up following a chain.
const MAX_FILES: u32 = 64;

/// A command line on which both programs fail.
pub struct Case {
    arguments: Vec<String>,
    pub class: ReasonClass,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arguments.join(" "))
    }
}

impl Case {
    /// Returns the command.
    pub fn command(&self) -> &str {
        &self.arguments[0]
    }

    /// Runs the command line in the folder.
    pub fn run(&self, dir: &Path) -> Checked<Runs> {
        let run = |program: &str, output: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {MAX_FILES} && exec \"$0\" \"$@\""), program]);
            let arguments = self.arguments.iter().map(|word| word.replace("OUTPUT", output));
            command.args(arguments).current_dir(dir);
            if fs::metadata(dir).described()?.uid() == 0 {
                command.uid(OTHER_USER).gid(OTHER_USER);
            }
            Run::of(&mut command)
        };
        Ok(Runs { ours: run("./qcowfuzz", "ours.raw")?, theirs: run("qemu-img", "theirs.raw")? })
    }
}

/// A folder that every user may read, with the files of the cases and a copy of our program.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str, bits| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(bits)).unwrap();
        };
        fs::copy(OURS, at("qcowfuzz")).unwrap();
        let create = |name: &str, more: &[&str]| {
            let mut command = Command::new("qemu-img");
            command.args(["create", "-q", "-f"]).args(more).current_dir(dir.path());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{name}: {output:?}");
        };
        create("sound", &["qcow2", "sound", "1M"]);
        create("closed", &["qcow2", "closed", "1M"]);
        create("fixed", &["vpc", "fixed", "1M"]);
        create("block", &["vhdx", "block", "8M"]);
        for (name, backing) in [
            ("no-backing", "missing"),
            ("closed-backing", "closed"),
            ("folder-backing", "folder"),
            ("protocol-backing", "nbd://localhost:1/x"),
            ("one", "other"),
            ("other", "one"),
        ] {
            create(name, &["qcow2", "-u", "-b", backing, "-F", "qcow2", name, "1M"]);
        }
        create("no-data", &["qcow2", "-o", "data_file=data", "no-data", "1M"]);
        fs::remove_file(at("data")).unwrap();
        create("no-extent", &["vmdk", "-o", "subformat=monolithicFlat", "no-extent", "1M"]);
        fs::remove_file(at("no-extent-flat")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("short"), "short").unwrap();
        fs::write(at("empty"), "").unwrap();
        symlink("loop", at("loop")).unwrap();
        mode("closed", 0);
        mode("", 0o755);
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Returns a case for each command, with the operands that it needs.
fn each(commands: &[&str], image: &str, options: &str, class: ReasonClass) -> Vec<Case> {
    let case = |command: &&str| {
        let output = if *command == "convert" { "-O raw" } else { "" };
        let target = if *command == "convert" { "OUTPUT" } else { "" };
        let line = format!("{command} {options} {output} {image} {target}");
        Case { arguments: line.split_whitespace().map(str::to_string).collect(), class }
    };
    commands.iter().map(case).collect()
}

/// Returns the cases.
pub fn cases() -> Vec<Case> {
    use ReasonClass::{
        EndlessChain, MissingFile, NoChecks, NoHostOffset, NotThisFormat, UnusableFile, Usage,
    };
    let all = crate::damaged::reasons::COMMANDS;
    let (follow, map) = (["map", "convert"], ["map"]);
    let long = "a".repeat(300);
    let mut cases = Vec::new();
    for name in ["missing", "loop", "sound/below", &long] {
        cases.extend(each(&all, name, "", MissingFile));
        cases.extend(each(&all, name, "-f vpc", MissingFile));
    }
    for name in ["folder", "closed"] {
        cases.extend(each(&all, name, "", UnusableFile));
        cases.extend(each(&all, name, "-f qcow2", UnusableFile));
    }
    cases.extend(each(&follow, "no-backing", "", MissingFile));
    cases.extend(each(&follow, "no-data", "", MissingFile));
    cases.extend(each(&all, "no-extent", "", MissingFile));
    for name in ["closed-backing", "folder-backing", "protocol-backing"] {
        cases.extend(each(&follow, name, "", UnusableFile));
    }
    cases.extend(each(&follow, "one", "", EndlessChain));
    for name in ["short", "empty"] {
        for format in ["qcow2", "vpc", "vhdx", "vmdk"] {
            cases.extend(each(&all, name, &format!("-f {format}"), NotThisFormat));
        }
    }
    cases.extend(each(&["check"], "fixed", "-f vpc", NoChecks));
    cases.extend(each(&["check"], "short", "-f raw", NoChecks));
    cases.extend(each(&map, "block", "--output=human", NoHostOffset));
    for window in ["-s -1", "-s x", "-s 9E", "-l -1", "-l 1kb", "--start-offset=8E"] {
        cases.extend(each(&map, "sound", window, Usage));
    }
    cases.extend(each(&all, "sound", "-f unknown", Usage));
    cases.extend(each(&all, "sound", "--unknown", Usage));
    cases.extend(each(&all, "", "", Usage));
    cases.extend(each(&["map", "info", "check"], "sound fixed", "", Usage));
    cases.extend(each(&["map", "info", "check"], "sound", "--output=xml", Usage));
    let missing = "convert -O raw sound missing/OUTPUT".split(' ').map(str::to_string).collect();
    cases.push(Case { arguments: missing, class: MissingFile });
    cases
}
