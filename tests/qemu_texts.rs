//! The texts for people: `map`, `check` and `info` print what the installed qemu-img prints, byte for byte, about the
//! disks that recipes make.

#[allow(dead_code)]
mod qemu;
mod tally;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use qcowfuzz::internal::recipes::draw;
use qcowfuzz::internal::recipes::names::files_below;
use qcowfuzz::internal::recipes::recipe::{AskedDisk, DiskQuestion, RecipeStep};
use qcowfuzz::internal::recipes::tools::QemuTools;
use qcowfuzz::internal::recipes::workshop::Workshop;
use qemu::Checked;
use tally::Tally;

const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");
/// The seed of the recipes.
const RNG_SEED: u64 = 5;
/// The number of recipes.
const RECIPES: u64 = 100;
/// The lowest count of each comparison.
const BOUNDS: [(&str, u64); 8] = [
    ("map", 110),
    ("check", 75),
    ("info", 75),
    ("raw", 8),
    ("qcow2", 180),
    ("vpc", 15),
    ("vmdk", 25),
    ("vhdx", 4),
];

/// The exit codes of a check that found something, and of one of a format without checks.
const CHECKED: [i32; 3] = [2, 3, 63];

#[test]
fn we_print_what_qemu_img_prints() {
    if !qemu::tools_are_there("we_print_what_qemu_img_prints") {
        return;
    }
    let tools = QemuTools::find("qemu-img".as_ref()).unwrap();
    let recipes: Vec<u64> = (0..RECIPES).collect();
    let tally: Tally = qemu::judge_all(&recipes, || (), |(), number| judge(&tools, *number));
    tally.assert_at_least(&BOUNDS);
}

/// Carries out a recipe, and compares the texts about its last disk.
fn judge(tools: &QemuTools, number: u64) -> Checked<Tally> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let recipe = draw::recipe(RNG_SEED, number);
    let mut workshop = Workshop::new(tools.clone(), folder);
    for step in &recipe.steps {
        workshop.change(step).map_err(|error| error.to_string())?;
    }
    let mut tally = Tally::default();
    let Some(RecipeStep { disk, questions, .. }) = recipe.steps.last() else { return Ok(tally) };
    let commands = recipe.commands();
    // A relative name of a data file starts at the folder of its image for us, and at the current one for QEMU.
    let has_data_file = commands.contains("data_file=") || commands.contains("qcowfuzz export");
    for question in questions {
        if matches!(question, DiskQuestion::Read | DiskQuestion::Measure) {
            continue;
        }
        if compare(question, disk, &path, has_data_file)
            .map_err(|it| format!("{it}\n{commands}"))?
        {
            tally.add(question.name(), 1);
            tally.add(disk.file.rsplit_once('.').map_or("raw", |(_, format)| format), 1);
        }
    }
    Ok(tally)
}

/// Compares the answers to a question. Returns false if QEMU has no answer, or our check found what only it finds.
fn compare(
    question: &DiskQuestion,
    disk: &AskedDisk,
    folder: &Path,
    has_data_file: bool,
) -> Checked<bool> {
    let words = question.arguments(disk, "out.raw");
    let words = words.iter().map(|word| word.replace("--output=json", "--output=human"));
    let words: Vec<String> = words.collect();
    // The file system may turn holes into zeros between two answers, once.
    let mut difference = None;
    for _ in 0..2 {
        let [theirs, ours] = ["qemu-img", OURS].map(|program| ask(program, &words, folder));
        let code = theirs.status.code().unwrap_or(-1);
        let is_answer = code == 0 || question.verb() == "check" && CHECKED.contains(&code);
        if !is_answer || ours.status.code() != Some(code) {
            // The differential campaign compares the ends.
            return Ok(false);
        }
        let [theirs, ours] =
            [theirs, ours].map(|output| text(&output, has_data_file && question.verb() == "map"));
        difference = first_difference(&theirs, &ours);
        if difference.is_none() {
            return Ok(true);
        }
        settle(folder);
    }
    let message = ask(OURS, &words, folder).stderr;
    match question.verb() == "check" && has_own_finding(&String::from_utf8_lossy(&message)) {
        true => Ok(false),
        false => Err(format!("{}: {}", words.join(" "), difference.unwrap_or_default())),
    }
}

/// Reports whether our check has found what qemu-img does not look for.
fn has_own_finding(messages: &str) -> bool {
    let own = [" and another structure too", ": the zero flag is set in a version 2 image"];
    messages.lines().any(|line| own.iter().any(|end| line.ends_with(end)))
}

fn ask(program: &str, words: &[String], folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(words).current_dir(folder).env("TZ", "UTC").env("LC_ALL", "C");
    command.output().unwrap()
}

/// Returns the text of an answer; in a map, without the folders of its files, if wanted.
fn text(output: &Output, without_folders: bool) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((numbers, path)) if without_folders => {
            format!("{numbers} {}\n", path.rsplit('/').next().unwrap_or_default())
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Has the file system write all files, whose holes and blocks are then final.
fn settle(folder: &Path) {
    for file in files_below(folder).unwrap() {
        File::open(file).unwrap().sync_all().unwrap();
    }
}

/// Returns the first lines that differ.
fn first_difference(theirs: &str, ours: &str) -> Option<String> {
    if theirs == ours {
        return None;
    }
    let (mut one, mut other) = (theirs.lines(), ours.lines());
    let pairs = std::iter::from_fn(|| Some((one.next(), other.next())));
    let found = pairs.enumerate().find(|(_, (one, other))| one != other || one.is_none());
    found.map(|(at, (one, other))| format!("line {}: qemu {one:?}, ours {other:?}", at + 1))
}

#[test]
fn a_difference_in_one_letter_or_line_is_found() {
    let text = "image: a\ncluster_size: 65536\n";
    assert_eq!(first_difference(text, text), None);
    for other in [text.replace('_', " "), text.replace("image: a\n", ""), format!("{text}\n")] {
        assert!(first_difference(text, &other).is_some(), "{other}");
    }
}
