//! Runs every file in `tests/regressions/`, and the minimized program of every bug in `bugs/` and `bugs/hard/`. None
//! may show a violation. `qcowfuzz regress --text` prints such files.

use test_support::prelude::*;

use qcowfuzz::findings::regression::Regression;
use qcowfuzz::harness::{Failure, Outcome};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|it| it == "txt")).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Regression {
    let text = fs::read_to_string(path).unwrap();
    Regression::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(regression: &Regression, checks: Checks) -> Result<Outcome, Box<Failure>> {
    regression
        .target
        .create(&small_writer::implementation(None), FileNames::default(), no_observer())
        .run(&regression.input, checks)
}

#[test]
fn regressions_find_nothing() {
    for path in [files("tests/regressions"), files("bugs"), files("bugs/hard")].concat() {
        let regression = read(&path);
        for checks in [Checks::AtCheckpoints, Checks::AfterChanges, Checks::AfterEach] {
            let outcome = run(&regression, checks);
            let outcome = outcome.unwrap_or_else(|found| panic!("{}: {found:?}", path.display()));
            assert!(!outcome.unsupported, "{}", path.display());
        }
    }
}

#[test]
fn each_regression_has_a_story() {
    for path in [files("tests/regressions"), files("bugs"), files("bugs/hard")].concat() {
        let regression = read(&path);
        assert!(regression.story.len() > 40, "{}: {}", path.display(), regression.story);
        for placeholder in ["Story:", "Its story:"] {
            assert!(!regression.story.starts_with(placeholder), "{}", path.display());
        }
    }
}
