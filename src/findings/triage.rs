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
use crate::base::features::{Feature, FeatureSet};
use crate::base::files;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::known::is_of;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, KnownFinding, KnownFindings, Pipeline};
use crate::images::limits::Limits;

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
    /// The fingerprints that may have one cause: the smallest programs of each group have the same features.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<Alike>,
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

/// Fingerprints whose smallest programs build images with the same features. Minimized programs have only the features
/// that the bug needs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Alike {
    /// The names of the features that a plain image lacks, separated by commas.
    pub features: String,
    /// The fingerprints, at least two.
    pub fingerprints: Vec<String>,
}

/// The features of a plain image, which say nothing about a bug.
const PLAIN_FEATURES: FeatureSet = FeatureSet::of(&[
    Feature::Qcow2,
    Feature::Version3,
    Feature::Clusters64K,
    Feature::Refcounts16,
    Feature::ShortHeader,
]);

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
        alike: Vec::new(),
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

/// Returns the features of the images that a program builds.
fn features_of(input: &[u8], limits: Limits, claims: &Claims) -> FeatureSet {
    let mut pipeline = Pipeline::default();
    pipeline.load(input, claims);
    let mut features = FeatureSet::EMPTY;
    // Without a judge, the run finds no violation.
    let _ = pipeline.run(limits, Checks::default(), &(), |case| {
        features = features.with(case.features);
        Ok(())
    });
    features
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

    /// Groups the fingerprints by the features of the images that their smallest programs build, under the claims of
    /// the implementation.
    pub fn note_alike(&mut self, claims: &Claims) {
        if !self.target.runs_programs() {
            return;
        }
        let limits = self.target.definition().limits;
        let mut groups: Vec<(FeatureSet, Vec<String>)> = Vec::new();
        for bug in &self.bugs {
            let smallest = bug.inputs.first().map(|input| files::read_input(input.path.as_ref()));
            // The input may be gone by now.
            let Some(Ok(bytes)) = smallest else { continue };
            let own = features_of(&bytes, limits, claims).without(PLAIN_FEATURES);
            match groups.iter_mut().find(|(features, _)| *features == own) {
                Some((_, fingerprints)) => fingerprints.push(bug.fingerprint.clone()),
                None => groups.push((own, vec![bug.fingerprint.clone()])),
            }
        }
        let groups = groups.into_iter();
        let groups = groups.filter(|(own, group)| group.len() > 1 && *own != FeatureSet::EMPTY);
        let alike =
            groups.map(|(own, fingerprints)| Alike { features: own.to_string(), fingerprints });
        self.alike = alike.collect();
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
    fn fingerprints_of_one_feature_are_grouped() {
        let program = |features: &str, fingerprint: &str| {
            let text = format!(
                "image version=3 cluster_bits=16 refcount_order=4 features={features} size=1<<16+0 \
                 rng_seed=0 blocks=append table=append tolerance=0\nwrite at=start+0 clusters=1"
            );
            let program = crate::programs::text::assemble(&text).unwrap();
            (program.encode(), fingerprint.to_string())
        };
        let programs = [
            program("none", "a"),
            program("zstd", "b"),
            program("zstd", "c"),
            program("none", "d"),
        ];
        let dir = tempfile::tempdir().unwrap();
        let mut bugs = Vec::new();
        for (bytes, fingerprint) in programs {
            let path = dir.path().join(&fingerprint);
            std::fs::write(&path, &bytes).unwrap();
            let path = path.display().to_string();
            let inputs = vec![TriagedInput { path, bytes: bytes.len() as u64 }];
            bugs.push(Bug { fingerprint, known: None, inputs });
        }
        let (alike, nothing, failures, known) = Default::default();
        let (dir, target) = (String::new(), TargetKind::MapExtents);
        let mut triage = Triage { dir, target, inputs: 4, bugs, known, alike, nothing, failures };
        triage.note_alike(&Claims::ALL);
        let group = Alike {
            features: "compression type zstd".to_string(),
            fingerprints: ["b", "c"].map(str::to_string).to_vec(),
        };
        assert_eq!(triage.alike, [group]);
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
