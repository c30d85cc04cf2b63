//! The rows of docs/findings.md: each program of `findings/` still shows its fingerprint, has a row, and each known
//! finding has a program. `regress` runs a program in a process of its own, and sets no known finding aside.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use qcowfuzz::findings::regression::Regression;
use qcowfuzz::harness::{KnownFinding, KnownFindings};

/// The commands of the crates.
const COMMANDS: [(&str, &str); 5] = [
    ("fstool", env!("CARGO_BIN_EXE_fstool")),
    ("imago", env!("CARGO_BIN_EXE_imago")),
    ("qcow2_core", env!("CARGO_BIN_EXE_qcow2_core")),
    ("qcow2_rs", env!("CARGO_BIN_EXE_qcow2_rs")),
    ("rust_img_qcow2", env!("CARGO_BIN_EXE_rust_img_qcow2")),
];

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
fn fingerprint(command: &str, finding: &Regression) -> String {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, finding.program.encode()).unwrap();
    let mut regress = Command::new(command);
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
fn is_met(command: &str, finding: &Regression, fingerprint: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, finding.program.encode()).unwrap();
    let mut replay = Command::new(command);
    replay.args(["replay", "--brief", "--json", "--target", finding.target.name()]).arg(&input);
    let text = String::from_utf8_lossy(&replay.output().unwrap().stdout).into_owned();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let met = report["known"].as_array().into_iter().flatten().filter_map(|it| it.as_str());
    let known = met.map(|fingerprint| KnownFinding {
        fingerprint: fingerprint.to_string(),
        reason: "the run met it".to_string(),
        link: None,
    });
    KnownFindings::new(known).contains(fingerprint)
}

#[test]
fn each_program_shows_its_finding() {
    let mut wrong = Vec::new();
    for (crate_name, command) in COMMANDS {
        for (name, finding) in findings(crate_name) {
            let found = fingerprint(command, &finding);
            let expected = &finding.fingerprint;
            if found != *expected && !is_met(command, &finding, expected) {
                wrong.push(format!("{name}: expected {}, found {found}", finding.fingerprint));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_program_has_a_row_and_each_row_a_program() {
    let page = fs::read_to_string(here().join("../docs/findings.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<_> = rows.filter_map(|line| Some(line.split_once('`')?.0)).collect();
    let unique: BTreeSet<_> = rows.iter().map(|row| row.to_string()).collect();
    assert_eq!(rows.len(), unique.len(), "a row is there twice");
    let programs = COMMANDS.iter().flat_map(|(name, _)| findings(name)).map(|(name, _)| name);
    assert_eq!(unique, programs.collect());
}

#[test]
fn each_known_finding_has_a_program() {
    let mut wrong = Vec::new();
    for (crate_name, _) in COMMANDS {
        let list = here().join("known").join(crate_name).with_extension("toml");
        let known = KnownFindings::parse(&fs::read_to_string(&list).unwrap()).unwrap();
        let programs = findings(crate_name);
        for one in known.iter() {
            let alone = KnownFindings::new([one.clone()]);
            if !programs.iter().any(|(_, finding)| alone.contains(&finding.fingerprint)) {
                wrong.push(format!("{crate_name}: {}", one.fingerprint));
            }
        }
    }
    assert!(wrong.is_empty(), "no program of findings/ shows {wrong:#?}");
}
