//! The errors of a campaign.

use std::io;
use std::path::PathBuf;

use crate::base::error::Error;
use crate::findings::isolation::IsolationError;
use crate::processes::ProcessEnd;

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
