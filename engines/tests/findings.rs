//! The findings of `findings/`: each program still shows its fingerprint, and each known finding has a program.
//! `regress` runs a program in a process of its own, and sets no known finding aside. `cargo xtask other-languages
//! --rows` installs the implementations behind the line protocol, and runs the test of their programs.

#[path = "../../xtask/src/findings/data.rs"]
mod data;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use qcowfuzz::base::features::{Feature, FeatureSet};
use qcowfuzz::harness::{KnownFinding, KnownFindings};
use qcowfuzz::programs::text::assemble;

use data::{Finding, Findings};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path of the file of an implementation.
fn path_of(name: &str) -> PathBuf {
    here().join("findings").join(name).with_extension("toml")
}

/// Returns the findings of each implementation.
fn implementations() -> Vec<Findings> {
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let findings = Findings::parse(name, &fs::read_to_string(&path).unwrap());
        findings.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let files = fs::read_dir(here().join("findings")).unwrap();
    files.map(|entry| read(entry.unwrap())).collect()
}

/// Returns the known findings of an implementation.
fn known(of: &Findings) -> KnownFindings {
    KnownFindings::parse(&fs::read_to_string(path_of(&of.name)).unwrap()).unwrap()
}

/// Returns the command of an implementation, with the arguments that come before a verb.
fn command(of: &Findings) -> Command {
    let commands = Path::new(env!("CARGO_BIN_EXE_fstool"));
    if !of.implementation.is_behind_protocol {
        return Command::new(commands.with_file_name(&of.name));
    }
    // Any command asks an implementation behind the line protocol.
    let mut command = Command::new(commands);
    let engine = here().join("other/engine");
    command.arg("--engine-command").arg(format!("'{}' {}", engine.display(), of.name));
    command
}

/// Writes the input of a program to a file in a folder of its own.
fn input_of(finding: &Finding) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input");
    let program = assemble(&finding.program).unwrap_or_else(|it| panic!("{}: {it}", finding.name));
    fs::write(&path, program.encode()).unwrap();
    (dir, path)
}

#[test]
fn scripts_show_bugs_of_qemu_without_this_project() {
    let mut shown = 0;
    for finding in implementations().iter().flat_map(|of| &of.findings) {
        let Some(script) = &finding.script else { continue };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("script"), script).unwrap();
        let line = "qemu-img create -q -f qcow2 disk.qcow2 1M && \
                    { timeout 60 qemu-io -f qcow2 blkdebug::disk.qcow2 <script; \
                    qemu-img check disk.qcow2 2>&1; }";
        let output =
            Command::new("sh").args(["-c", line]).current_dir(dir.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let signs = ["Pattern verification failed", "ERROR cluster "];
        assert!(signs.iter().any(|sign| printed.contains(sign)), "{}: {printed}", finding.name);
        assert!(script.trim().lines().count() <= 12, "{}", finding.name);
        shown += 1;
    }
    assert!(shown > 0, "no script was run");
}

/// The words of `regress` after the fingerprint of a program that ends its process.
const ENDS_PROCESS: &str = ", expected an input that does not end its process";

/// The fingerprint of a hang. `regress` would wait for it for 25 seconds of CPU time.
const HANG: &str = "process: end, an answer → none";

/// Reports whether a program hangs, as a campaign with a shorter limit sees it.
fn hangs(of: &Findings, finding: &Finding) -> bool {
    let (dir, _input) = input_of(finding);
    let mut triage = command(of);
    triage.args(["triage", "--json", "--timeout", "3", "--target", finding.target()]);
    let output = triage.arg(dir.path()).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let mut found = ["bugs", "known"].iter().filter_map(|it| report[it].as_array()).flatten();
    let has_inputs =
        |it: &serde_json::Value| it["inputs"].as_array().is_some_and(|it| !it.is_empty());
    found.any(|it| it["fingerprint"] == HANG && has_inputs(it))
}

/// Returns the fingerprint that a command finds in a program, or its error.
fn fingerprint(of: &Findings, finding: &Finding) -> String {
    if finding.shown() == HANG && hangs(of, finding) {
        return HANG.to_string();
    }
    let (_dir, input) = input_of(finding);
    let mut regress = command(of);
    regress.arg("regress").arg("--text").args(["--target", finding.target()]).arg(&input);
    let output = regress.output().unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let found = text.lines().next().and_then(|line| line.strip_prefix("; "));
    let input = format!("{}: ", input.display());
    let ended = || Some(errors.split_once(ENDS_PROCESS)?.0.split_once(&input)?.1);
    found.or_else(ended).unwrap_or(errors.trim()).to_string()
}

/// Reports whether a run meets the fingerprint of a program as a known finding. Another known finding may come before
/// it.
fn is_met(of: &Findings, finding: &Finding) -> bool {
    let (_dir, input) = input_of(finding);
    let mut replay = command(of);
    if of.implementation.is_behind_protocol {
        replay.arg("--known").arg(path_of(&of.name));
    }
    replay.args(["replay", "--brief", "--json", "--target", finding.target()]).arg(&input);
    let text = String::from_utf8_lossy(&replay.output().unwrap().stdout).into_owned();
    // A run that ends its process prints nothing.
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let met = report["known"].as_array().into_iter().flatten().filter_map(|it| it.as_str());
    let known = met.map(|fingerprint| KnownFinding {
        fingerprint: fingerprint.to_string(),
        reason: "the run met it".to_string(),
        ..KnownFinding::default()
    });
    KnownFindings::new(known).contains(finding.shown())
}

/// Fails if a program of these implementations no longer shows its finding. All cores share the implementations.
fn assert_shown(are_behind_protocol: bool) {
    let mut of = implementations();
    of.retain(|it| it.implementation.is_behind_protocol == are_behind_protocol);
    let next = Mutex::new(of.iter());
    let take = || next.lock().unwrap().next();
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(of) = take() {
                    let new: Vec<_> =
                        of.findings.iter().filter_map(|it| wrong_at(of, it)).collect();
                    wrong.lock().unwrap().extend(new);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns what a program shows if that is not its finding.
fn wrong_at(of: &Findings, finding: &Finding) -> Option<String> {
    let found = fingerprint(of, finding);
    let is_shown = found == finding.shown() || is_met(of, finding);
    let text =
        || format!("{}/{}: expected {}, found {found}", of.name, finding.name, finding.shown());
    (!is_shown).then(text)
}

/// A debug build names other functions for panics, and its checks find other panics first.
#[test]
#[cfg_attr(debug_assertions, ignore = "the findings are those of release builds: --profile ci")]
fn each_program_shows_its_finding() {
    assert_shown(false);
}

/// The script of an archive shows a known finding, too: people report findings that a project knows.
#[test]
#[cfg_attr(debug_assertions, ignore = "the findings are those of release builds: --profile ci")]
fn a_known_finding_can_be_packed() {
    let mut of = implementations();
    of.retain(|it| !it.implementation.is_behind_protocol);
    for of in &of {
        // A run of `writes` meets several findings.
        for target in ["map_extents", "hostile", "writes"] {
            let shown = |it: &&Finding| it.target() == target && fingerprint(of, it) == it.shown();
            let Some(finding) = of.findings.iter().rfind(shown) else { continue };
            let (dir, input) = input_of(finding);
            let mut bundle = command(of);
            bundle.arg("bundle").arg(&input).args(["--target", target, "-o", "bug.tar"]);
            let output = bundle.current_dir(dir.path()).output().unwrap();
            assert!(output.status.success(), "{}/{}: {output:?}", of.name, finding.name);
        }
    }
}

#[test]
#[ignore = "cargo xtask other-languages --rows installs the implementations and runs this test"]
fn each_program_behind_the_protocol_shows_its_finding() {
    assert_shown(true);
}

/// A campaign counts a finding under the first known one to which it belongs, so a general fingerprint comes last.
#[test]
fn each_known_finding_has_a_program() {
    for of in implementations() {
        let known = known(&of);
        for finding in &of.findings {
            let features: Vec<Feature> =
                finding.features.iter().map(|it| it.parse().unwrap()).collect();
            let features = FeatureSet::of(&features);
            let first = known.find_with(finding.shown(), &[], features);
            let first = first.map(|it| &it.fingerprint);
            assert_eq!(first, Some(&finding.fingerprint), "{}/{}", of.name, finding.name);
        }
        let programs = of.findings.iter().map(|it| &it.fingerprint);
        let aside = of.set_aside.iter().map(|it| &it.fingerprint);
        let listed: Vec<_> = programs.chain(aside).collect();
        assert!(known.iter().all(|it| listed.contains(&&it.fingerprint)), "{}", of.name);
    }
}

#[test]
fn versions_are_those_under_test() {
    let manifests = ["Cargo.toml", "qcow/Cargo.toml", "other/requirements.txt"];
    let manifests = manifests.map(|it| fs::read_to_string(here().join(it)).unwrap()).concat();
    for of in implementations() {
        // Debian's packages have the versions of 7-Zip and QEMU.
        if ["seven_zip", "qemu"].contains(&&*of.name) {
            continue;
        }
        let (title, version) = (&of.implementation.title, &of.implementation.version);
        let is_pinned =
            |line: &str| line.starts_with(&**title) && line.contains(&format!("={version}"));
        assert!(manifests.lines().any(is_pinned), "{title} {version}");
        // Reports name the version that the adapter states.
        if let Ok(adapter) =
            fs::read_to_string(here().join("src").join(&of.name).with_extension("rs"))
        {
            assert!(adapter.contains(&format!("version: \"{version}\"")), "{title} {version}");
        }
    }
}
