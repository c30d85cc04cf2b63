//! Adds the inputs of several folders to one, and keeps every named seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Serialize;
use tempfile::TempDir;

use crate::base::error::Error;
use crate::base::files::{self, Existing};
use crate::findings::runner::Runner;
use crate::fuzzing::feedback::Recorder;
use crate::fuzzing::feedback::coverage::{CoverageFeatures, prune_around};
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;

use super::inputs::read_if_there;
use super::{is_find, is_torn};

/// The result of a merge.
#[derive(Debug, Serialize)]
pub struct Merged {
    /// The output folder.
    pub into: String,
    /// The folders whose inputs were added.
    pub from: Vec<String>,
    /// The number of inputs in the output folder before the merge.
    pub before: usize,
    /// The names of the seeds that were copied.
    pub seeds: Vec<String>,
    /// The names of the finds that were copied: hashes of their content.
    pub finds: Vec<String>,
    /// The total length of the copied inputs, in bytes.
    pub bytes: usize,
    /// The number of inputs that were not copied: the output folder has their content, or they are finds without new
    /// coverage.
    pub left_out: usize,
    /// Seeds whose copies are named by their content, because another input has their name.
    pub renamed: Vec<PathBuf>,
    /// Files whose content does not match the hash in their names: their writer was killed, or still writes.
    pub torn: Vec<PathBuf>,
    /// Inputs that show a violation. Finds among them were not copied.
    pub with_violation: Vec<PathBuf>,
}

/// Runs an input. Returns its features, and whether it shows a violation.
type Run<'a> = dyn FnMut(&[u8]) -> (CoverageFeatures, bool) + 'a;

/// An input that is in the output folder, or may be copied to it.
struct Candidate {
    path: PathBuf,
    /// Its name in the output folder.
    name: OsString,
    there: bool,
    pinned: bool,
}

/// The message if a copy cannot have its name: a folder has it, or another process wrote a file during the merge.
const NAME_TAKEN: &str = "another file or folder has this name, expected none";

/// The state while folders are read.
#[derive(Default)]
struct Gathered {
    candidates: Vec<Candidate>,
    /// The length in bytes and the features of each candidate.
    inputs: Vec<(usize, CoverageFeatures)>,
    /// The content hash of each file that the output folder has, or will certainly get, by name.
    names: BTreeMap<OsString, String>,
    contents: BTreeSet<String>,
    left_out: usize,
    renamed: Vec<PathBuf>,
    torn: Vec<PathBuf>,
    with_violation: Vec<PathBuf>,
}

impl Merged {
    /// Runs the inputs of the folders `dirs`, and adds to the folder `output` those that it lacks: all seeds, and the
    /// finds that add coverage. It removes and replaces no file, except a torn one.
    ///
    /// # Errors
    /// A folder or an input cannot be read, or `output` cannot be written.
    pub fn of(
        implementation: &Implementation,
        dirs: &[PathBuf],
        output: &Path,
        target: TargetKind,
    ) -> Result<Self, Error> {
        let recorder = Rc::new(Recorder::new());
        let mut runner =
            Runner::new(implementation, target, FileNames::default(), recorder.clone());
        Self::with(dirs, output, &mut |input| {
            recorder.begin_run();
            let found = runner.run(input, Checks::default()).finding().is_some();
            (CoverageFeatures::of(&recorder), found)
        })
    }

    fn with(dirs: &[PathBuf], output: &Path, run: &mut Run) -> Result<Self, Error> {
        std::fs::create_dir_all(output).map_err(|error| Error::file(output, error))?;
        let mut gathered = Gathered::default();
        gathered.read(output, true, run)?;
        let before = gathered.candidates.len();
        for dir in dirs {
            gathered.read(dir, false, run)?;
        }
        let Gathered { candidates, inputs, left_out, renamed, torn, with_violation, .. } = gathered;
        let shown = |path: &Path| path.display().to_string();
        let mut merged = Self {
            into: shown(output),
            from: dirs.iter().map(|dir| shown(dir)).collect(),
            before,
            seeds: Vec::new(),
            finds: Vec::new(),
            bytes: 0,
            left_out,
            renamed,
            torn,
            with_violation,
        };
        let kept = prune_around(&inputs, |at| candidates[at].pinned);
        merged.left_out += candidates.len() - kept.len();
        // Seeds first: a fuzzer can find the rest again if a kill ends the copying.
        let (finds, seeds): (Vec<_>, Vec<_>) = kept
            .iter()
            .map(|at| &candidates[*at])
            .filter(|candidate| !candidate.there)
            .partition(|candidate| is_find(Path::new(&candidate.name)));
        // The folder is hidden, so that no fuzzer reads unfinished files, and it is on the same file system.
        let scratch = TempDir::with_prefix_in(".qcowfuzz-", output);
        let scratch = scratch.map_err(|error| Error::file(output, error))?;
        for candidate in seeds.into_iter().chain(finds) {
            merged.copy(candidate, output, scratch.path())?;
        }
        Ok(merged)
    }

    fn copy(&mut self, from: &Candidate, output: &Path, scratch: &Path) -> Result<(), Error> {
        // A campaign that has found a shorter input may have removed the file since it was run.
        let Some(bytes) = read_if_there(&from.path)? else { return Ok(()) };
        let path = output.join(&from.name);
        let find = is_find(&path);
        // A torn file is replaced by the whole one.
        let torn = find && read_if_there(&path)?.is_some_and(|it| is_torn(&path, &it));
        let existing = Existing::forced(torn);
        match files::write_whole(&path, scratch, existing, |mut file| file.write_all(&bytes)) {
            // Another process has just written the same find.
            Err(error) if find && error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Output { path, what: NAME_TAKEN.to_string() });
            }
            written => written.map_err(|error| Error::file(&path, error))?,
        }
        self.bytes += bytes.len();
        let names = if find { &mut self.finds } else { &mut self.seeds };
        names.push(from.name.to_string_lossy().into_owned());
        Ok(())
    }

    /// Returns the number of inputs that show a violation.
    pub fn violations(&self) -> usize {
        self.with_violation.len()
    }
}

impl Gathered {
    /// Runs the inputs of a folder. `there` is true for the output folder.
    fn read(&mut self, dir: &Path, there: bool, run: &mut Run) -> Result<(), Error> {
        for path in files::list(dir)? {
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Some(bytes) = read_if_there(&path)? else { continue };
            let torn = is_torn(&path, &bytes);
            if torn {
                self.torn.push(path.clone());
            }
            // The content of a torn file does not match its name, but it may add coverage too.
            let there = there && !torn;
            let content = super::name(&bytes);
            let Some(name) = self.name_for(name, &content, &path, there) else { continue };
            let (features, found) = run(&bytes);
            let find = is_find(&path);
            if found {
                self.with_violation.push(path.clone());
            }
            if found && find && !there {
                continue;
            }
            self.inputs.push((bytes.len(), features));
            self.candidates.push(Candidate { path, name, there, pinned: there || !find });
        }
        Ok(())
    }

    /// Returns the name of an input in the output folder, or `None` if the folder has its content already.
    fn name_for(
        &mut self,
        name: &OsStr,
        content: &str,
        path: &Path,
        there: bool,
    ) -> Option<OsString> {
        let new = self.contents.insert(content.to_string());
        if there || !is_find(path) {
            match self.names.get(name) {
                None => {
                    self.names.insert(name.to_os_string(), content.to_string());
                    return Some(name.to_os_string());
                }
                Some(other) if other != content && new => self.renamed.push(path.to_path_buf()),
                Some(_) => {}
            }
        }
        self.left_out += usize::from(!new);
        new.then(|| content.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Observer, State};
    use crate::fuzzing::feedback::layout::events_of;
    use tempfile::tempdir;

    /// An input reaches a feature for each of its bytes. One that begins with `!` shows a violation.
    fn run(input: &[u8]) -> (CoverageFeatures, bool) {
        let recorder = Recorder::new();
        recorder.begin(State::Build);
        let events = events_of(State::Build);
        for byte in input {
            recorder.event(State::Build, events[usize::from(*byte) % events.len()]);
        }
        (CoverageFeatures::of(&recorder), input.first() == Some(&b'!'))
    }

    /// Merges the folders `one` and `two` of `dir` into its folder `all`.
    fn merge(dir: &Path) -> Result<Merged, Error> {
        Merged::with(&["one", "two"].map(|name| dir.join(name)), &dir.join("all"), &mut run)
    }

    fn folders(inputs: &[(&str, &str, &str)]) -> TempDir {
        let dir = tempdir().unwrap();
        for name in ["one", "two", "all"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for (folder, name, content) in inputs {
            std::fs::write(dir.path().join(folder).join(name), content).unwrap();
        }
        dir
    }

    fn names(dir: &Path) -> BTreeMap<String, String> {
        let entry = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            (name, std::fs::read_to_string(path).unwrap())
        };
        files::list(&dir.join("all")).unwrap().iter().map(entry).collect()
    }

    fn find(content: &str) -> String {
        crate::fuzzing::corpus::name(content.as_bytes())
    }

    #[test]
    fn finds_with_a_violation_are_reported_and_not_added() {
        let found = find("!a");
        let dir = folders(&[("one", &found, "!a"), ("two", "seed", "!b")]);
        let merged = merge(dir.path()).unwrap();
        assert_eq!(merged.violations(), 2);
        assert_eq!(names(dir.path()).keys().collect::<Vec<_>>(), ["seed"]);
    }
}
