//! Runs the inputs of a corpus folder and records their coverage.

use std::io::{self};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use qcowfuzz::disk::error::Error;
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::disk::files;
use qcowfuzz::internal::fuzzing::feedback::attribution::Attributed;
use qcowfuzz::internal::fuzzing::feedback::attribution::WalkId;
use qcowfuzz::internal::fuzzing::feedback::coverage::Coverage;
use qcowfuzz::internal::fuzzing::feedback::coverage::CoverageFeatures;
use qcowfuzz::internal::fuzzing::feedback::layout::Counter;

use crate::cli::exit::CommandError;
use crate::cli::input;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

/// The inputs of a folder and their coverage.
pub struct Corpus {
    pub dir: String,
    pub target: TargetKind,
    /// Path and length in bytes.
    pub inputs: Vec<(PathBuf, usize)>,
    pub features: Vec<CoverageFeatures>,
    pub coverage: Coverage,
    pub violations: usize,
}

impl Corpus {
    pub fn read(dir: &Path, target: TargetKind) -> Result<Self, CommandError> {
        let paths = files::list(dir)?;
        let recorder = Rc::new(Recorder::new());
        let mut runner = Runner::new(target, FileNames::default(), &recorder);
        let (inputs, features, coverage) = Default::default();
        let dir = dir.display().to_string();
        let mut corpus = Self { dir, target, inputs, features, coverage, violations: 0 };
        for path in paths {
            // A campaign that runs in this folder may have removed the file.
            let Some(bytes) = read_if_there(&path)? else { continue };
            recorder.begin_run();
            let found = runner.run(&bytes, Checks::AtCheckpoints);
            corpus.coverage.add(bytes.len(), &recorder);
            corpus.features.push(CoverageFeatures::of(&recorder));
            corpus.inputs.push((path, bytes.len()));
            corpus.violations += usize::from(found.finding().is_some());
        }
        Ok(corpus)
    }

    /// Returns the first walk of `input` that takes `edge`, if one does.
    pub fn walk(&self, input: usize, edge: Counter) -> Result<Option<WalkId>, CommandError> {
        let Some((path, _)) = self.inputs.get(input) else { return Ok(None) };
        let attributed = Rc::new(Attributed::default());
        let mut runner = Runner::new(self.target, FileNames::default(), &attributed);
        runner.run(&input::read(path)?, Checks::AtCheckpoints);
        Ok(attributed.first_walk(edge))
    }

    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(|(_, length)| length).sum()
    }

    pub fn name(&self, input: usize) -> String {
        let path = self.inputs.get(input).map(|(path, _)| path.as_path());
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Reads an input. Returns `None` if the file does not exist any more.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, CommandError> {
    match files::read(path, u64::MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns a number of inputs with its noun, for example `1 input`.
pub fn counted(inputs: usize) -> String {
    format!("{inputs} input{}", if inputs == 1 { "" } else { "s" })
}
