//! The differential campaign: it finds planted faults, minimizes and distinguishes them, and keeps its reports whole.

mod differential_known;
mod differential_reports;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use test_support::command::{Folder, Ran, names_in};
use test_support::prelude::*;

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

/// Runs a campaign in the folder `work`.
fn campaign(dir: &Folder, words: &str) -> Ran {
    dir.run(&format!("differential --json --workdir work {words}"))
}

/// Returns the fingerprints in the summary that a campaign printed.
fn fingerprints(ran: &Ran) -> BTreeSet<String> {
    ran.json()["found"].as_object().unwrap().keys().cloned().collect()
}

/// Writes an executable script.
fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The faults that a program under test may have: a name, the verb, the edit of its output by sed, and the beginning of
/// the fingerprint.
const FAULTS: &str = r#"
    offset | map | s/"offset": [1-9][0-9]*/"offset": 512/ | map_field_divergence: qcow2, offset
    depth | map | s/"depth": 1/"depth": 0/ | map_field_divergence: qcow2, depth
    present | map | s/"present": false/"present": true/ | map_field_divergence: qcow2, present
    zero | map | s/"zero": true/"zero": false/ | map_field_divergence: qcow2, zero
    data | map | s/"data": true/"data": false/ | map_field_divergence: qcow2, data
    compressed | map | s/"compressed": true/"compressed": false/ | map_field_divergence: qcow2, compressed
    lost | map | 2d | map_extent_count_divergence: qcow2,
    syntax | map | s/^\[/{/ | map_json_parse_failure: qcow2, tested
    errors | check | s/"check-errors": 0/"check-errors": 1/ | check_field_divergence: qcow2, check-errors
    end | check | s/"image-end-offset": [0-9]*/"image-end-offset": 1/ | check_field_divergence: qcow2, image-end-offset
    size | info | s/"virtual-size": [0-9]*/"virtual-size": 1/ | info_field_divergence: qcow2,
"#;
/// The first of these faults: the edit and the fingerprint.
const OFFSET: [&str; 2] =
    [r#"s/"offset": [1-9][0-9]*/"offset": 512/"#, "map_field_divergence: qcow2, offset"];

/// Writes `faulty`, a program that has one fault, and otherwise answers as ours does. Returns its path.
fn faulty(dir: &Folder, verb: &str, edit: &str) -> String {
    let text = format!(
        "#!/bin/sh\nverb=$1\n\"{OURS}\" \"$@\" > \"$0.$$\"; code=$?\n\
         if [ $verb = {verb} ]; then sed '{edit}' \"$0.$$\"; else cat \"$0.$$\"; fi\nrm \"$0.$$\"; exit $code\n"
    );
    script(&dir.join("faulty"), &text);
    dir.join("faulty").display().to_string()
}

/// Runs a campaign with one fault. Returns the fingerprints that name it.
fn found_fault([name, verb, edit, expected]: [&str; 4]) -> Result<Vec<String>, String> {
    let dir = Folder::new();
    let program = faulty(&dir, verb, edit);
    // With several jobs, the scheduler decides which iteration ends the campaign.
    let options = "--iterations 30 --formats qcow2 --fail-fast --jobs 1 --command";
    let ran = campaign(&dir, &format!("{options} {program}"));
    let found = fingerprints(&ran);
    if ran.code != Some(1) || !found.iter().any(|it| it.starts_with(expected)) {
        return Err(format!("{name}: {found:?}"));
    }
    // The report has the commands, both outputs and the images.
    for folder in folders(&dir.join("work/reports")) {
        for file in ["commands.sh", "divergence.json", "qemu.stdout", "tested.stdout", "disk"] {
            assert!(folder.join(file).exists(), "{name}: {}", folder.join(file).display());
        }
        let report = json_of(&folder.join("divergence.json"));
        // The commands that make the image, and the two that ask.
        let commands = report["commands"].as_array().unwrap();
        assert!(commands.len() <= 8, "{name}: {commands:#?}");
    }
    Ok(found.into_iter().filter(|it| it.starts_with(expected)).collect())
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_planted_fault_is_found_and_named() {
    let Some(()) = qemu::tools() else { return };
    let faults: Vec<[&str; 4]> = rows(FAULTS).collect();
    let (first, second) = faults.split_at(faults.len() / 2);
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
    assert!(names.len() >= faults.len(), "{names:#?}");
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
    let Some(()) = qemu::tools() else { return };
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
        let dir = Folder::new();
        let path = dir.join("tool");
        let text =
            format!("#!/bin/sh\nif [ $1 = {verb} ]; then {instead}; fi\nexec qemu-img \"$@\"\n");
        script(&path, &text);
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
    let Some(()) = qemu::tools() else { return };
    for (command, expected) in [
        ("kill -9 $$;", "_signal: qcow2, tested, signal 9"),
        ("exec sleep 100;", "_timeout: qcow2, tested, timeout"),
        ("touch disk1.qcow2;", "_file_changed: qcow2, tested"),
    ] {
        let words = "differential --json --workdir work --iterations 1 --formats qcow2 --timeout 1 --map-command";
        let words: Vec<&str> = words.split(' ').chain([command]).collect();
        let found = fingerprints(&Folder::new().run(&words[..]));
        assert!(found.iter().any(|name| name.ends_with(expected)), "{command}: {found:?}");
    }
}

#[test]
fn a_killed_campaign_leaves_whole_reports_and_the_next_one_cleans_up() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let program = faulty(&dir, "map", OFFSET[0]);
    let reports = dir.join("work/reports");
    fs::create_dir(dir.join("work")).unwrap();
    dir.write("work/mine", "mine");
    for wait in [50, 400, 900, 1700] {
        let words = format!("differential --iterations 1000 --workdir work --command {program}");
        let mut running = dir.start(&words);
        std::thread::sleep(Duration::from_millis(wait));
        running.kill();
        if reports.exists() {
            let is_named =
                |path: &PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with('.');
            for folder in folders(&reports).iter().filter(|path| is_named(path)) {
                json_of(&folder.join("divergence.json"));
            }
            if reports.join("summary.json").exists() {
                let summary = json_of(&reports.join("summary.json"));
                for found in summary["found"].as_object().unwrap().values() {
                    let folder = reports.join(found["folder"].as_str().unwrap());
                    assert!(folder.join("divergence.json").exists(), "{}", folder.display());
                }
            }
        }
    }
    campaign(&dir, "--iterations 1").ok();
    assert_eq!(names_in(&dir.join("work")), ["mine", "reports"]);
    assert!(!names_in(&reports).iter().any(|name| name.starts_with('.')));
}

#[test]
fn an_iteration_replays_alone() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let command = format!("--command {}", faulty(&dir, "map", OFFSET[0]));
    let all = campaign(&dir, &format!("--seed 7 --iterations 6 --jobs 2 {command}")).json();
    for (fingerprint, found) in all["found"].as_object().unwrap() {
        fs::remove_dir_all(dir.join("work")).unwrap();
        let replay = format!("--replay 7:{} {command}", found["iteration"]);
        let replayed = campaign(&dir, &replay).json();
        assert_eq!(replayed["found"][fingerprint]["commands"], found["commands"], "{fingerprint}");
    }
}

#[test]
fn writes_that_qemu_loses_contradict_the_commands() {
    let Some(()) = qemu::tools() else { return };
    // A qemu-io that writes one byte less at the end of each write of a pattern.
    let dir = Folder::new();
    let which = Ran::of(&mut dir.command("sh", &["-c", "command -v qemu-img; command -v qemu-io"]));
    let [img, io] = which.out.lines().collect::<Vec<_>>()[..] else { panic!("{which:?}") };
    std::os::unix::fs::symlink(img, dir.join("qemu-img")).unwrap();
    let text = format!(
        "#!/bin/bash\nfor word; do [[ $word =~ ^(write\\ -q\\ -P\\ [0-9]+\\ [0-9]+)\\ ([0-9]+)$ ]] && \
         word=\"${{BASH_REMATCH[1]}} $((BASH_REMATCH[2] - 1))\"; words+=(\"$word\"); done\n\
         exec {io} \"${{words[@]}}\"\n"
    );
    script(&dir.join("qemu-io"), &text);
    let options = "--iterations 20 --fail-fast --formats raw,qcow2 --qemu-img";
    let ran = campaign(&dir, &format!("{options} {}", dir.join("qemu-img").display()));
    let found = fingerprints(&ran);
    assert!(found.iter().any(|it| it.contains("read_model_divergence")), "{found:?}");
}

#[test]
fn a_recording_is_compared_without_qemu() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let record = |iterations: u32| {
        let words = "differential --seed 2 --record recording.tar --workdir work --iterations";
        dir.run(&format!("{words} {iterations}"))
    };
    record(6).ok();
    // Only the shell and its tools are on this path.
    fs::create_dir_all(dir.join("tools")).unwrap();
    for tool in ["sh", "sed", "cat", "rm"] {
        let tools = dir.join("tools").join(tool);
        let _ = std::os::unix::fs::symlink(format!("/usr/bin/{tool}"), tools);
    }
    let against = |more: &str| {
        let words = "differential --json --against-recording recording.tar --workdir work";
        let mut command = dir.command(OURS, &format!("{words} {more}"));
        Ran::of(command.env("PATH", dir.join("tools")))
    };
    assert_eq!(against("").ok().json()["distribution"]["iterations"], 6);
    let program = faulty(&dir, "map", OFFSET[0]);
    let found = fingerprints(&against(&format!("--command {program}")).exits(1));
    assert!(found.iter().any(|it| it.starts_with(OFFSET[1])), "{found:?}");
    // A recording is never overwritten, and another file is refused.
    record(1).exits(2);
    // Two zero blocks end an archive. Without the last file, the recording is not whole.
    let whole = dir.read("recording.tar");
    let end = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
    dir.write("recording.tar", &whole[..end / 512 * 512 - 512]);
    against("").exits(2);
    dir.write("recording.tar", "no recording");
    against("").exits(2);
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
