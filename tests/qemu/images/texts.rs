//! The texts for people: `map`, `check` and `info` print what the installed qemu-img prints, byte for byte, about the
//! disks that recipes make.

use std::os::unix::fs::PermissionsExt;
use test_support::prelude::*;

use crate::images::check::NAMED;
use qcowfuzz::internal::differential::workdir::files_below;
use qcowfuzz::internal::recipes::draw;
use qcowfuzz::internal::recipes::perform::QemuTools;
use qcowfuzz::internal::recipes::recipe::{DiskQuestion, RecipeStep};
use qcowfuzz::internal::recipes::workshop::Workshop;

const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");
/// The seed of the recipes.
const RNG_SEED: u64 = 5;
/// The number of recipes.
const RECIPES: u64 = 100;
/// The lowest count of each comparison.
const BOUNDS: [(&str, u64); 9] = [
    ("map", 95),
    ("check", 85),
    ("info", 85),
    ("raw", 8),
    ("qcow2", 180),
    ("vpc", 15),
    ("vmdk", 25),
    ("vhdx", 2),
    ("vdi", 2),
];

/// The exit codes of a check that found something, and of one of a format without checks.
const CHECKED: [i32; 3] = [2, 3, 63];

#[test]
fn we_print_what_qemu_img_prints() {
    let Some(()) = qemu::tools() else { return };
    let tools = QemuTools::find("qemu-img".as_ref()).unwrap();
    let recipes: Vec<u64> = (0..RECIPES).collect();
    let judged = |(): &mut (), number: &u64| judge(&tools, OURS, *number);
    let tally: Tally = qemu::judge_all(&recipes, || (), judged);
    tally.assert_at_least(&BOUNDS);
}

#[test]
fn a_program_with_one_other_label_is_found() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let script = format!("#!/bin/sh\n\"{OURS}\" \"$@\" | sed 's/^cluster_size/cluster size/'\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let tools = QemuTools::find("qemu-img".as_ref()).unwrap();
    let judged = |number| judge(&tools, program.to_str().unwrap(), number);
    let found = (0..RECIPES).find_map(|number| judged(number).err()).unwrap_or_default();
    assert!(found.contains("cluster size"), "{found}");
}

/// Carries out a recipe, and compares the texts of `program` about its last disk with QEMU's.
fn judge(tools: &QemuTools, program: &str, number: u64) -> Checked<Tally> {
    let folder = tempfile::tempdir().unwrap();
    let recipe = draw::recipe(RNG_SEED, number);
    let mut workshop = Workshop::of_qemu(tools, folder.path());
    for step in &recipe.steps {
        workshop.change(step).described()?;
    }
    let mut tally = Tally::default();
    let Some(RecipeStep { disk, questions, .. }) = recipe.steps.last() else { return Ok(tally) };
    let commands = recipe.commands().join("\n");
    for question in questions {
        if matches!(question, DiskQuestion::Read | DiskQuestion::Measure) {
            continue;
        }
        let words = question.arguments(disk, "out.raw");
        let words = words.iter().map(|word| word.replace("--output=json", "--output=human"));
        let asked =
            Asked { words: words.collect(), program, folder: folder.path(), commands: &commands };
        if asked.compare().map_err(|it| format!("{it}\n{commands}"))? {
            tally.add(question.name(), 1);
            tally.add(disk.file.rsplit_once('.').map_or("raw", |(_, format)| format), 1);
        }
    }
    Ok(tally)
}

/// A question about a disk.
struct Asked<'a> {
    words: Vec<String>,
    program: &'a str,
    folder: &'a Path,
    /// The commands that made the disk.
    commands: &'a str,
}

impl Asked<'_> {
    /// Compares the answers. Returns false if QEMU has none, or the answers differ as they may.
    fn compare(&self) -> Checked<bool> {
        let mut difference = String::new();
        // The file system may turn holes into zeros between two answers, once.
        for _ in 0..2 {
            let [theirs, ours] = ["qemu-img", self.program].map(|program| self.ask(program));
            let code = theirs.status.code().unwrap_or(-1);
            if code != 0 && !(self.is_check() && CHECKED.contains(&code)) {
                return Ok(false);
            }
            if self.may_differ(&ours) {
                return Ok(false);
            }
            let [theirs_text, ours_text] = [&theirs, &ours].map(|output| self.text(output));
            if theirs.status == ours.status && theirs_text == ours_text {
                return Ok(true);
            }
            let first = first_difference(&theirs_text, &ours_text);
            difference = format!("{}, {}: {first}", theirs.status, ours.status);
            settle(self.folder);
        }
        Err(format!("{}: {difference}", self.words.join(" ")))
    }

    fn is_check(&self) -> bool {
        self.words[0] == "check"
    }

    /// Reports whether our answer may be another one: our check finds more, and describes no encrypted image.
    fn may_differ(&self, ours: &Output) -> bool {
        let message = String::from_utf8_lossy(&ours.stderr);
        let has_more = message.lines().any(|line| NAMED.iter().any(|(_, end)| line.ends_with(end)));
        self.is_check() && has_more || self.commands.contains("encrypt.format=")
    }

    fn ask(&self, program: &str) -> Output {
        let mut command = Command::new(program);
        command.args(&self.words).current_dir(self.folder).env("TZ", "UTC").env("LC_ALL", "C");
        command.output().unwrap()
    }

    /// Returns the bytes of an answer. A relative name of a data file starts at the folder of its image for us, and at
    /// the current one for QEMU: a map has the names without their folders then.
    fn text(&self, output: &Output) -> Vec<u8> {
        let may_have_data_file =
            self.commands.contains("data_file=") || self.commands.contains("qcowfuzz export");
        if self.words[0] != "map" || !may_have_data_file {
            return output.stdout.clone();
        }
        let without_folder = |line: &[u8]| match line.iter().rposition(|byte| *byte == b' ') {
            Some(space) => {
                let name = line[space..].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                [&line[..space], name].concat()
            }
            None => line.to_vec(),
        };
        output.stdout.split_inclusive(|byte| *byte == b'\n').flat_map(without_folder).collect()
    }
}

/// Has the file system write all files, whose holes and blocks are then final.
fn settle(folder: &Path) {
    for file in files_below(folder).unwrap() {
        File::open(file).unwrap().sync_all().unwrap();
    }
}

/// Returns the first lines that differ.
fn first_difference(theirs: &[u8], ours: &[u8]) -> String {
    let [theirs, ours] = [theirs, ours].map(String::from_utf8_lossy);
    let (mut one, mut other) = (theirs.lines(), ours.lines());
    let pairs = std::iter::from_fn(|| Some((one.next(), other.next())));
    let mut unequal = pairs.enumerate().filter(|(_, (one, other))| one != other || one.is_none());
    let (at, (one, other)) = unequal.next().unwrap();
    format!("line {}: qemu {one:?}, ours {other:?}", at + 1)
}
