//! The folders and files of a campaign.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::base::files;
use crate::fuzzing::corpus::Folder;
use crate::fuzzing::embedded::state::CampaignState;

use crate::base::error::Error;
use crate::harness::targets::TargetKind;

use super::error::CampaignError;

/// Returns the file with the saved state of a job, in the folder of a campaign's state.
fn state_of_job(folder: &Path, job: usize) -> PathBuf {
    folder.join(format!("job-{job}.json"))
}

/// The folders and files of a target's campaign.
#[derive(Clone, Debug)]
pub struct Places {
    dir: PathBuf,
    /// The folder of the inputs, if it is not under `dir`.
    shared: Option<PathBuf>,
    state: PathBuf,
    scratch: PathBuf,
    target: TargetKind,
}

impl Places {
    /// Returns the places of `target` under `dir`, and creates the folders. If `shared` is given, the inputs are there.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn new(dir: PathBuf, shared: Option<PathBuf>, target: TargetKind) -> Result<Self, Error> {
        let state = dir.join("state").join(target.name());
        let scratch = state.join("scratch");
        std::fs::create_dir_all(&scratch).map_err(|error| Error::file(&scratch, error))?;
        Ok(Self { dir, shared, state, scratch, target })
    }

    fn folder(&self, what: &str) -> Result<Folder, Error> {
        Folder::new(self.dir.join(what).join(self.target.name()), self.scratch.clone())
    }

    /// Returns the folder that contains all others, except a shared one.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the folder of inputs that campaigns share, if there is one.
    pub fn shared(&self) -> Option<&Path> {
        self.shared.as_deref()
    }

    /// Returns the folder of the inputs that are worth keeping.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn corpus(&self) -> Result<Folder, Error> {
        match &self.shared {
            // The scratch folder is on the same file system, and hidden so that no fuzzer reads half-written inputs.
            Some(shared) => Folder::new(shared.clone(), shared.join(".scratch")),
            None => self.folder("corpus"),
        }
    }

    /// Returns the folder of the inputs that show a bug.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn artifacts(&self) -> Result<Folder, Error> {
        self.folder("artifacts")
    }

    /// Returns the folder of the inputs that ended a worker of this campaign.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn killers(&self) -> Result<Folder, Error> {
        Folder::new(self.state.join("killers"), self.scratch.clone())
    }

    /// Returns the folder in which files are written before they are renamed.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Returns the file with the saved state of a job.
    pub fn state(&self, job: usize) -> PathBuf {
        state_of_job(&self.state, job)
    }

    /// Reads the saved states of the jobs of a campaign of `target` under `dir`. Creates nothing.
    ///
    /// # Errors
    /// There is no state, or it cannot be read.
    pub fn saved_states(dir: &Path, target: TargetKind) -> Result<Vec<CampaignState>, Error> {
        let folder = dir.join("state").join(target.name());
        let first = [CampaignState::read(&state_of_job(&folder, 0))?];
        let more = (1..).map(|job| state_of_job(&folder, job)).take_while(|path| path.exists());
        first.map(Ok).into_iter().chain(more.map(|path| CampaignState::read(&path))).collect()
    }

    /// Returns the file with the input that a job runs.
    pub fn slot(&self, job: usize) -> PathBuf {
        self.state.join(format!("job-{job}.input"))
    }

    /// Locks the folder: no second campaign can run here while the returned file is open. Waits for the workers of a
    /// campaign that was killed, because they are about to end.
    ///
    /// # Errors
    /// Another campaign is running here, or a file cannot be locked.
    pub fn lock(&self) -> Result<File, CampaignError> {
        let path = self.state.join("lock");
        let file = File::create(&path).map_err(|error| Error::file(&path, error))?;
        match file.try_lock() {
            Ok(()) => {
                for path in self.files_of_jobs("input")? {
                    let slot = File::open(&path).and_then(|slot| slot.lock());
                    slot.map_err(|error| Error::file(path, error))?;
                }
                Ok(file)
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                Err(CampaignError::Busy { dir: self.state.clone() })
            }
            Err(std::fs::TryLockError::Error(error)) => Err(Error::file(path, error).into()),
        }
    }

    fn files_of_jobs(&self, extension: &str) -> Result<Vec<PathBuf>, Error> {
        let mut found = files::list(&self.state)?;
        found.retain(|path| path.extension().is_some_and(|it| it == extension));
        Ok(found)
    }

    /// Removes half-written files that a killed campaign left, and the inputs that ended its workers. With `restart`,
    /// removes the saved state too.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn clean(&self, restart: bool) -> Result<(), Error> {
        let remove = |path: &Path| std::fs::remove_file(path);
        let folders = [self.scratch.clone(), self.killers()?.dir().to_path_buf()];
        for path in
            folders.iter().map(|dir| files::list(dir)).collect::<Result<Vec<_>, _>>()?.concat()
        {
            remove(&path).map_err(|error| Error::file(path, error))?;
        }
        if restart {
            for path in self.files_of_jobs("json")? {
                remove(&path).map_err(|error| Error::file(path, error))?;
            }
        }
        Ok(())
    }

    /// Returns the seed of the campaign: the saved one, else `asked`, else 1.
    ///
    /// # Errors
    /// The saved seed is another one than `asked`, or cannot be read.
    pub fn rng_seed(&self, asked: Option<u64>) -> Result<u64, CampaignError> {
        let path = self.state(0);
        if !path.exists() {
            return Ok(asked.unwrap_or(1));
        }
        let saved = CampaignState::read(&path)?.rng_seed();
        match asked {
            Some(asked) if asked != saved => Err(CampaignError::Seed { path, saved }),
            _ => Ok(saved),
        }
    }
}
