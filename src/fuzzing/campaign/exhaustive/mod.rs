//! An exhaustive search: runs all programs of up to a few requests to a small disk, each with every file operation
//! failing once, with every power cut that leaves other files, and with every order of two requests in flight. A
//! candidate is run once to learn what could have happened in it (`harness::cases::explored`), and then again with each
//! of these possibilities.

mod orders;
mod programs;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::base::files;
use crate::fuzzing::corpus::Folder;
use crate::fuzzing::embedded::{RunReply, SavedFindings, Subject};
use crate::harness::cases::explored::Explored;
use crate::harness::engine::claims::Claims;
use crate::programs::Program;
use crate::programs::operand::{FileOperation, TurnOrder};

use super::subject::Supervised;
use programs::{Programs, Sequence, with_cut};

/// The programs and runs that an exhaustive search has judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The number of programs.
    pub programs: u64,
    /// The number of all programs.
    pub of: u64,
    /// The number of runs in which a file operation failed.
    pub faults: u64,
    /// The number of runs with a power cut.
    pub cuts: u64,
    /// The number of runs with two requests in flight.
    pub orders: u64,
    /// The number of programs that have more cuts than 256, or some that no choice selects.
    pub more_cuts: u64,
    /// The number of programs whose requests in flight have more orders than 16 choices select.
    pub more_orders: u64,
    /// The number of programs with more than 256 file operations of one kind.
    pub more_faults: u64,
}

impl Judged {
    /// Adds what another job has judged.
    pub fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.of += other.of;
        self.faults += other.faults;
        self.cuts += other.cuts;
        self.orders += other.orders;
        self.more_cuts += other.more_cuts;
        self.more_orders += other.more_orders;
        self.more_faults += other.more_faults;
    }
}

/// The part of a search that a job does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchShare {
    /// The most requests of a program.
    pub requests: usize,
    /// The number of the job, from 0.
    pub job: usize,
    /// The number of jobs.
    pub jobs: usize,
    /// The name of the code that is run.
    pub build: String,
}

/// The saved state of a job.
#[derive(Debug, Serialize, Deserialize)]
struct SearchState {
    share: SearchShare,
    runs: u64,
    judged: Judged,
    found: SavedFindings,
}

/// The number of runs after which the state is saved, when a program is done. An engine may make few runs a second.
const SAVE_RUNS: u64 = 200;

/// A search.
pub struct ExhaustiveSearch {
    subject: Supervised,
    artifacts: Folder,
    programs: Programs,
    state: SearchState,
    /// The number of runs when the state was saved last.
    saved_runs: u64,
}

impl ExhaustiveSearch {
    /// Begins a search, or goes on with the one whose state is at `path`, unless that is another one or has ended. The
    /// share of a job is each program whose number leaves the number of the job, divided by the number of jobs.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn open(
        subject: Supervised,
        artifacts: Folder,
        claims: &Claims,
        (share, path): (SearchShare, &Path),
    ) -> Result<Self, Error> {
        let mut programs = Programs::new(share.requests, claims)?;
        let nth = (0..).zip(std::mem::take(&mut programs.all));
        let mine = nth.filter(|(nth, _)| nth % share.jobs.max(1) == share.job);
        programs.all = mine.map(|(_, candidate)| candidate).collect();
        let of = programs.all.len() as u64;
        let saved = match path.exists() {
            true => serde_json::from_slice::<SearchState>(&files::read(path, u64::MAX)?).ok(),
            false => None,
        };
        let goes_on = |it: &SearchState| it.share == share && it.judged.programs < it.judged.of;
        let state = saved.filter(goes_on).unwrap_or(SearchState {
            share,
            runs: 0,
            judged: Judged { of, ..Judged::default() },
            found: SavedFindings::default(),
        });
        let saved_runs = state.runs;
        Ok(Self { subject, artifacts, programs, state, saved_runs })
    }

    /// Runs all programs that are left. Calls `report` after each run, which ends the search by an error.
    ///
    /// # Errors
    /// The search is over before its end, or a file cannot be written.
    pub fn run<E: From<Error>>(
        &mut self,
        (path, scratch): (&Path, &Path),
        report: &mut dyn FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let done = self.state.judged.programs as usize;
        let left: Vec<_> = self.programs.all.iter().skip(done).cloned().collect();
        for candidate in left {
            self.judge(&candidate, report)?;
            self.state.judged.programs += 1;
            let is_last = self.state.judged.programs == self.state.judged.of;
            if is_last || self.state.runs >= self.saved_runs + SAVE_RUNS {
                self.save(path, scratch)?;
            }
        }
        Ok(())
    }

    fn save(&mut self, path: &Path, scratch: &Path) -> Result<(), Error> {
        self.saved_runs = self.state.runs;
        let bytes =
            serde_json::to_vec(&self.state).map_err(|error| Error::file(path, error.into()))?;
        files::replace(path, scratch, &bytes)
    }

    /// Runs a program with everything that can happen in it.
    fn judge<E: From<Error>>(
        &mut self,
        candidate: &Sequence,
        report: &mut dyn FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if candidate.flies {
            return self.judge_orders(candidate, report);
        }
        let program = self.programs.program(candidate, TurnOrder::default());
        self.judge_one(&with_cut(program.clone(), 0), self.programs.has_cuts)?;
        let explored = self.subject.explored().cloned().unwrap_or_default();
        self.state.judged.cuts += u64::from(self.programs.has_cuts);
        report(self)?;
        let Explored { mut operations, cuts, closing, .. } = explored;
        if !self.programs.has_faults {
            operations.fill(0);
        }
        self.state.judged.more_cuts += u64::from(cuts.has_more || closing.has_more);
        // 0 is done.
        for choice in cuts.choices.iter().chain(&closing.choices).filter(|it| **it != 0) {
            self.judge_one(&with_cut(program.clone(), *choice), false)?;
            self.state.judged.cuts += 1;
            report(self)?;
        }
        let most = u32::from(u8::MAX) + 1;
        self.state.judged.more_faults += u64::from(operations.iter().any(|it| *it > most));
        for (of, count) in FileOperation::ALL.into_iter().zip(operations) {
            for before in 0..count.min(most) {
                let faulty = self.programs.with_fault(program.clone(), of, before as u8);
                self.judge_one(&faulty, false)?;
                self.state.judged.faults += 1;
                report(self)?;
            }
        }
        Ok(())
    }

    /// Runs a program with each order of its requests in flight.
    fn judge_orders<E: From<Error>>(
        &mut self,
        candidate: &Sequence,
        report: &mut dyn FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut order, mut has_more) = (Some(TurnOrder::default()), false);
        while let Some(now) = order {
            let program = self.programs.program(candidate, now);
            self.judge_one(&program, false)?;
            self.state.judged.orders += 1;
            let explored = self.subject.explored();
            order = explored.and_then(|explored| {
                has_more |= orders::has_more(&explored.turns);
                orders::next(now, &explored.turns)
            });
            report(self)?;
        }
        self.state.judged.more_orders += u64::from(has_more);
        Ok(())
    }

    /// Runs a program, which notes its possibilities, and its cuts if `notes_cuts`.
    fn judge_one(&mut self, program: &Program, notes_cuts: bool) -> Result<(), Error> {
        // Before each run: after a panic, the target is a new one.
        if let Some(explored) = self.subject.explored() {
            (explored.is_on, explored.notes_cuts) = (true, notes_cuts);
        }
        let input = program.encode();
        self.subject.recorder().begin_run();
        let answer = self.subject.run(&input);
        self.state.runs += 1;
        if let RunReply::Found(finding) = &answer {
            let shown_by = self.subject.shown_by().unwrap_or(&input).to_vec();
            self.state.found.add(&self.artifacts, "crash-", finding, &shown_by)?;
        }
        self.state.found.add_answer(&self.subject, &answer);
        Ok(())
    }

    /// Returns the subject.
    pub fn subject(&mut self) -> &mut Supervised {
        &mut self.subject
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> u64 {
        self.state.runs
    }

    /// Returns what has been judged.
    pub fn judged(&self) -> Judged {
        self.state.judged
    }

    /// Returns the findings.
    pub fn found(&self) -> &SavedFindings {
        &self.state.found
    }
}
