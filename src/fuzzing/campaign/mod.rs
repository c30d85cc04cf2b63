//! A campaign: the embedded loop in several worker processes at a time, so that no crash ends it.
//!
//! The supervisor ([`Campaign`]) starts a worker for each job, reads its messages, ends runs that hang, and starts the
//! next worker where one ended. A worker is an executable that the caller names. It is run as `EXECUTABLE fuzz-worker
//! OPTIONS...`, as the command `qcowfuzz` understands it, and calls [`worker::run`]. A worker writes each input to a
//! file before it runs it (`slot`), so the supervisor knows the input that ended it. Everything that a campaign keeps
//! is in its [`Places`].

mod error;
mod job;
pub mod places;
mod plan;
pub(crate) mod slot;
pub(crate) mod subject;
mod summary;
mod supervisor;
pub mod worker;

pub use error::CampaignError;
pub use places::Places;
pub use plan::{CampaignPlan, build_name};
pub use summary::{CampaignSummary, FoundBug, KnownBug, SeenFingerprint, UnansweredQuestion};
pub use supervisor::{Campaign, Finished, Status};

#[cfg(test)]
mod tests;
