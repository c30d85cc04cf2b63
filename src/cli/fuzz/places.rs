//! Where a campaign has its files.

use std::fs::File;
use std::path::{Path, PathBuf};

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::state::State;

use crate::cli::exit::Failure;
use qcowfuzz::harness::targets::TargetKind;

/// The folders and files of a target's campaign.
#[derive(Clone, Debug)]
pub struct Places {
    dir: PathBuf,
    /// Where the inputs are, if not under `dir`.
    shared: Option<PathBuf>,
    state: PathBuf,
    scratch: PathBuf,
    target: TargetKind,
}

impl Places {
    /// Those of `target` under `dir`, which are made where they are not there; the inputs are in `shared`, if that is
    /// a folder.
    pub fn new(dir: PathBuf, shared: Option<PathBuf>, target: TargetKind) -> Result<Self, Failure> {
        let state = dir.join("state").join(target.name());
        let scratch = state.join("scratch");
        std::fs::create_dir_all(&scratch).map_err(|error| Failure::at(&scratch, error))?;
        Ok(Self { dir, shared, state, scratch, target })
    }

    fn folder(&self, what: &str) -> Result<Folder, Failure> {
        Ok(Folder::new(self.dir.join(what).join(self.target.name()), self.scratch.clone())?)
    }

    /// Under which everything is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder that campaigns share, if there is one.
    pub fn shared(&self) -> Option<&Path> {
        self.shared.as_deref()
    }

    /// The inputs that are worth keeping.
    pub fn corpus(&self) -> Result<Folder, Failure> {
        match &self.shared {
            // Of the same file system, and hidden: no fuzzer reads what is there in part.
            Some(shared) => Ok(Folder::new(shared.clone(), shared.join(".scratch"))?),
            None => self.folder("corpus"),
        }
    }

    /// The inputs that found something.
    pub fn artifacts(&self) -> Result<Folder, Failure> {
        self.folder("artifacts")
    }

    /// The inputs that ended a worker of this campaign.
    pub fn killers(&self) -> Result<Folder, Failure> {
        Ok(Folder::new(self.state.join("killers"), self.scratch.clone())?)
    }

    /// Where files are written before they are renamed.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// What a job has saved.
    pub fn state(&self, job: usize) -> PathBuf {
        self.state.join(format!("job-{job}.json"))
    }

    /// What a job runs.
    pub fn slot(&self, job: usize) -> PathBuf {
        self.state.join(format!("job-{job}.input"))
    }

    /// Keeps a second campaign out for as long as the file is open. Waits for workers that a killed one has
    /// left: they are about to end.
    pub fn lock(&self) -> Result<File, Failure> {
        let path = self.state.join("lock");
        let file = File::create(&path).map_err(|error| Failure::at(&path, error))?;
        match file.try_lock() {
            Ok(()) => {
                for path in self.files_of_jobs("input")? {
                    let slot = File::open(&path).and_then(|slot| slot.lock());
                    slot.map_err(|error| Failure::at(&path, error))?;
                }
                Ok(file)
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let what = "another campaign is running here, expected another --dir";
                Err(Failure::at(&self.state, what))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(Failure::at(&path, error)),
        }
    }

    fn files_of_jobs(&self, extension: &str) -> Result<Vec<PathBuf>, Failure> {
        let mut files = corpus::files(&self.state)?;
        files.retain(|path| path.extension().is_some_and(|it| it == extension));
        Ok(files)
    }

    /// Removes what a killed campaign left half written, and what it could not run; of a campaign that begins
    /// anew, also what was saved.
    pub fn clean(&self, restart: bool) -> Result<(), Failure> {
        let remove = |path: &Path| std::fs::remove_file(path);
        let folders = [self.scratch.clone(), self.killers()?.dir().to_path_buf()];
        for path in
            folders.iter().map(|dir| corpus::files(dir)).collect::<Result<Vec<_>, _>>()?.concat()
        {
            remove(&path).map_err(|error| Failure::at(&path, error))?;
        }
        if restart {
            for path in self.files_of_jobs("json")? {
                remove(&path).map_err(|error| Failure::at(&path, error))?;
            }
        }
        Ok(())
    }

    /// The seed of the campaign: that of the one before, or the one that is asked for, or 1.
    pub fn rng_seed(&self, asked: Option<u64>) -> Result<u64, Failure> {
        let path = self.state(0);
        if !path.exists() {
            return Ok(asked.unwrap_or(1));
        }
        let saved = State::read(&path)?.rng_seed();
        match asked {
            Some(asked) if asked != saved => Err(Failure::at(
                &path,
                format_args!(
                    "the campaign has seed {saved}, expected that as --rng-seed, or --restart"
                ),
            )),
            _ => Ok(saved),
        }
    }
}
