//! The rules about VHD, VHDX and VMDK images: for each rule, images that break it, and the answer of qemu-img.

use test_support::prelude::*;

use crate::damaged::refusals::{refused, rule_names};
use crate::formats::program;
use test_support::planted::broken_formats::{byte_cases, format_cases, sound};

/// An image, and the answer that qemu-img must give.
struct Case {
    rule: &'static str,
    format: ImageFormat,
    program: Program,
    /// A part of the error; `None` if qemu-img must read the image.
    error: Option<&'static str>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, error: {:?}\n{}", self.rule, self.error, self.program)
    }
}

/// Returns images that break a rule, and the undamaged siblings of each.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for case in format_cases() {
        cases.extend(case.programs().map(|program| Case {
            rule: case.rule,
            format: case.format,
            program,
            error: Some(case.qemu),
        }));
    }
    let mut siblings = BTreeSet::new();
    let sibling = |case: &Case| {
        let program = sound(&case.program);
        let is_new = siblings.insert(program.encode());
        is_new.then_some(Case { rule: "none", format: case.format, program, error: None })
    };
    let siblings: Vec<Case> = cases.iter().filter_map(sibling).collect();
    cases.extend(siblings);
    cases
}

/// Writes the image of a program to `path`, and its other files beside it.
fn write(program: &Program, path: &Path) {
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    hostile.run(&program.encode(), Checks::AtCheckpoints).unwrap();
    program::write_files(path, hostile.pipeline().images()).unwrap();
}

/// Checks the error with which qemu-img refuses to map or to read an image. Counts the broken rule.
fn judge(dir: &Path, case: &Case) -> Checked<Tally> {
    let path = dir.join("image");
    write(&case.program, &path);
    judge_file(&path, (case.rule, case.format), case.error)
}

fn judge_file(
    path: &Path,
    (rule, format): (&'static str, ImageFormat),
    expected: Option<&str>,
) -> Checked<Tally> {
    let raw = path.with_extension("raw");
    let convert = || qemu::convert_with(&["-f", format.name()], path, &raw).err();
    let error = refused(format, path)?.or_else(convert);
    let mut tally = Tally::default();
    match (expected, &error) {
        (Some(expected), Some(error)) if error.contains(expected) => tally.add(rule, 1),
        (None, None) => tally.add(rule, 1),
        _ => return Err(format!("qemu-img: {error:?}")),
    }
    Ok(tally)
}

#[test]
fn qemu_refuses_images_of_other_formats_that_break_a_rule_and_accepts_their_siblings() {
    let Some(()) = qemu::tools() else { return };
    let dir = || tempfile::tempdir().unwrap();
    let mut tally: Tally = qemu::judge_all(&cases(), dir, |dir, case| judge(dir.path(), case));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for case in byte_cases() {
        for program in case.programs() {
            fs::write(&path, case.changed(&program)).unwrap();
            let judged = judge_file(&path, (case.rule, case.format), Some(case.qemu));
            tally += judged.unwrap_or_else(|what| panic!("{}: {what}\n{program}", case.rule));
        }
    }
    let rules: Vec<_> = Base::other_formats().flat_map(rule_names).collect();
    // Each rule has an image of each of four forms.
    let bounds = rules.iter().map(|rule| (*rule, 4)).chain([("none", 28)]);
    tally.assert_at_least(&bounds.collect::<Vec<_>>());
}
