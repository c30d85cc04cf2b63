//! The known divergences: each has a recipe that shows it, and still occurs. The last section of
//! `docs/differential.md` describes them.

mod examples;

use std::fmt::Write;
use std::time::Duration;
use test_support::prelude::*;

use qcowfuzz::harness::KnownFinding;
use qcowfuzz::internal::differential::divergence::{cause_of, is_bug, known_of_qemu, reason_of};
use qcowfuzz::internal::differential::iteration::RecipeRunner;
use qcowfuzz::internal::differential::sides::{Sides, Tested};
use qcowfuzz::internal::recipes::perform::QemuTools;
use qcowfuzz::internal::recipes::recipe::{Recipe, quoted};

use super::OURS;

/// The release of QEMU in which the known divergences were seen.
const RELEASE: &str = "10.0";

/// A known divergence: a short name, the fingerprint in the list, and the recipe that shows it.
type Example = (&'static str, &'static str, fn() -> Recipe);

/// The known divergences. The list has further fingerprints of the same causes.
const EXAMPLES: [Example; 13] = [
    (
        "commit-crash",
        "commit_signal: qcow2, qemu, signal 11, after: qcow: Marking image as corrupt: *",
        examples::commit_crash,
    ),
    (
        "commit-abort",
        "commit_signal: qcow2, qemu, signal 6, after: qemu-img: block.c:: bdrv_replace_child_noperm: \
         Assertion `!child->frozen",
        examples::commit_abort,
    ),
    (
        "compressed-overwrite",
        "check_exit_code_divergence: qcow2, 0 → 2, a cluster with two structures",
        examples::compressed_overwrite,
    ),
    (
        "preallocated-old-data",
        "read_model_divergence: qcow2, zero → data",
        examples::preallocated_old_data,
    ),
    (
        "preallocated-end-of-file",
        "read_model_divergence: qcow2, zero → data",
        examples::preallocated_end_of_file,
    ),
    ("vmdk-no-extents", "info_signal: vmdk, qemu, signal 6", examples::vmdk_no_extents),
    (
        "vmdk-no-table",
        "check_exit_code_divergence: vmdk, 1 (below: not this format) → 0",
        examples::vmdk_no_table,
    ),
    (
        "map-without-bitmaps",
        "map_exit_code_divergence: qcow2, 1 (*invalid bitmap) → 0",
        examples::map_without_bitmaps,
    ),
    (
        "part-of-a-cluster",
        "read_exit_code_divergence: qcow2, 1 (failed read) → 0",
        examples::part_of_a_cluster,
    ),
    (
        "measure-behind-data",
        "measure_exit_code_divergence: qcow2, 0 → 1 (invalid entry)",
        examples::measure_behind_data,
    ),
    (
        "check-alone",
        "check_exit_code_divergence: qcow2, 1 (missing file) → *",
        examples::check_alone,
    ),
    (
        "info-encrypted",
        "info_exit_code_divergence: qcow2, 0 → 1 (unsupported)",
        examples::info_encrypted,
    ),
    (
        "version-2-zero-flag",
        "check_exit_code_divergence: qcow2, 0 → 2, a zero flag in version 2",
        examples::version_2_zero_flag,
    ),
];

/// Returns the finding of the list with this fingerprint.
fn finding<'k>(known: &'k KnownFindings, fingerprint: &str) -> &'k KnownFinding {
    let found = known.iter().find(|finding| finding.fingerprint == fingerprint);
    found.unwrap_or_else(|| panic!("known.toml has no '{fingerprint}'"))
}

/// Returns the findings with the cause that the finding with this fingerprint describes: itself, and others.
fn of_cause<'k>(known: &'k KnownFindings, fingerprint: &str) -> Vec<&'k KnownFinding> {
    let cause = finding(known, fingerprint);
    known.iter().filter(|other| cause_of(known, other) == cause).collect()
}

/// Returns the commands of a recipe, and its questions to QEMU.
fn commands(recipe: &Recipe) -> String {
    let mut lines: String =
        recipe.commands().iter().map(|command| format!("{command}\n")).collect();
    for step in &recipe.steps {
        for question in &step.questions {
            let words = question.arguments(&step.disk, "out.raw");
            let _ = writeln!(lines, "qemu-img {}", quoted(&words));
        }
    }
    lines
}

/// The heading of the section of the known divergences, which ends the page.
const HEADING: &str = "\n## Known divergences\n";

/// Returns the section of the known divergences, without its heading.
fn section(known: &KnownFindings) -> String {
    let mut text = format!(
        "\nThis section is generated from `src/differential/reports/known.toml` and the recipes in \
         `tests/differential_known/`: `QCOWFUZZ_BLESS=1 cargo test --test differential`.\n\nA campaign counts these \
         divergences and goes on. They were seen with QEMU {RELEASE}. A test carries out the commands of each, and \
         fails if the divergence no longer occurs.\n\n\
         | id | cause |\n|---|---|\n",
    );
    for (id, fingerprint, _) in EXAMPLES {
        let cause =
            if is_bug(finding(known, fingerprint)) { "a fault of QEMU" } else { "a choice" };
        let _ = writeln!(text, "| [{id}](#{id}) | {cause} |");
    }
    let mut described: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, fingerprint, example) in EXAMPLES {
        if let Some(first) = described.insert(fingerprint, id) {
            let _ = write!(text, "\n### {id}\n\nAnother example of [{first}](#{first}).\n");
            let _ = write!(text, "\n```sh\n{}```\n", commands(&example()));
            continue;
        }
        let reason = reason_of(finding(known, fingerprint));
        let (title, rest) = reason.split_once(". ").unwrap();
        let _ = write!(text, "\n### {id}\n\n**{title}.** {rest}\n\nFingerprints:\n\n");
        for finding in of_cause(known, fingerprint) {
            let _ = writeln!(text, "- `{}`", finding.fingerprint);
        }
        let _ = write!(text, "\n```sh\n{}```\n", commands(&example()));
    }
    text
}

#[test]
fn each_known_divergence_has_an_example_and_a_place_on_the_page() {
    let known = known_of_qemu().unwrap();
    let mut described = BTreeSet::new();
    for (id, fingerprint, example) in EXAMPLES {
        let cause = finding(&known, fingerprint);
        for finding in of_cause(&known, fingerprint) {
            assert_eq!(finding.recipes, cause.recipes, "{id}: {}", finding.fingerprint);
            described.insert(&*finding.fingerprint);
        }
        // The example needs each of the commands that the finding names.
        let commands = example().commands();
        for text in cause.recipes.iter().flatten() {
            let matches = |command: &&String| is_of(command, text);
            let other: Vec<_> = commands.iter().filter(|it| !matches(it)).cloned().collect();
            let is_needed = other.len() < commands.len();
            let is_known = known.find_in(fingerprint, &other) == Some(cause);
            assert!(!is_needed || !is_known, "{id}: known without '{text}'");
        }
    }
    let all: BTreeSet<_> = known.iter().map(|finding| &*finding.fingerprint).collect();
    assert_eq!(described, all);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differential.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, found) = page.split_once(HEADING).expect(HEADING);
    let expected = section(&known);
    if std::env::var_os("QCOWFUZZ_BLESS").is_some() {
        fs::write(&path, format!("{before}{HEADING}{expected}")).unwrap();
        return;
    }
    assert_eq!(found, expected, "QCOWFUZZ_BLESS=1 writes it");
}

/// Reports whether a text matches a pattern, in which `*` stands for any text: as a known finding of that name says.
fn is_of(text: &str, pattern: &str) -> bool {
    let recipes = vec![vec![pattern.to_string()]];
    let finding = KnownFinding { fingerprint: "a: b".to_string(), recipes, ..Default::default() };
    KnownFindings::new([finding]).find_in("a: b", &[text.to_string()]).is_some()
}

#[test]
fn known_divergences_still_occur() {
    let Some(()) = qemu::tools() else { return };
    let qemu = QemuTools::find("qemu-img".as_ref()).unwrap();
    let version = qemu.version.clone();
    if !version.starts_with(RELEASE) {
        let is_required = std::env::var_os("QCOWFUZZ_REQUIRE_QEMU").is_some();
        assert!(!is_required, "QEMU {version}, expected {RELEASE}, which shows the divergences");
        return;
    }
    let sides = Sides { qemu, tested: Tested::Ours(OURS.into()), timeout: Duration::from_secs(60) };
    let known = known_of_qemu().unwrap();
    for (id, fingerprint, example) in EXAMPLES {
        let recipe = example();
        let dir = tempfile::tempdir().unwrap();
        let all =
            RecipeRunner { sides: &sides, known: &KnownFindings::default(), folder: dir.path() };
        let found = all.run(&recipe).met.map(|met| met.fingerprint).unwrap_or_default();
        let in_recipe = known.find_in(&found, &recipe.commands());
        assert_eq!(in_recipe.map(|it| &*it.fingerprint), Some(fingerprint), "{id}: {found}");
        // A campaign sets it aside.
        let dir = tempfile::tempdir().unwrap();
        let campaign = RecipeRunner { sides: &sides, known: &known, folder: dir.path() };
        let course = campaign.run(&recipe);
        assert!(course.met.is_none(), "{id}: {:?}", course.met);
        assert!(course.known.keys().eq([fingerprint]), "{id}");
    }
}
