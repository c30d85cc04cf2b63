//! Makes a program or a file that shows a bug as small and as simple as it can be, so that a person can read it.
//!
//! Each reducer proposes simpler programs. A proposal that still shows the bug replaces the current program. The
//! caller's function decides whether it does, because the caller knows the fingerprint. Reducers run in turn until none
//! of them makes progress. The loop ends, because each step makes the program simpler by one [measure], which cannot
//! fall for ever. Rounds and tries have limits too.
//!
//! A program with fewer operations is simpler. Among programs with equally many operations, the one with plainer
//! operations, operands and geometry is simpler ([measure]). A file with fewer bytes that are not 0 is simpler, then a
//! shorter one.
//!
//! [measure]: Measure

mod file;
#[cfg(feature = "fuzzer")]
pub mod judges;
mod measure;
mod reducers;
mod search;

use std::ops::ControlFlow;

use crate::harness::cases::target::Inputs;

use search::{Search, settle};

pub use measure::Measure;
pub use search::{MinimizeProgress, MinimizeSettings, Minimized};

#[cfg(test)]
mod tests;

/// Minimizes `input`, which shows a bug. `judge` reports whether a candidate shows the same bug; candidates that are
/// programs are canonical. Before each candidate, the minimizer passes its progress to `watch`, which may end the
/// minimization: the result is the simplest input so far.
///
/// # Errors
/// The first error of `judge`, which ends the minimization.
pub fn minimize<E>(
    input: &[u8],
    settings: MinimizeSettings,
    judge: &mut dyn FnMut(&[u8]) -> Result<bool, E>,
    watch: &mut dyn FnMut(&MinimizeProgress) -> ControlFlow<()>,
) -> Result<Minimized, E> {
    let mut failure = None;
    let mut shows = |candidate: &[u8]| match judge(candidate) {
        Ok(shows) => ControlFlow::Continue(shows),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    };
    let minimized = match settings.inputs {
        Inputs::Programs => search(Search::new(input, settings, &mut shows, watch)),
        Inputs::Files | Inputs::Recipes => file::search(input, settings.tries, &mut shows, watch),
    };
    match failure {
        Some(error) => Err(error),
        None => Ok(minimized),
    }
}

/// Runs all reducers: those that remove most come first.
fn search(mut search: Search) -> Minimized {
    search.canonical();
    let settled = settle(
        &mut search,
        &[
            ("ranges", reducers::ranges),
            ("layers", reducers::layers),
            ("resizes", reducers::resizes),
            ("checkpoints", reducers::checkpoints),
            ("operations", reducers::operations),
            ("kinds", reducers::kinds),
            ("patches", reducers::patches),
            ("positions", reducers::positions),
            ("operands", reducers::operands),
            ("geometry", reducers::geometry),
        ],
    );
    search.trials.finish(search.input, settled)
}
