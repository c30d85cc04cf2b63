//! Runs the inputs of a corpus folder and records their coverage. A subset of the inputs with the same coverage can be
//! copied.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Serialize;

use crate::base::error::Error;
use crate::base::files::{self, Existing};
use crate::findings::runner::Runner;
use crate::fuzzing::feedback::Recorder;
use crate::fuzzing::feedback::coverage::{Coverage, CoverageFeatures, prune};
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;

/// The inputs of a folder and their coverage.
#[derive(Debug)]
pub struct Corpus {
    /// The folder, as outputs name it.
    pub dir: String,
    /// The path and the length in bytes of each input.
    pub inputs: Vec<(PathBuf, usize)>,
    /// The features of each input.
    pub features: Vec<CoverageFeatures>,
    /// The coverage of all inputs together.
    pub coverage: Coverage,
    /// The number of inputs that show a violation.
    pub violations: usize,
}

impl Corpus {
    /// Runs each file of the folder `dir` as an input of `target`, with `implementation` under test.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub fn read(
        implementation: &Implementation,
        dir: &Path,
        target: TargetKind,
    ) -> Result<Self, Error> {
        let paths = files::list(dir)?;
        let recorder = Rc::new(Recorder::new());
        let mut runner =
            Runner::new(implementation, target, FileNames::default(), recorder.clone());
        let (inputs, features, coverage) = Default::default();
        let dir = dir.display().to_string();
        let mut corpus = Self { dir, inputs, features, coverage, violations: 0 };
        for path in paths {
            // A campaign that runs in this folder may have removed the file.
            let Some(bytes) = read_if_there(&path)? else { continue };
            recorder.begin_run();
            let found = runner.run(&bytes, Checks::default());
            corpus.coverage.add(bytes.len(), &recorder);
            corpus.features.push(CoverageFeatures::of(&recorder));
            corpus.inputs.push((path, bytes.len()));
            corpus.violations += usize::from(found.finding().is_some());
        }
        Ok(corpus)
    }

    /// Returns the total length of the inputs, in bytes.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(|(_, length)| length).sum()
    }

    /// Returns the name of an input's file.
    pub fn name(&self, input: usize) -> String {
        let path = self.inputs.get(input).map(|(path, _)| path.as_path());
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Copies a subset of the inputs that has the same coverage to the folder `output`.
    ///
    /// # Errors
    /// An input cannot be read, a copy cannot be written, or a file is to be kept.
    pub fn pruned_into(&self, output: &Path, existing: Existing) -> Result<Pruned, Error> {
        let lengths = self.inputs.iter().map(|(_, length)| *length);
        let inputs: Vec<_> = lengths.zip(self.features.iter().cloned()).collect();
        let kept = prune(&inputs);
        std::fs::create_dir_all(output).map_err(|error| Error::file(output, error))?;
        let mut kept_bytes = 0;
        for at in &kept {
            let bytes = files::read(&self.inputs[*at].0, u64::MAX)?;
            let path = output.join(self.name(*at));
            files::create(&path, existing, |mut file| io::Write::write_all(&mut file, &bytes))?;
            kept_bytes += bytes.len();
        }
        Ok(Pruned {
            corpus: self.dir.clone(),
            output: output.display().to_string(),
            inputs: self.inputs.len(),
            bytes: self.bytes(),
            kept: kept.iter().map(|at| self.name(*at)).collect(),
            kept_bytes,
        })
    }
}

/// The subset of a corpus that was copied.
#[derive(Debug, Serialize)]
pub struct Pruned {
    /// The folder of the corpus.
    pub corpus: String,
    /// The folder of the copies.
    pub output: String,
    /// The number of inputs in the corpus.
    pub inputs: usize,
    /// Their total length, in bytes.
    pub bytes: usize,
    /// The names of the copied inputs.
    pub kept: Vec<String>,
    /// Their total length, in bytes.
    pub kept_bytes: usize,
}

/// Reads an input. Returns `None` if the file does not exist any more.
pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match files::read(path, u64::MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::File(error)) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_has_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_if_there(&dir.path().join("gone")).unwrap(), None);
        assert!(read_if_there(dir.path()).is_err());
    }
}
