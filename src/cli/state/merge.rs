//! `state merge`: one folder from several, without losing a seed that somebody named.

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
use qcowfuzz::internal::fuzzing::feedback::coverage::Features;
use qcowfuzz::internal::fuzzing::feedback::coverage::prune_around;

use super::corpus::{counted, read_if_there};
use crate::cli::exit::{Failure, THERE_ALREADY};
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

/// What was merged.
#[derive(Debug, Serialize)]
pub struct Merged {
    into: String,
    from: Vec<String>,
    /// How many inputs were there.
    before: usize,
    /// Seeds that were copied, under their names.
    seeds: Vec<String>,
    /// Inputs that were copied, called after their content.
    finds: Vec<String>,
    /// Bytes of both.
    bytes: usize,
    /// How many inputs were there already, or are finds that cover nothing more.
    left_out: usize,
    /// Seeds that are called after their content now: their name is that of another one.
    renamed: Vec<PathBuf>,
    /// Files that are called after other content than they have: whoever wrote them was killed, or is writing.
    torn: Vec<PathBuf>,
    /// Inputs in which something was found. Finds among them were not copied.
    with_violation: Vec<PathBuf>,
}

/// An input that the folder has or may get.
struct Candidate {
    path: PathBuf,
    /// What it is called there.
    name: OsString,
    there: bool,
    pinned: bool,
}

/// What is known while folders are read.
#[derive(Default)]
struct Gathered {
    candidates: Vec<Candidate>,
    /// Length and features of each candidate.
    inputs: Vec<(usize, Features)>,
    /// Of the folder that is added to: the content of each file that is there, or will be in any case.
    names: BTreeMap<OsString, String>,
    contents: BTreeSet<String>,
    left_out: usize,
    renamed: Vec<PathBuf>,
    torn: Vec<PathBuf>,
    with_violation: Vec<PathBuf>,
}

impl Merged {
    /// Adds to the folder `output` what it lacks of `dirs`.
    pub fn of(dirs: &[PathBuf], output: &Path, target: TargetKind) -> Result<Self, Failure> {
        std::fs::create_dir_all(output).map_err(|error| Failure::at(output, error))?;
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
        // Seeds first: whatever else is lost by a kill can be found again.
        let (finds, seeds): (Vec<_>, Vec<_>) = kept
            .iter()
            .map(|at| &candidates[*at])
            .filter(|candidate| !candidate.there)
            .partition(|candidate| corpus::is_find(Path::new(&candidate.name)));
        // Hidden, so that no fuzzer reads what is there in part; and of the same file system.
        let scratch = TempDir::with_prefix_in(".qcowfuzz-", output);
        let scratch = scratch.map_err(|error| Failure::at(output, error))?;
        for candidate in seeds.into_iter().chain(finds) {
            merged.copy(candidate, output, scratch.path())?;
        }
        Ok(merged)
    }

    fn copy(&mut self, from: &Candidate, output: &Path, scratch: &Path) -> Result<(), Failure> {
        // Taken away since it was run: by a campaign that has a shorter one now.
        let Some(bytes) = read_if_there(&from.path)? else { return Ok(()) };
        let path = output.join(&from.name);
        let find = corpus::is_find(&path);
        // What is there in part is made whole.
        let torn = find && read_if_there(&path)?.is_some_and(|it| corpus::is_torn(&path, &it));
        let existing = Existing::forced(torn);
        match files::write_whole(&path, scratch, existing, |mut file| file.write_all(&bytes)) {
            // Somebody else has found it in this moment.
            Err(error) if find && error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::at(&path, THERE_ALREADY));
            }
            written => written.map_err(|error| Failure::at(&path, error))?,
        }
        self.bytes += bytes.len();
        let names = if find { &mut self.finds } else { &mut self.seeds };
        names.push(from.name.to_string_lossy().into_owned());
        Ok(())
    }

    /// In how many inputs something was found.
    pub fn violations(&self) -> usize {
        self.with_violation.len()
    }

    /// For people.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { into, before, seeds, finds, bytes, left_out, .. } = self;
        writeln!(out, "{into}: {} before", counted(*before))?;
        let (seeds, finds) = (seeds.len(), finds.len());
        writeln!(out, "added: {seeds} seeds by name, {finds} finds, {bytes} bytes")?;
        writeln!(
            out,
            "left out: {}, which were there already or cover nothing more",
            counted(*left_out)
        )?;
        for (what, paths) in [
            ("called after its content, because its name is taken", &self.renamed),
            ("torn: called after other content than it has", &self.torn),
            ("a violation is found in it", &self.with_violation),
        ] {
            paths.iter().try_for_each(|path| writeln!(out, "{}: {what}", path.display()))?;
        }
        Ok(())
    }
}

impl Gathered {
    /// Runs the inputs of a folder. `there` is true of the one that is added to.
    fn read(&mut self, dir: &Path, target: TargetKind, there: bool) -> Result<(), Failure> {
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
            // What is torn is not the input that its name promises, but it may cover something too.
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
            self.inputs.push((bytes.len(), Features::of(&recorder)));
            self.candidates.push(Candidate { path, name, there, pinned: there || !find });
        }
        Ok(())
    }

    /// What an input is to be called, if it is one more.
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
