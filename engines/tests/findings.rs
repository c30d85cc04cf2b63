//! The rows of docs/findings.md: each program of `findings/` still shows its fingerprint, has a row, and each known
//! finding has a program. `regress` runs a program in a process of its own, and sets no known finding aside. `cargo
//! xtask other-languages --rows` installs the implementations behind the line protocol, and runs the test of their
//! programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use qcowfuzz::findings::regression::Regression;
use qcowfuzz::harness::{KnownFinding, KnownFindings};

/// An implementation that has rows.
struct Implementation {
    name: &'static str,
    /// The command of a crate. Any of them serves an implementation behind the line protocol.
    command: &'static str,
    /// `engines/other/engine` runs it behind the line protocol.
    is_behind_protocol: bool,
}

const fn linked(name: &'static str, command: &'static str) -> Implementation {
    Implementation { name, command, is_behind_protocol: false }
}

const fn behind_protocol(name: &'static str) -> Implementation {
    Implementation { name, command: env!("CARGO_BIN_EXE_fstool"), is_behind_protocol: true }
}

const IMPLEMENTATIONS: [Implementation; 13] = [
    linked("fstool", env!("CARGO_BIN_EXE_fstool")),
    linked("imago", env!("CARGO_BIN_EXE_imago")),
    linked("qcow2_core", env!("CARGO_BIN_EXE_qcow2_core")),
    linked("qemu", env!("CARGO_BIN_EXE_qemu")),
    linked("qcow2_rs", env!("CARGO_BIN_EXE_qcow2_rs")),
    linked("rust_img_qcow2", env!("CARGO_BIN_EXE_rust_img_qcow2")),
    linked("vhd_core", env!("CARGO_BIN_EXE_vhd_core")),
    linked("vhdx_core", env!("CARGO_BIN_EXE_vhdx_core")),
    linked("vmdk_core", env!("CARGO_BIN_EXE_vmdk_core")),
    behind_protocol("dissect_hypervisor"),
    behind_protocol("libqcow"),
    behind_protocol("qcow"),
    behind_protocol("seven_zip"),
];

impl Implementation {
    /// Returns the path of its list of known findings.
    fn known(&self) -> PathBuf {
        let folder = if self.is_behind_protocol { "other/known" } else { "known" };
        here().join(folder).join(self.name).with_extension("toml")
    }

    /// Returns its command with the arguments that come before a verb.
    fn command(&self) -> Command {
        let mut command = Command::new(self.command);
        if self.is_behind_protocol {
            let engine = here().join("other/engine");
            command.arg("--engine-command").arg(format!("'{}' {}", engine.display(), self.name));
        }
        command
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the programs of a crate by their names: `CRATE/NAME`.
fn findings(name: &str) -> Vec<(String, Regression)> {
    let files = fs::read_dir(here().join("findings").join(name)).unwrap();
    let read = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        let finding = Regression::parse(&text);
        let stem = path.file_stem().unwrap().to_str().unwrap();
        (format!("{name}/{stem}"), finding.unwrap_or_else(|error| panic!("{path:?}: {error}")))
    };
    files.map(|file| read(&file.unwrap().path())).collect()
}

/// The words of `regress` after the fingerprint of a program that ends its process.
const ENDS_PROCESS: &str = ", expected an input that does not end its process";

/// Returns the fingerprint that a command finds in a program, or its error.
fn fingerprint(implementation: &Implementation, finding: &Regression) -> String {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, &finding.input).unwrap();
    let mut regress = implementation.command();
    regress.arg("regress").arg("--text").args(["--target", finding.target.name()]).arg(&input);
    let output = regress.output().unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let found = text.lines().next().and_then(|line| line.strip_prefix("; "));
    let input = format!("{}: ", input.display());
    let ended = || Some(errors.split_once(ENDS_PROCESS)?.0.split_once(&input)?.1);
    found.or_else(ended).unwrap_or(errors.trim()).to_string()
}

/// Reports whether a run meets `fingerprint` as a known finding. Another known finding may come before it.
fn is_met(implementation: &Implementation, finding: &Regression, fingerprint: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, &finding.input).unwrap();
    let mut replay = implementation.command();
    if implementation.is_behind_protocol {
        replay.arg("--known").arg(implementation.known());
    }
    replay.args(["replay", "--brief", "--json", "--target", finding.target.name()]).arg(&input);
    let text = String::from_utf8_lossy(&replay.output().unwrap().stdout).into_owned();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let met = report["known"].as_array().into_iter().flatten().filter_map(|it| it.as_str());
    let known = met.map(|fingerprint| KnownFinding {
        fingerprint: fingerprint.to_string(),
        reason: "the run met it".to_string(),
        ..KnownFinding::default()
    });
    KnownFindings::new(known).contains(fingerprint)
}

/// Fails if a program of these implementations no longer shows its finding.
fn assert_shown<'a>(implementations: impl Iterator<Item = &'a Implementation>) {
    let mut wrong = Vec::new();
    for implementation in implementations {
        for (name, finding) in findings(implementation.name) {
            let found = fingerprint(implementation, &finding);
            let expected = &finding.fingerprint;
            if found != *expected && !is_met(implementation, &finding, expected) {
                wrong.push(format!("{name}: expected {}, found {found}", finding.fingerprint));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_program_shows_its_finding() {
    assert_shown(IMPLEMENTATIONS.iter().filter(|it| !it.is_behind_protocol));
}

#[test]
#[ignore = "cargo xtask other-languages --rows installs the implementations and runs this test"]
fn each_program_behind_the_protocol_shows_its_finding() {
    assert_shown(IMPLEMENTATIONS.iter().filter(|it| it.is_behind_protocol));
}

#[test]
fn each_program_has_a_row_and_each_row_a_program() {
    let page = fs::read_to_string(here().join("../docs/findings.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<_> = rows.filter_map(|line| Some(line.split_once('`')?.0)).collect();
    let unique: BTreeSet<_> = rows.iter().map(|row| row.to_string()).collect();
    assert_eq!(rows.len(), unique.len(), "a row is there twice");
    let programs = IMPLEMENTATIONS.iter().flat_map(|it| findings(it.name)).map(|(name, _)| name);
    assert_eq!(unique, programs.collect());
}

#[test]
fn each_known_finding_has_a_program() {
    let mut wrong = Vec::new();
    for implementation in &IMPLEMENTATIONS {
        let list = fs::read_to_string(implementation.known()).unwrap();
        let programs = findings(implementation.name);
        // A limit of an adapter is no bug, and has no row.
        let is_bug = |it: &&KnownFinding| !it.reason.starts_with("Set aside, no bug: ");
        for one in KnownFindings::parse(&list).unwrap().iter().filter(is_bug) {
            let alone = KnownFindings::new([one.clone()]);
            if !programs.iter().any(|(_, finding)| alone.contains(&finding.fingerprint)) {
                wrong.push(format!("{}: {}", implementation.name, one.fingerprint));
            }
        }
    }
    assert!(wrong.is_empty(), "no program of findings/ shows {wrong:#?}");
}
