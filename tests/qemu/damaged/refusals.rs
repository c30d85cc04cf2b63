//! The rules of the oracle `refusal`, judged by qemu: the installed qemu-img refuses an image that breaks a rule, with
//! the expected error, and accepts its undamaged sibling. For headers with a changed field, the rules and qemu-img
//! decide the same.

use test_support::prelude::*;

use super::headers::{Case, combinations, fields};
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::format::list::drawer;
use test_support::planted::broken;

/// Returns the names of all rules of a format.
pub fn rule_names(format: ImageFormat) -> impl Iterator<Item = &'static str> {
    let drawer = drawer(format);
    drawer.open_rules().into_iter().chain(drawer.entry_rules().iter().copied())
}

/// Returns the error of `qemu-img map`; `None` if it succeeds.
pub fn refused(format: ImageFormat, path: &Path) -> Checked<Option<String>> {
    let arguments = ["map", "--output=json", "-f", format.name()].map(OsStr::new);
    let output = qemu::run("qemu-img", &[&arguments[..], &[path.as_os_str()]].concat())?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(error))
}

/// Writes the files that a program builds, and damages, into `dir`. Returns the error of qemu-img, if there is one.
fn refused_files(program: &Program, dir: &Path) -> Checked<Option<String>> {
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    hostile.run(&program.encode(), Checks::AtCheckpoints).unwrap();
    let names = FileNames::default();
    let path = dir.join("image.qcow2");
    for (name, image) in hostile.pipeline().images().files(&names) {
        let path = name.map_or(path.clone(), |name| dir.join(name));
        export::write(image, &File::create(path).unwrap(), Holes::Keep).unwrap();
    }
    refused(ImageFormat::Qcow2, &path)
}

#[test]
fn qemu_refuses_an_image_that_breaks_a_rule_and_accepts_its_sibling() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for case in broken::cases() {
        let damaged = refused_files(&case.program(), dir.path()).unwrap();
        let sibling = refused_files(&case.sound(), dir.path()).unwrap();
        if !damaged.as_ref().is_some_and(|error| error.contains(case.qemu)) || sibling.is_some() {
            faults.push(format!("{}: {damaged:?}, its sibling: {sibling:?}", case.rule));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let tried: BTreeSet<_> = broken::cases().map(|case| case.rule).collect();
    assert_eq!(tried, rule_names(ImageFormat::Qcow2).collect(), "rules with a case");
}

/// The files that an image names are no part of the rules. QEMU's errors about them, if no rule is broken.
const FILES: &[&str] = &["Could not open backing file", "'data-file' is required"];

/// Asserts that the rules refuse the image exactly if qemu-img does not open it. Counts the broken rule, if any.
fn judge(dir: &Path, case: &Case) -> Checked<Tally> {
    let path = dir.join("image.qcow2");
    fs::write(&path, &case.bytes).described()?;
    // An image with another version or another geometry may open, and have entries with another meaning.
    let error =
        refused(ImageFormat::Qcow2, &path)?.filter(|error| error.contains("Could not open '"));
    let mut image = Image::default();
    image.write(HostOffset::ZERO, &case.bytes);
    image.seal(case.bytes.len() as u64);
    let mut tally = Tally::default();
    match (drawer(ImageFormat::Qcow2).broken_at_open(&image), error) {
        (Some(rule), Some(_)) => tally.add(rule, 1),
        (None, None) => tally.add("accepted", 1),
        (None, Some(error)) if FILES.iter().any(|it| error.contains(it)) => tally.add("files", 1),
        (rule, error) => return Err(format!("the rules: {rule:?}, qemu-img: {error:?}")),
    }
    Ok(tally)
}

#[test]
fn the_rules_refuse_a_header_exactly_if_qemu_refuses_it() {
    let Some(()) = qemu::tools() else { return };
    let mut cases = fields();
    cases.extend(combinations());
    let dir = || tempfile::tempdir().unwrap();
    let tally = qemu::judge_all(&cases, dir, |dir, case| judge(dir.path(), case));
    // The snapshot table and the content of the bitmaps extension are no part of these headers.
    let behind = ["snapshot's extra data above 1024 bytes", "nb_bitmaps"];
    let bounds = drawer(ImageFormat::Qcow2)
        .open_rules()
        .into_iter()
        .filter(|rule| !behind.contains(rule) && !rule.contains("itmap"));
    let bounds = bounds.map(|rule| (rule, 1)).chain([("accepted", 400), ("files", 1)]);
    tally.assert_at_least(&bounds.collect::<Vec<_>>());
}
