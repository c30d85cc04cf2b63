//! The settings of a campaign, with its folders and files, and the errors that end it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::base::files;
use crate::findings::isolation::{IsolatedRun, IsolatedRuns, Isolation, IsolationError, Repeat};
use crate::fuzzing::corpus::{self, Folder};
use crate::fuzzing::embedded::state::CampaignState;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, KnownFindings};
use crate::processes::{Executable, ProcessEnd, ProcessLimits};

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct CampaignPlan {
    /// The executable that workers run.
    pub executable: Executable,
    /// The name of the code that is run: see [`build_name`].
    pub build: String,
    /// The target.
    pub target: TargetKind,
    /// The known findings of the implementation. The executable knows them too.
    pub known: KnownFindings,
    /// The folders and files.
    pub places: Places,
    /// The number of jobs, which run at the same time.
    pub jobs: usize,
    /// The seed of the first job. The next ones count up from it.
    pub rng_seed: u64,
    /// The highest number of operations of a program.
    pub max_operations: usize,
    /// The number of runs of all jobs together.
    pub runs: Option<u64>,
    /// The time at which the campaign ends.
    pub end: Option<Instant>,
    /// The campaign runs generated programs, and no mutations of the corpus.
    pub generated: bool,
    /// The campaign is an exhaustive search through programs of up to this number of requests, instead of the loop.
    pub exhaustive: Option<usize>,
    /// The times at which the images of a program are verified.
    pub checks: Checks,
    /// The campaign ends with the first finding.
    pub until_found: bool,
    /// The limits of each worker.
    pub limits: ProcessLimits,
}

/// Returns a name for the code that an executable runs: the checksum of its bytes and of `settings`. These are a text
/// that changes with the implementation behind a command and with the known findings. If the name changes, saved inputs
/// may have other coverage.
///
/// # Errors
/// The executable cannot be read.
pub fn build_name(executable: &Executable, settings: &str) -> Result<String, CampaignError> {
    let mut bytes = std::fs::read(executable.path()).map_err(CampaignError::Executable)?;
    bytes.extend(settings.as_bytes());
    Ok(corpus::name(&bytes))
}

impl CampaignPlan {
    /// Runs `input` in a process that runs nothing else.
    pub(super) fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let (executable, target) = (self.executable.clone(), self.target);
        let isolation = Isolation { executable, target, limits: self.limits };
        IsolatedRuns::new(isolation, Repeat::Once).run(input)
    }

    /// Returns the time that is left, if the campaign has an end.
    pub(super) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

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
    /// An exhaustive search has a state of its own.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn new(
        dir: PathBuf,
        shared: Option<PathBuf>,
        target: TargetKind,
        is_exhaustive: bool,
    ) -> Result<Self, Error> {
        let of_target = dir.join("state").join(target.name());
        let state = if is_exhaustive { of_target.join("exhaustive") } else { of_target };
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

/// Why a campaign could not go on.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] Error),
    /// Another campaign uses the same folder.
    #[error("{dir}: another campaign is running here, expected another folder", dir = dir.display())]
    Busy {
        /// The folder.
        dir: PathBuf,
    },
    /// The campaign was begun with another seed.
    #[error("{path}: the campaign has seed {saved}, expected that, or a new campaign", path = path.display())]
    Seed {
        /// The saved state.
        path: PathBuf,
        /// The seed that it has.
        saved: u64,
    },
    /// The executable could not be read.
    #[error("the running executable: {0}")]
    Executable(io::Error),
    /// A worker could not be started, or not be waited for.
    #[error("a worker: {0}")]
    Worker(io::Error),
    /// The input of a worker that ended could not be run again.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// The system killed the workers of a job again and again. It does so when memory runs out.
    #[error(
        "job {job}: the system killed {times} workers one after the other, expected more free memory, \
         fewer --jobs or a lower --memory-limit"
    )]
    Killed {
        /// The job.
        job: usize,
        /// The number of workers.
        times: u32,
    },
    /// Workers of a job ended again and again, and no input was the reason.
    #[error("job {job}: {times} workers ended one after the other outside of a run: {end}")]
    Lost {
        /// The job.
        job: usize,
        /// The number of workers.
        times: u32,
        /// The end of the last.
        end: ProcessEnd,
    },
}
