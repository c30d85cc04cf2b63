//! What all inputs came to, bug by bug.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use qcowfuzz::findings::panics::is_recorded;
use qcowfuzz::findings::regression::Regression;
use qcowfuzz::fuzzing::corpus;

use crate::cli::exit::Failure;
use crate::cli::once::Ran;
use qcowfuzz::harness::targets::TargetKind;

/// The fingerprints of the known bugs, and the file of each.
pub type Known = BTreeMap<String, PathBuf>;

/// Reads the known bugs from a folder.
pub fn known(dir: &Path) -> Result<Known, Failure> {
    let mut known = Known::new();
    for path in corpus::files(dir)? {
        if path.extension().is_some_and(|extension| extension == "txt") {
            let bytes = corpus::read(&path, u64::MAX)?;
            let text = String::from_utf8_lossy(&bytes);
            let regression = Regression::parse(&text).map_err(|error| Failure::at(&path, error))?;
            known.insert(regression.fingerprint, path);
        }
    }
    Ok(known)
}

/// What all inputs came to.
#[derive(Debug, Serialize)]
pub struct Groups {
    /// The folder.
    pub dir: String,
    /// The fuzz target.
    pub target: &'static str,
    /// How many inputs were run.
    pub inputs: usize,
    /// What was found: new bugs first, then those with the smallest inputs.
    pub bugs: Vec<Bug>,
    /// The inputs in which nothing is found any more.
    pub nothing: Vec<Input>,
    /// Why others could not be run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    #[serde(skip)]
    known_bugs: Known,
}

/// A bug.
#[derive(Debug, Serialize)]
pub struct Bug {
    /// The one line that is the same for the same bug.
    pub fingerprint: String,
    /// The file that knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The inputs that show it, from the smallest on.
    pub inputs: Vec<Input>,
}

/// An input.
#[derive(Debug, Serialize)]
pub struct Input {
    /// The file.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
}

impl Groups {
    /// Of no inputs yet.
    pub fn new(dir: &Path, target: TargetKind, known_bugs: Known) -> Self {
        Self {
            dir: dir.display().to_string(),
            target: target.name(),
            inputs: 0,
            bugs: Vec::new(),
            nothing: Vec::new(),
            failures: Vec::new(),
            known_bugs,
        }
    }

    /// Adds an input.
    pub fn add(&mut self, path: PathBuf, ran: Ran) {
        self.inputs += 1;
        let input = Input { path: path.display().to_string(), bytes: ran.bytes };
        let Some(fingerprint) = ran.fingerprint else {
            self.nothing.push(input);
            return;
        };
        if let Some(bug) = self.bugs.iter_mut().find(|bug| bug.fingerprint == fingerprint) {
            bug.inputs.push(input);
            return;
        }
        let mut known = self.known_bugs.iter();
        let known = known.find(|(recorded, _)| is_recorded(recorded, &fingerprint));
        let known = known.map(|(_, path)| path.display().to_string());
        self.bugs.push(Bug { fingerprint, known, inputs: vec![input] });
    }

    /// An input could not be run.
    pub fn not_run(&mut self, why: String) {
        self.failures.push(why);
    }

    /// In the order in which a person wants to read it.
    pub fn sorted(mut self) -> Self {
        let by_size = |inputs: &mut Vec<Input>| {
            inputs.sort_by(|one, other| (one.bytes, &one.path).cmp(&(other.bytes, &other.path)));
        };
        self.bugs.iter_mut().for_each(|bug| by_size(&mut bug.inputs));
        by_size(&mut self.nothing);
        self.bugs.sort_by_key(|bug| {
            let smallest = bug.inputs.first().map_or(0, |input| input.bytes);
            (bug.known.is_some(), smallest, bug.fingerprint.clone())
        });
        self
    }

    /// How many bugs nobody knows.
    pub fn new_bugs(&self) -> usize {
        self.bugs.iter().filter(|bug| bug.known.is_none()).count()
    }
}
