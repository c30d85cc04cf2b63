//! `state merge`: adds the inputs of several folders to one, and keeps every named seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Serialize;
use tempfile::TempDir;

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::disk::files;
use qcowfuzz::internal::disk::files::Existing;
use qcowfuzz::internal::fuzzing::feedback::coverage::CoverageFeatures;
use qcowfuzz::internal::fuzzing::feedback::coverage::prune_around;

use super::corpus::{counted, read_if_there};
use crate::cli::exit::{CommandError, THERE_ALREADY};
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

/// The result of a merge.
#[derive(Debug, Serialize)]
pub struct Merged {
    into: String,
    from: Vec<String>,
    /// The number of inputs in the output folder before the merge.
    before: usize,
    /// The names of the seeds that were copied.
    seeds: Vec<String>,
    /// The names of the finds that were copied: hashes of their content.
    finds: Vec<String>,
    /// The total length of the copied inputs, in bytes.
    bytes: usize,
    /// The number of inputs that the output folder had already, or that are finds without new coverage.
    left_out: usize,
    /// Seeds whose copies are named by their content, because another input has their name.
    renamed: Vec<PathBuf>,
    /// Files whose content does not match the hash in their names: their writer was killed, or is still writing.
    torn: Vec<PathBuf>,
    /// Inputs that show a violation. Finds among them were not copied.
    with_violation: Vec<PathBuf>,
}

/// An input that is in the output folder, or may be copied to it.
struct Candidate {
    path: PathBuf,
    /// Its name in the output folder.
    name: OsString,
    there: bool,
    pinned: bool,
}

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
    /// Adds to the folder `output` the inputs of `dirs` that it lacks.
    pub fn of(dirs: &[PathBuf], output: &Path, target: TargetKind) -> Result<Self, CommandError> {
        std::fs::create_dir_all(output).map_err(|error| CommandError::at(output, error))?;
        let mut gathered = Gathered::default();
        gathered.read(output, target, true)?;
        let before = gathered.candidates.len();
        for dir in dirs {
            gathered.read(dir, target, false)?;
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
            .partition(|candidate| corpus::is_find(Path::new(&candidate.name)));
        // The folder is hidden, so that no fuzzer reads unfinished files, and it is on the same file system.
        let scratch = TempDir::with_prefix_in(".qcowfuzz-", output);
        let scratch = scratch.map_err(|error| CommandError::at(output, error))?;
        for candidate in seeds.into_iter().chain(finds) {
            merged.copy(candidate, output, scratch.path())?;
        }
        Ok(merged)
    }

    fn copy(
        &mut self,
        from: &Candidate,
        output: &Path,
        scratch: &Path,
    ) -> Result<(), CommandError> {
        // A campaign that has found a shorter input may have removed the file since it was run.
        let Some(bytes) = read_if_there(&from.path)? else { return Ok(()) };
        let path = output.join(&from.name);
        let find = corpus::is_find(&path);
        // A torn file is replaced by the whole one.
        let torn = find && read_if_there(&path)?.is_some_and(|it| corpus::is_torn(&path, &it));
        let existing = Existing::forced(torn);
        match files::write_whole(&path, scratch, existing, |mut file| file.write_all(&bytes)) {
            // Another process has just written the same find.
            Err(error) if find && error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(CommandError::at(&path, THERE_ALREADY));
            }
            written => written.map_err(|error| CommandError::at(&path, error))?,
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

    /// Prints the result as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { into, before, seeds, finds, bytes, left_out, .. } = self;
        writeln!(out, "{into}: {} before", counted(*before))?;
        let (seeds, finds) = (seeds.len(), finds.len());
        writeln!(out, "added: {seeds} seeds by name, {finds} finds, {bytes} bytes")?;
        writeln!(
            out,
            "skipped: {}, which were there before or add no coverage",
            counted(*left_out)
        )?;
        for (what, paths) in [
            ("copied under the hash of its content, because its name is taken", &self.renamed),
            ("torn: the content does not match the hash in the name", &self.torn),
            ("shows a violation", &self.with_violation),
        ] {
            paths.iter().try_for_each(|path| writeln!(out, "{}: {what}", path.display()))?;
        }
        Ok(())
    }
}

impl Gathered {
    /// Runs the inputs of a folder. `there` is true for the output folder.
    fn read(&mut self, dir: &Path, target: TargetKind, there: bool) -> Result<(), CommandError> {
        let recorder = Rc::new(Recorder::new());
        let mut runner = Runner::new(target, FileNames::default(), &recorder);
        for path in files::list(dir)? {
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Some(bytes) = read_if_there(&path)? else { continue };
            let torn = corpus::is_torn(&path, &bytes);
            if torn {
                self.torn.push(path.clone());
            }
            // The content of a torn file does not match its name, but it may add coverage too.
            let there = there && !torn;
            let content = corpus::name(&bytes);
            let Some(name) = self.name_for(name, &content, &path, there) else { continue };
            recorder.begin_run();
            let found = runner.run(&bytes, Checks::AtCheckpoints).finding().is_some();
            let find = corpus::is_find(&path);
            if found {
                self.with_violation.push(path.clone());
            }
            if found && find && !there {
                continue;
            }
            self.inputs.push((bytes.len(), CoverageFeatures::of(&recorder)));
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
        if there || !corpus::is_find(path) {
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
