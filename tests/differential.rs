//! The differential campaign: it finds planted faults, minimizes and distinguishes them, and keeps its reports whole.

mod differential_known;
mod differential_reports;
#[allow(dead_code)]
#[path = "qemu/tools/mod.rs"]
mod qemu;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use qcowfuzz::internal::differential::divergence::known_of_qemu;
use qcowfuzz::internal::differential::iteration::RecipeRunner;
use qcowfuzz::internal::differential::reason::{Comparison, ReasonClass, class_of, compare};
use qcowfuzz::internal::differential::sides::{Sides, Tested};
use qcowfuzz::internal::recipes::draw;
use qcowfuzz::internal::recipes::perform::QemuTools;
use qcowfuzz::internal::recipes::recipe::RecipeStep;
use qcowfuzz::walkers::MapError;
use serde_json::Value;

const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");

/// Runs a campaign in `dir`.
fn campaign(dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(OURS);
    command.args(["differential", "--json", "--workdir"]).arg(dir).args(more);
    command.output().unwrap()
}

/// Returns the summary that a campaign printed.
fn summary(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn fingerprints(summary: &Value) -> BTreeSet<String> {
    summary["found"].as_object().unwrap().keys().cloned().collect()
}

/// The faults that a program under test may have: a name, the verb, the edit of its output by sed, and the beginning of
/// the fingerprint.
const FAULTS: [(&str, &str, &str, &str); 11] = [
    (
        "offset",
        "map",
        r#"s/"offset": [1-9][0-9]*/"offset": 512/"#,
        "map_field_divergence: qcow2, offset",
    ),
    ("depth", "map", r#"s/"depth": 1/"depth": 0/"#, "map_field_divergence: qcow2, depth"),
    (
        "present",
        "map",
        r#"s/"present": false/"present": true/"#,
        "map_field_divergence: qcow2, present",
    ),
    ("zero", "map", r#"s/"zero": true/"zero": false/"#, "map_field_divergence: qcow2, zero"),
    ("data", "map", r#"s/"data": true/"data": false/"#, "map_field_divergence: qcow2, data"),
    (
        "compressed",
        "map",
        r#"s/"compressed": true/"compressed": false/"#,
        "map_field_divergence: qcow2, compressed",
    ),
    ("lost", "map", r#"2d"#, "map_extent_count_divergence: qcow2, "),
    ("syntax", "map", r#"s/^\[/{/"#, "map_json_parse_failure: qcow2, tested"),
    (
        "errors",
        "check",
        r#"s/"check-errors": 0/"check-errors": 1/"#,
        "check_field_divergence: qcow2, check-errors",
    ),
    (
        "end",
        "check",
        r#"s/"image-end-offset": [0-9]*/"image-end-offset": 1/"#,
        "check_field_divergence: qcow2, image-end-offset",
    ),
    (
        "size",
        "info",
        r#"s/"virtual-size": [0-9]*/"virtual-size": 1/"#,
        "info_field_divergence: qcow2, ",
    ),
];

/// Writes a program that has one fault, and otherwise answers as ours does.
fn faulty(dir: &Path, verb: &str, edit: &str) -> PathBuf {
    let path = dir.join("faulty");
    let script = format!(
        "#!/bin/sh\nverb=$1\n\"{OURS}\" \"$@\" > \"$0.$$\"; code=$?\n\
         if [ $verb = {verb} ]; then sed '{edit}' \"$0.$$\"; else cat \"$0.$$\"; fi\nrm \"$0.$$\"; exit $code\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs a campaign with one fault. Returns the fingerprints that name it.
fn found_fault(fault: (&str, &str, &str, &str)) -> Result<Vec<String>, String> {
    let (name, verb, edit, expected) = fault;
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), verb, edit);
    let work = dir.path().join("work");
    // With several jobs, the scheduler decides which iteration ends the campaign.
    let options = ["--iterations", "30", "--formats", "qcow2", "--fail-fast", "--jobs", "1"];
    let program = ["--command", program.to_str().unwrap()];
    let output = campaign(&work, &[&options[..], &program[..]].concat());
    let found = fingerprints(&summary(&output));
    if output.status.code() != Some(1) || !found.iter().any(|it| it.starts_with(expected)) {
        return Err(format!("{name}: {found:?}"));
    }
    // The report has the commands, both outputs and the images.
    for folder in folders(&work.join("reports")) {
        for file in ["commands.sh", "divergence.json", "qemu.stdout", "tested.stdout", "disk"] {
            assert!(folder.join(file).exists(), "{name}: {}", folder.join(file).display());
        }
        let report: Value =
            serde_json::from_slice(&fs::read(folder.join("divergence.json")).unwrap()).unwrap();
        // The commands that make the image, and the two that ask.
        let commands = report["commands"].as_array().unwrap();
        assert!(commands.len() <= 8, "{name}: {commands:#?}");
    }
    Ok(found.into_iter().filter(|it| it.starts_with(expected)).collect())
}

#[test]
fn every_planted_fault_is_found_and_named() {
    if !qemu::tools_are_there("every_planted_fault_is_found_and_named") {
        return;
    }
    let (first, second) = FAULTS.split_at(FAULTS.len() / 2);
    let all = |faults: &[_]| faults.iter().copied().map(found_fault).collect::<Vec<_>>();
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(|| all(second));
        let mut found = all(first);
        found.extend(other.join().unwrap());
        found
    });
    let missed: Vec<_> = found.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
    let names: BTreeSet<_> = found.into_iter().flatten().flatten().collect();
    assert!(names.len() >= FAULTS.len(), "{names:#?}");
}

/// The highest number of iterations until a fault of a tool is found.
const MAX_EXECUTED: usize = 8;

/// The faults that a program may have as a tool: the verb, the shell command in place of it, the operations of the
/// iterations, and the beginning of the fingerprint.
const TOOL_FAULTS: [(&str, &str, &str, &str); 4] = [
    ("resize", "exit 0", "resize", "result_exit_code_divergence: qcow2, resize, exit 1 → exit 0"),
    ("rebase", "exit 1", "rebase", "result_exit_code_divergence: qcow2, rebase, exit 0 → exit 1"),
    (
        "measure",
        "qemu-img \"$@\" | sed s/required.:/required\\\":1,\\\"more\\\":/; exit 0",
        "write",
        "measure_field_divergence: qcow2, ",
    ),
    (
        "convert",
        "qemu-img \"$@\" || exit; for last; do :; done; exec qemu-io -c \"write -q -z 0 4k\" \"$last\"",
        "convert",
        "result_map_",
    ),
];

/// A program with the command line of qemu-img makes the same disks as QEMU, or its fault is named.
#[test]
fn faults_of_a_program_that_makes_images_are_found() {
    if !qemu::tools_are_there("faults_of_a_program_that_makes_images_are_found") {
        return;
    }
    let known = known_of_qemu().unwrap();
    let found = |command: String, operation: &str| {
        let tested = Tested::Command { text: command, maps_only: false, executes: true };
        let qemu = QemuTools::find("qemu-img".as_ref()).unwrap();
        let sides = Sides { qemu, tested, timeout: Duration::from_secs(60) };
        let recipes = (0..300).map(|iteration| draw::recipe(1, iteration));
        let recipes = recipes.filter(|recipe| {
            let is_one = |step: &RecipeStep| step.operation.name() == operation;
            recipe.steps.iter().all(|step| step.disk.file.ends_with(".qcow2"))
                && recipe.steps.iter().any(is_one)
        });
        recipes.take(MAX_EXECUTED).find_map(|recipe| {
            let folder = tempfile::tempdir().unwrap();
            let runner = RecipeRunner { sides: &sides, known: &known, folder: folder.path() };
            Some(runner.run(&recipe).met?.fingerprint)
        })
    };
    for (verb, instead, operation, expected) in TOOL_FAULTS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        let script =
            format!("#!/bin/sh\nif [ $1 = {verb} ]; then {instead}; fi\nexec qemu-img \"$@\"\n");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let found = found(path.display().to_string(), operation).unwrap_or_default();
        assert!(found.starts_with(expected), "{verb}: {found}");
    }
    assert_eq!(found("qemu-img".to_string(), "resize"), None);
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

#[test]
fn a_crash_and_a_hang_are_findings_of_their_own() {
    if !qemu::tools_are_there("a_crash_and_a_hang_are_findings_of_their_own") {
        return;
    }
    for (command, expected) in [
        ("kill -9 $$;", "_signal: qcow2, tested, signal 9"),
        ("exec sleep 100;", "_timeout: qcow2, tested, timeout"),
        ("touch disk1.qcow2;", "_file_changed: qcow2, tested"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options =
            ["--iterations", "1", "--formats", "qcow2", "--timeout", "1", "--map-command", command];
        let found = fingerprints(&summary(&campaign(dir.path(), &options)));
        assert!(found.iter().any(|name| name.ends_with(expected)), "{command}: {found:?}");
    }
}

#[test]
fn a_killed_campaign_leaves_whole_reports_and_the_next_one_cleans_up() {
    if !qemu::tools_are_there("a_killed_campaign_leaves_whole_reports_and_the_next_one_cleans_up") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("mine"), "mine").unwrap();
    for wait in [50, 400, 900, 1700] {
        let mut command = Command::new(OURS);
        command.args(["differential", "--iterations", "1000", "--workdir"]).arg(&work);
        command.arg("--command").arg(&program).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        running.kill().unwrap();
        running.wait().unwrap();
        let reports = work.join("reports");
        if reports.exists() {
            let named =
                |path: &PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with('.');
            for folder in folders(&reports).iter().filter(|path| named(path)) {
                let json = fs::read(folder.join("divergence.json")).unwrap();
                serde_json::from_slice::<Value>(&json).unwrap();
            }
            if let Ok(json) = fs::read(reports.join("summary.json")) {
                let summary: Value = serde_json::from_slice(&json).unwrap();
                for found in summary["found"].as_object().unwrap().values() {
                    let folder = reports.join(found["folder"].as_str().unwrap());
                    assert!(folder.join("divergence.json").exists(), "{}", folder.display());
                }
            }
        }
    }
    let last = campaign(&work, &["--iterations", "1"]);
    assert_eq!(last.status.code(), Some(0), "{}", String::from_utf8_lossy(&last.stderr));
    let mut left: Vec<_> =
        fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["mine", "reports"]);
    let hidden = fs::read_dir(work.join("reports")).unwrap();
    let hidden = hidden.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(hidden.filter(|name| name.starts_with('.')).count(), 0);
}

#[test]
fn an_iteration_replays_alone() {
    if !qemu::tools_are_there("an_iteration_replays_alone") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let command = ["--command", program.to_str().unwrap()];
    let work = dir.path().join("work");
    let output = campaign(
        &work,
        &[&["--seed", "7", "--iterations", "6", "--jobs", "2"], &command[..]].concat(),
    );
    let all = summary(&output);
    for (fingerprint, found) in all["found"].as_object().unwrap() {
        let alone = dir.path().join("alone");
        let place = format!("7:{}", found["iteration"]);
        let output = campaign(&alone, &[&["--replay", &place], &command[..]].concat());
        let replayed = summary(&output);
        assert_eq!(replayed["found"][fingerprint]["commands"], found["commands"], "{fingerprint}");
        fs::remove_dir_all(&alone).unwrap();
    }
}

#[test]
fn writes_that_qemu_loses_contradict_the_commands() {
    if !qemu::tools_are_there("writes_that_qemu_loses_contradict_the_commands") {
        return;
    }
    // A qemu-io that writes one byte less at the end of each write of a pattern.
    let dir = tempfile::tempdir().unwrap();
    let which = Command::new("sh")
        .args(["-c", "command -v qemu-img; command -v qemu-io"])
        .output()
        .unwrap();
    let which = String::from_utf8(which.stdout).unwrap();
    let [img, io] = which.lines().collect::<Vec<_>>()[..] else { panic!("{which}") };
    std::os::unix::fs::symlink(img, dir.path().join("qemu-img")).unwrap();
    let script = format!(
        "#!/bin/bash\nfor word; do [[ $word =~ ^(write\\ -q\\ -P\\ [0-9]+\\ [0-9]+)\\ ([0-9]+)$ ]] && \
         word=\"${{BASH_REMATCH[1]}} $((BASH_REMATCH[2] - 1))\"; words+=(\"$word\"); done\n\
         exec {io} \"${{words[@]}}\"\n"
    );
    let fake = dir.path().join("qemu-io");
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let qemu_img = dir.path().join("qemu-img");
    let options = ["--iterations", "20", "--fail-fast", "--formats", "raw,qcow2", "--qemu-img"];
    let options = [&options[..], &[qemu_img.to_str().unwrap()]].concat();
    let found = fingerprints(&summary(&campaign(&dir.path().join("work"), &options)));
    assert!(found.iter().any(|it| it.contains("read_model_divergence")), "{found:?}");
}

#[test]
fn a_recording_is_compared_without_qemu() {
    if !qemu::tools_are_there("a_recording_is_compared_without_qemu") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, work) = (dir.path().join("recording.tar"), dir.path().join("work"));
    let path = file.to_str().unwrap();
    let record = |iterations: &str| {
        let mut run = Command::new(OURS);
        run.args(["differential", "--seed", "2", "--iterations", iterations, "--record", path]);
        run.arg("--workdir");
        run.arg(&work).output().unwrap()
    };
    let recorded = record("6");
    assert_eq!(recorded.status.code(), Some(0), "{}", String::from_utf8_lossy(&recorded.stderr));
    let against = |command: &[&str]| {
        let mut run = Command::new(OURS);
        run.args(["differential", "--json", "--against-recording", path, "--workdir"]).arg(&work);
        // Only the shell and its tools are on this path.
        let tools = dir.path().join("tools");
        fs::create_dir_all(&tools).unwrap();
        for tool in ["sh", "sed", "cat", "rm"] {
            let _ = std::os::unix::fs::symlink(format!("/usr/bin/{tool}"), tools.join(tool));
        }
        run.args(command).env("PATH", tools).output().unwrap()
    };
    let same = against(&[]);
    assert_eq!(same.status.code(), Some(0), "{}", String::from_utf8_lossy(&same.stdout));
    assert_eq!(summary(&same)["distribution"]["iterations"], 6);
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let other = against(&["--command", program.to_str().unwrap()]);
    assert_eq!(other.status.code(), Some(1), "{}", String::from_utf8_lossy(&other.stderr));
    let found = fingerprints(&summary(&other));
    assert!(found.iter().any(|it| it.starts_with(FAULTS[0].3)), "{found:?}");
    // A recording is never overwritten, and another file is refused.
    assert_eq!(record("1").status.code(), Some(2));
    // Two zero blocks end an archive. Without the last file, the recording is not whole.
    let whole = fs::read(&file).unwrap();
    let end = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
    fs::write(&file, &whole[..end / 512 * 512 - 512]).unwrap();
    assert_eq!(against(&[]).status.code(), Some(2));
    fs::write(&file, "no recording").unwrap();
    assert_eq!(against(&[]).status.code(), Some(2));
}

#[test]
fn messages_about_images_of_each_format_have_a_class() {
    use ReasonClass::{Invalid, NotThisFormat};

    let no_footer = "no footer in the first sector, nor that of a fixed disk in the last";
    for (format, what, class) in [
        ("vhdx", "the file does not begin with 'vhdxfile'", NotThisFormat),
        ("vhdx", "neither header is valid", Invalid),
        ("vpc", no_footer, NotThisFormat),
        ("vpc", "no dynamic header at the data offset", Invalid),
        ("vmdk", "the file is empty", NotThisFormat),
        ("vmdk", "no type of disk in the descriptor", NotThisFormat),
        ("vmdk", "no header of a sparse extent", NotThisFormat),
        ("vmdk", "no CID in the descriptor", Invalid),
    ] {
        let message = format!("qcowfuzz: a: {}\n", MapError::NotImage { format, what });
        assert_eq!(class_of(&message), Some(class), "{message}");
    }
    let theirs = "qemu-img: Could not open 'a': Could not open backing file: invalid VPC image";
    assert_eq!(class_of(theirs), Some(NotThisFormat));
    let signature = "qcowfuzz: a: not a vhdx image: the file does not begin with 'vhdxfile'";
    let theirs = "qemu-img: Could not open 'a': Could not open 'a': Invalid argument";
    assert!(matches!(compare("map", signature, theirs), Comparison::Named(_)));
}
