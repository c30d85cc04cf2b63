//! The reports of campaigns: when they appear, failures of the campaign itself, interrupted campaigns, texts to post.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{FAULTS, OURS, campaign, faulty, fingerprints, folders, qemu, summary};

#[test]
fn a_divergence_has_its_report_before_it_is_minimized() {
    if !qemu::tools_are_there("a_divergence_has_its_report_before_it_is_minimized") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let quick = fs::read_to_string(&program).unwrap();
    // Minimizing takes many answers, so the kill comes before its end.
    fs::write(&program, quick.replace("verb=$1", "sleep 0.1; verb=$1")).unwrap();
    let work = dir.path().join("work");
    let options = ["--iterations", "30", "--formats", "qcow2", "--fail-fast", "--jobs", "1"];
    let program_option = ["--command", program.to_str().unwrap()];
    let options = [&options[..], &program_option[..]].concat();
    let mut command = Command::new(OURS);
    command.args(["differential", "--workdir"]).arg(&work).args(&options);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let reports = work.join("reports");
    let named = || {
        let json = fs::read(reports.join("summary.json")).ok()?;
        let summary: Value = serde_json::from_slice(&json).unwrap();
        let found = summary["found"].as_object().unwrap().values().next()?.clone();
        Some(reports.join(found["folder"].as_str().unwrap()))
    };
    let folder = loop {
        match named() {
            Some(folder) => break folder,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    running.kill().unwrap();
    running.wait().unwrap();
    let report = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("divergence.json")).unwrap()).unwrap()
    };
    let first = report(&folder);
    assert_eq!(first["is_minimized"], false);
    assert_eq!(first["minimized"], first["recipe"]);
    assert!(folder.join("qemu.stdout").exists() && folder.join("commands.sh").exists());
    // The next campaign meets the divergence again, and replaces the report.
    fs::write(&program, quick).unwrap();
    assert_eq!(campaign(&work, &options).status.code(), Some(1));
    let second = report(&folder);
    assert_eq!(second["is_minimized"], true);
    assert_eq!(second["fingerprint"], first["fingerprint"]);
    assert_ne!(second["minimized"], second["recipe"]);
    let hidden = fs::read_dir(&reports).unwrap().flatten();
    assert!(!hidden.into_iter().any(|it| it.file_name().to_string_lossy().starts_with('.')));
}

#[test]
fn a_failure_of_the_campaign_itself_is_a_finding() {
    if !qemu::tools_are_there("a_failure_of_the_campaign_itself_is_a_finding") {
        return;
    }
    // The program removes the folder in which the campaign works.
    let removing = |pattern: &str| {
        format!(
            "f() {{ case \"$*\" in {pattern}) rm -r \"$PWD\";; *) qemu-img \"$@\";; esac; }}; f"
        )
    };
    let run = |pattern: &str| {
        let dir = tempfile::tempdir().unwrap();
        let command = removing(pattern);
        let output = campaign(dir.path(), &["--iterations", "12", "--map-command", &command]);
        let folders = folders(&dir.path().join("reports"));
        let reports = folders.iter().map(|folder| folder.join("divergence.json"));
        (output, reports.map(|path| fs::read_to_string(path).unwrap()).collect::<String>())
    };
    let (some, reports) = run("*vmdk*");
    let found = fingerprints(&summary(&some));
    let expected = "map_harness_failure: vmdk, disk: No such file or directory (os error )";
    assert_eq!((some.status.code(), found), (Some(1), BTreeSet::from([expected.to_string()])));
    assert!(reports.contains(expected), "{reports}");
    // If no iteration works, the campaign cannot run.
    let (none, _) = run("*");
    let said = String::from_utf8_lossy(&none.stderr);
    assert_eq!(none.status.code(), Some(2), "{said}");
    assert!(said.contains("none of 12 iterations could be carried out"), "{said}");
}

#[test]
fn an_interrupted_campaign_says_so() {
    if !qemu::tools_are_there("an_interrupted_campaign_says_so") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(OURS);
    command.args(["differential", "--iterations", "100000", "--workdir"]).arg(dir.path());
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = || {
        let entries = fs::read_dir(dir.path()).unwrap().flatten();
        entries.into_iter().any(|entry| entry.path().join("job-0").exists())
    };
    while !begun() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert!(out.contains("divergences: none so far") && err.contains("interrupted after"));
    let json = fs::read(dir.path().join("reports/summary.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&json).unwrap()["is_complete"], false);
}

#[test]
fn issues_are_ready_to_post() {
    if !qemu::tools_are_there("issues_are_ready_to_post") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let work = dir.path().join("work");
    let mut command = Command::new(OURS);
    command.args(["differential", "--iterations", "6", "--formats", "qcow2", "--jobs", "1"]);
    command.args(["--fail-fast", "--file", "--command"]).arg(&program).arg("--workdir").arg(&work);
    let output = command.output().unwrap();
    let texts = String::from_utf8(output.stdout).unwrap();
    let [folder] = &folders(&work.join("reports"))[..] else { panic!("{texts}") };
    let issue = fs::read_to_string(folder.join("issue.md")).unwrap();
    assert!(texts.contains(&issue));
    // The commands of the text alone repeat the divergence.
    let commands = issue.split("```").nth(1).unwrap().strip_prefix("sh\n").unwrap();
    let again = dir.path().join("again");
    fs::create_dir(&again).unwrap();
    let shell = Command::new("sh").args(["-c", commands]).current_dir(&again).output().unwrap();
    let shown = String::from_utf8_lossy(&shown_maps(&shell.stdout)).into_owned();
    let qemu = fs::read_to_string(folder.join("qemu.stdout")).unwrap();
    let tested = fs::read_to_string(folder.join("tested.stdout")).unwrap();
    assert_eq!(shown, format!("{qemu}{tested}"), "{issue}");
    assert!(qemu != tested && issue.contains("QEMU, exit 0:"), "{issue}");
}

/// Returns the part of an output that begins with the first map.
fn shown_maps(stdout: &[u8]) -> Vec<u8> {
    let start = stdout.iter().position(|byte| *byte == b'[').unwrap_or(0);
    stdout[start..].to_vec()
}

#[test]
fn a_divergence_that_the_user_knows_is_counted_and_its_text_is_ready_to_post() {
    if !qemu::tools_are_there(
        "a_divergence_that_the_user_knows_is_counted_and_its_text_is_ready_to_post",
    ) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = faulty(dir.path(), "map", FAULTS[0].2);
    let list = dir.path().join("known.toml");
    let run = |recipes: &str, form: &str| {
        let finding = format!(
            "[[finding]]\nfingerprint = \"{}*\"\nreason = \"Offsets are wrong.\"\nrecipes = [[\"{recipes}\"]]\n",
            FAULTS[0].3
        );
        fs::write(&list, finding).unwrap();
        let mut command = Command::new(OURS);
        command.args([
            "differential",
            "--iterations",
            "4",
            "--formats",
            "qcow2",
            form,
            "--command",
        ]);
        command
            .arg(&program)
            .arg("--known")
            .arg(&list)
            .arg("--workdir")
            .arg(dir.path().join("work"));
        command.output().unwrap()
    };
    let known = run("*qemu-img create*", "--json");
    assert_eq!(known.status.code(), Some(0), "{}", String::from_utf8_lossy(&known.stdout));
    let met = &summary(&known)["known"][format!("{}*", FAULTS[0].3)];
    assert!(met["times"].as_u64().unwrap() > 0, "{met}");
    let texts = String::from_utf8(run("*qemu-img create*", "--file").stdout).unwrap();
    for part in
        ["Offsets are wrong.", "qemu-img create", "qemu-img map --output=json", "QEMU, exit 0"]
    {
        assert!(texts.contains(part), "{texts}");
    }
    // In other recipes, the same divergence is new.
    assert_eq!(run("*qemu-img frobnicate*", "--json").status.code(), Some(1));
}
