//! The reports of campaigns: when they appear, failures of the campaign itself, interrupted campaigns, texts to post.

use test_support::command::{Folder, Ran, names_in, signal, until};
use test_support::prelude::*;

use super::{OFFSET, OURS, campaign, faulty, fingerprints, folders, json_of};

#[test]
fn a_divergence_has_its_report_before_it_is_minimized() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let program = faulty(&dir, "map", OFFSET[0]);
    let quick = dir.read_text("faulty");
    // Minimizing takes many answers, so the kill comes before its end.
    dir.write("faulty", quick.replace("verb=$1", "sleep 0.1; verb=$1"));
    let options =
        format!("--iterations 30 --formats qcow2 --fail-fast --jobs 1 --command {program}");
    let mut running = dir.start(&format!("differential --workdir work {options}"));
    let reports = dir.join("work/reports");
    let named = || {
        let summary = reports.join("summary.json");
        let summary = summary.exists().then(|| json_of(&summary))?;
        let found = summary["found"].as_object().unwrap().values().next()?.clone();
        Some(reports.join(found["folder"].as_str().unwrap()))
    };
    until("no report", || named().is_some());
    let folder = named().unwrap();
    running.kill();
    let first = json_of(&folder.join("divergence.json"));
    assert_eq!(first["is_minimized"], false);
    assert_eq!(first["minimized"], first["recipe"]);
    assert!(folder.join("qemu.stdout").exists() && folder.join("commands.sh").exists());
    // The next campaign meets the divergence again, and replaces the report.
    dir.write("faulty", quick);
    campaign(&dir, &options).exits(1);
    let second = json_of(&folder.join("divergence.json"));
    assert_eq!(second["is_minimized"], true);
    assert_eq!(second["fingerprint"], first["fingerprint"]);
    assert_ne!(second["minimized"], second["recipe"]);
    assert!(!names_in(&reports).iter().any(|name| name.starts_with('.')));
}

#[test]
fn a_failure_of_the_campaign_itself_is_a_finding() {
    let Some(()) = qemu::tools() else { return };
    // The program removes the folder in which the campaign works.
    let run = |pattern: &str| {
        let dir = Folder::new();
        let command = format!(
            "f() {{ case \"$*\" in {pattern}) rm -r \"$PWD\";; *) qemu-img \"$@\";; esac; }}; f"
        );
        let words = "differential --json --workdir work --iterations 12 --map-command";
        let words: Vec<&str> = words.split(' ').chain([&*command]).collect();
        let ran = dir.run(&words[..]);
        let folders = folders(&dir.join("work/reports"));
        let reports = folders.iter().map(|folder| folder.join("divergence.json"));
        (ran, reports.map(|path| fs::read_to_string(path).unwrap()).collect::<String>())
    };
    let (some, reports) = run("*vmdk*");
    let expected = "map_harness_failure: vmdk, disk: No such file or directory (os error )";
    let found = fingerprints(&some.exits(1));
    assert_eq!(found, BTreeSet::from([expected.to_string()]));
    assert!(reports.contains(expected), "{reports}");
    // If no iteration works, the campaign cannot run.
    let none = run("*").0.exits(2);
    assert!(none.err.contains("none of 12 iterations could be carried out"), "{none:?}");
}

#[test]
fn an_interrupted_campaign_says_so() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let mut command = dir.command(OURS, "differential --iterations 100000 --workdir work");
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_begun = || {
        let entries = fs::read_dir(dir.join("work")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.path().join("job-0").exists())
    };
    until("not begun", has_begun);
    signal("-INT", &running.id().to_string());
    let ran = Ran::from(running.wait_with_output().unwrap()).exits(2);
    let ran = ran.has("divergences: none so far");
    assert!(ran.err.contains("interrupted after"), "{ran:?}");
    assert_eq!(json_of(&dir.join("work/reports/summary.json"))["is_complete"], false);
}

#[test]
fn issues_are_ready_to_post() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let program = faulty(&dir, "map", OFFSET[0]);
    let options = "--iterations 6 --formats qcow2 --jobs 1 --fail-fast --file --command";
    let texts = dir.run(&format!("differential --workdir work {options} {program}")).out;
    let [folder] = &folders(&dir.join("work/reports"))[..] else { panic!("{texts}") };
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let issue = read("issue.md");
    assert!(texts.contains(&issue));
    // The commands of the text alone repeat the divergence.
    let commands = issue.split("```").nth(1).unwrap().strip_prefix("sh\n").unwrap();
    let again = Folder::new();
    let shell = Ran::of(&mut again.command("sh", &["-c", commands]));
    // The first map begins there.
    let shown = &shell.out[shell.out.find('[').unwrap_or(0)..];
    let (qemu, tested) = (read("qemu.stdout"), read("tested.stdout"));
    assert_eq!(shown, format!("{qemu}{tested}"), "{issue}");
    assert!(qemu != tested && issue.contains("QEMU, exit 0:"), "{issue}");
}

#[test]
fn a_divergence_that_the_user_knows_is_counted_and_its_text_is_ready_to_post() {
    let Some(()) = qemu::tools() else { return };
    let dir = Folder::new();
    let program = faulty(&dir, "map", OFFSET[0]);
    let run = |recipes: &str, form: &str| {
        let finding = format!(
            "[[finding]]\nfingerprint = \"{}*\"\nreason = \"Offsets are wrong.\"\nrecipes = [[\"{recipes}\"]]\n",
            OFFSET[1]
        );
        dir.write("known.toml", finding);
        let options = format!("--iterations 4 --formats qcow2 {form} --command {program}");
        dir.run(&format!("differential {options} --known known.toml --workdir work"))
    };
    let known = run("*qemu-img create*", "--json").ok().json();
    let met = &known["known"][format!("{}*", OFFSET[1])];
    assert!(met["times"].as_u64().unwrap() > 0, "{met}");
    let texts = run("*qemu-img create*", "--file");
    let texts = texts.has("Offsets are wrong.").has("qemu-img create");
    texts.has("qemu-img map --output=json").has("QEMU, exit 0");
    // In other recipes, the same divergence is new.
    run("*qemu-img frobnicate*", "--json").exits(1);
}
