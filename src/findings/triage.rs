//! Groups inputs by the bug that they show. The result lists the bugs, marks those that are new, and names the smallest
//! input of each.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use serde::Serialize;

use crate::base::error::Error;
use crate::base::files;
use crate::harness::engine::known::is_of;
use crate::harness::targets::TargetKind;
use crate::harness::{KnownFinding, KnownFindings};

use super::isolation::{FinishedRun, IsolatedRun, Isolation};
use super::panics::is_recorded;
use super::regression::Regression;

/// The fingerprints of the known bugs, and the file that describes each.
pub type KnownBugs = BTreeMap<String, PathBuf>;

/// The reason why the known bugs could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KnownBugsError {
    /// The folder or a file could not be read.
    #[error(transparent)]
    File(#[from] Error),
    /// A file is not the text of a regression.
    #[error("{path}: {source}", path = path.display())]
    Regression {
        /// The file.
        path: PathBuf,
        /// The line that is wrong.
        source: Error,
    },
}

/// Reads the known bugs: the regressions in the files `*.txt` of a folder.
///
/// # Errors
/// A file cannot be read, or is not a regression.
pub fn known_bugs(dir: &Path) -> Result<KnownBugs, KnownBugsError> {
    let mut known = KnownBugs::new();
    for path in files::list(dir)? {
        if path.extension().is_some_and(|extension| extension == "txt") {
            let bytes = files::read(&path, u64::MAX)?;
            match Regression::parse(&String::from_utf8_lossy(&bytes)) {
                Ok(regression) => drop(known.insert(regression.fingerprint, path)),
                Err(source) => return Err(KnownBugsError::Regression { path, source }),
            }
        }
    }
    Ok(known)
}

/// The inputs of a folder, grouped by bug.
#[derive(Debug, Serialize)]
pub struct Triage {
    /// The folder.
    pub dir: String,
    /// The target of the inputs.
    pub target: TargetKind,
    /// The number of inputs that were run.
    pub inputs: usize,
    /// The bugs: the new ones first, then by the length of the smallest input.
    pub bugs: Vec<Bug>,
    /// The known findings, and the inputs that show each.
    pub known: Vec<TriagedKnown>,
    /// The inputs that show no bug any more.
    pub nothing: Vec<TriagedInput>,
    /// The reasons why other inputs could not be run, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// A bug.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Bug {
    /// One line that is the same for every input that shows the same bug.
    pub fingerprint: String,
    /// The file of the regression, if the bug is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The inputs that show the bug, the smallest first.
    pub inputs: Vec<TriagedInput>,
}

/// A known finding, which the implementation or a file lists.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct TriagedKnown {
    /// The finding.
    #[serde(flatten)]
    pub finding: KnownFinding,
    /// The inputs that show the finding, the smallest first. If there are none, it no longer occurs.
    pub inputs: Vec<TriagedInput>,
}

/// An input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TriagedInput {
    /// The file.
    pub path: String,
    /// The length of the input, in bytes.
    pub bytes: u64,
}

/// Runs the inputs in the folder `dir`, each in a separate process, and groups them. `regressions` are known bugs; the
/// processes set the findings `known` aside. Hidden files are not inputs.
///
/// # Errors
/// The folder cannot be read.
pub fn triage(
    dir: &Path,
    regressions: &KnownBugs,
    known: &KnownFindings,
    isolation: &Isolation,
) -> Result<Triage, Error> {
    let is_hidden = |path: &Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    };
    let mut paths = files::list(dir)?;
    paths.retain(|path| !is_hidden(path));
    let mut triage = Triage {
        dir: dir.display().to_string(),
        target: isolation.target,
        inputs: 0,
        bugs: Vec::new(),
        known: known
            .iter()
            .map(|finding| TriagedKnown { finding: finding.clone(), inputs: Vec::new() })
            .collect(),
        nothing: Vec::new(),
        failures: Vec::new(),
    };
    for (path, ran) in paths.iter().zip(run_all(&paths, isolation)) {
        match ran {
            Ok((bytes, ran)) => {
                let path = path.display().to_string();
                triage.add(TriagedInput { path, bytes }, ran, regressions);
            }
            Err(line) => triage.failures.push(line),
        }
    }
    triage.sort();
    Ok(triage)
}

/// The length of an input and the result of its run, or the reason why it was not run.
type LengthAndRun = Result<(u64, IsolatedRun), String>;

/// Runs all inputs, as many at a time as there are cores. The results have the order of the inputs.
fn run_all(paths: &[PathBuf], isolation: &Isolation) -> Vec<LengthAndRun> {
    let run = |path: &Path| {
        let input = files::read_input(path).map_err(|error| error.to_string())?;
        let ran = isolation.isolated_run(&input);
        let ran = ran.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((input.len() as u64, ran))
    };
    let next = AtomicUsize::new(0);
    let all: Mutex<Vec<(usize, LengthAndRun)>> = Mutex::default();
    let workers = available_parallelism().map_or(1, NonZero::get).min(paths.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(path) = paths.get(at)
                {
                    let ran = run(path);
                    if let Ok(mut all) = all.lock() {
                        all.push((at, ran));
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_default();
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, ran)| ran).collect()
}

impl Triage {
    /// Returns the number of new bugs.
    pub fn new_bugs(&self) -> usize {
        self.bugs.iter().filter(|bug| bug.known.is_none()).count()
    }

    fn add(&mut self, input: TriagedInput, ran: IsolatedRun, regressions: &KnownBugs) {
        self.inputs += 1;
        let (fingerprint, met) = match ran {
            IsolatedRun::Finished(FinishedRun { fingerprint, known, .. }) => (fingerprint, known),
            IsolatedRun::Ended(end) => (Some(end.fingerprint()), Vec::new()),
        };
        let mut is_known = false;
        for TriagedKnown { finding: known, inputs } in &mut self.known {
            // The run has judged by itself whether a finding of certain recipes is known.
            let of_known = |it: &String| known.recipes.is_empty() && is_of(it, &known.fingerprint);
            if met.contains(&known.fingerprint) || fingerprint.as_ref().is_some_and(of_known) {
                is_known |= fingerprint.as_ref().is_none_or(of_known);
                inputs.push(input.clone());
            }
        }
        if is_known {
            return;
        }
        let Some(fingerprint) = fingerprint else {
            self.nothing.push(input);
            return;
        };
        if let Some(bug) = self.bugs.iter_mut().find(|bug| bug.fingerprint == fingerprint) {
            bug.inputs.push(input);
            return;
        }
        let known = regressions.iter().find(|(recorded, _)| is_recorded(recorded, &fingerprint));
        let known = known.map(|(_, path)| path.display().to_string());
        self.bugs.push(Bug { fingerprint, known, inputs: vec![input] });
    }

    /// Sorts the bugs: new ones first, then by the length of the smallest input. Sorts the inputs of each bug by
    /// length.
    fn sort(&mut self) {
        let by_size = |inputs: &mut Vec<TriagedInput>| {
            inputs.sort_by(|one, other| (one.bytes, &one.path).cmp(&(other.bytes, &other.path)));
        };
        self.bugs.iter_mut().for_each(|bug| by_size(&mut bug.inputs));
        self.known.iter_mut().for_each(|known| by_size(&mut known.inputs));
        by_size(&mut self.nothing);
        self.bugs.sort_by_key(|bug| {
            let smallest = bug.inputs.first().map_or(0, |input| input.bytes);
            (bug.known.is_some(), smallest, bug.fingerprint.clone())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::isolation::tests::shell;

    /// Prints the content of each input as its fingerprint.
    const PRINT_INPUT: &str =
        r#"test -s "$input" && printf '{"fingerprint":"%s"}\n' "$(cat "$input")" || echo {}"#;

    fn folder(inputs: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in inputs {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    #[test]
    fn bugs_are_grouped_and_new_ones_come_first() {
        let dir = folder(&[
            ("a", "panic: my_crate, one"),
            ("b", "model: kind, normal → zero-plain"),
            ("c", "panic: my_crate, one"),
            ("d", ""),
            (".hidden", "model: kind, normal → unallocated"),
        ]);
        // The fingerprint has the older form of the same panic.
        let known = [("panic: src/one.rs, one".to_string(), PathBuf::from("one.txt"))];
        let isolation = shell(PRINT_INPUT);
        let triage =
            triage(dir.path(), &known.into(), &KnownFindings::default(), &isolation).unwrap();
        let input = |name: &str, bytes| {
            let path = dir.path().join(name).display().to_string();
            TriagedInput { path, bytes }
        };
        let (new, known) = ("model: kind, normal → zero-plain", "panic: my_crate, one");
        let bug = |fingerprint: &str, known: Option<&str>, inputs| {
            let known = known.map(str::to_string);
            Bug { fingerprint: fingerprint.to_string(), known, inputs }
        };
        let expected = [
            bug(new, None, vec![input("b", new.len() as u64)]),
            bug(known, Some("one.txt"), vec![input("a", 20), input("c", 20)]),
        ];
        assert_eq!(triage.bugs, expected);
        assert_eq!(triage.nothing, [input("d", 0)]);
        assert_eq!((triage.inputs, triage.new_bugs(), triage.failures.len()), (4, 1, 0));
    }

    #[test]
    fn known_findings_are_apart_and_those_that_are_gone_are_named() {
        // Some inputs end their process, and some show what their file says: a new finding after a known one.
        let script = r#"ulimit -c 0; grep -q dies "$input" && kill -ABRT $$; cat "$input"; echo"#;
        let both = r#"{"fingerprint":"model: a, b → c","known":["data: a, b → c"]}"#;
        let old = r#"{"known":["data: a, b → c"]}"#;
        let inputs = [("both", both), ("dies", "dies"), ("nothing", "{}"), ("old", old)];
        let dir = folder(&inputs);
        let killed = "process: end, an answer → signal: 6 (SIGABRT)";
        let finding = |fingerprint: &str| KnownFinding {
            fingerprint: fingerprint.to_string(),
            reason: "a test".to_string(),
            ..KnownFinding::default()
        };
        let known = KnownFindings::new(["data: a, b → c", killed, "io: a, b → c"].map(finding));
        let isolation = shell(script);
        let triage = triage(dir.path(), &KnownBugs::new(), &known, &isolation).unwrap();
        let names = |inputs: &[TriagedInput]| {
            let name = |input: &TriagedInput| input.path.rsplit_once('/').unwrap().1.to_string();
            inputs.iter().map(name).collect::<Vec<_>>()
        };
        let known: Vec<_> = triage.known.iter().map(|known| names(&known.inputs)).collect();
        assert_eq!(known, [vec!["old", "both"], vec!["dies"], vec![]]);
        let bugs: Vec<_> =
            triage.bugs.iter().map(|bug| (&*bug.fingerprint, names(&bug.inputs))).collect();
        assert_eq!(bugs, [("model: a, b → c", vec!["both".to_string()])]);
        assert_eq!((names(&triage.nothing), triage.new_bugs()), (vec!["nothing".to_string()], 1));
    }

    #[test]
    fn known_bugs_are_read_and_other_texts_are_refused() {
        let text = "; model: kind, a → b\n; target: map_extents\n;\n; A story.\n";
        let program = crate::programs::Program::default();
        let dir = folder(&[("one.txt", &format!("{text}{program}")), ("notes.md", "none")]);
        let known = known_bugs(dir.path()).unwrap();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["model: kind, a → b"]);
        std::fs::write(dir.path().join("two.txt"), "none").unwrap();
        let error = known_bugs(dir.path()).unwrap_err().to_string();
        assert!(error.contains("two.txt: line 1: no comment"), "{error}");
    }
}
