//! Makes a program that shows a bug as small and as simple as it can be, so that a person can read it.
//!
//! Each reducer proposes simpler programs; one that still shows the bug takes the place of the one before. Whether
//! it does is not decided here: a function judges, which knows the fingerprint that was found. Reducers run in
//! turn until none of them gets any further. That ends: each step makes the program simpler by one [measure], which
//! cannot fall for ever; and rounds and tries are bounded all the same.
//!
//! Simpler is first of all fewer operations, then plainer operations, operands and geometry ([measure]).
//!
//! [measure]: Measure

mod checkpoints;
mod geometry;
mod kinds;
mod layers;
mod measure;
mod numbers;
mod operands;
mod operations;
mod patches;
mod positions;
mod ranges;
mod resizes;
mod search;

use std::ops::ControlFlow;

use crate::disk::limits::MAX_MINIMIZE_ROUNDS;

pub use measure::Measure;
use search::Search;
pub use search::{MinimizeProgress, MinimizeSettings, Minimized};

#[cfg(test)]
mod tests;

/// A way to make programs simpler.
pub(crate) struct Reducer {
    /// Its name.
    pub name: &'static str,
    /// Proposes simpler programs, as many as there are.
    reduce: fn(&mut Search),
}

/// All of them, in the order in which they run: what takes most away comes first.
pub(crate) const REDUCERS: &[Reducer] = &[
    Reducer { name: "ranges", reduce: ranges::reduce },
    Reducer { name: "layers", reduce: layers::reduce },
    Reducer { name: "resizes", reduce: resizes::reduce },
    Reducer { name: "checkpoints", reduce: checkpoints::reduce },
    Reducer { name: "operations", reduce: operations::reduce },
    Reducer { name: "kinds", reduce: kinds::reduce },
    Reducer { name: "patches", reduce: patches::reduce },
    Reducer { name: "positions", reduce: positions::reduce },
    Reducer { name: "operands", reduce: operands::reduce },
    Reducer { name: "geometry", reduce: geometry::reduce },
];

/// Minimizes `input`, a program that shows a bug. `judge` reports whether a candidate shows the same bug; candidates
/// are canonical. Before each candidate, the minimizer passes its progress to `watch`, which may end the minimization:
/// the result is the simplest program so far.
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
    let minimized = search(Search::new(input, settings, &mut shows, watch));
    match failure {
        Some(error) => Err(error),
        None => Ok(minimized),
    }
}

/// Runs all reducers until none of them gets any further.
fn search(mut search: Search) -> Minimized {
    search.canonical();
    let mut settled = false;
    for _ in 0..MAX_MINIMIZE_ROUNDS {
        let before = search.kept();
        for reducer in REDUCERS {
            search.begin(reducer.name);
            (reducer.reduce)(&mut search);
        }
        settled = search.kept() == before;
        if settled || search.ended() {
            break;
        }
    }
    search.finish(settled)
}
