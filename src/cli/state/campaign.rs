//! `state campaign`: prints the parents of a campaign's inputs, and what each mutation is worth.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::base::error::Error;
use crate::cli::print::counted;
use crate::fuzzing::campaign::Places;
use crate::fuzzing::embedded::breeder::MutationWorth;
use crate::fuzzing::embedded::state::{JobReport, ParentReport};
use crate::harness::targets::TargetKind;

/// The saved state of a campaign, job by job.
#[derive(Serialize)]
pub struct CampaignReport {
    jobs: Vec<JobReport>,
}

impl CampaignReport {
    /// Reads the state of a campaign under `dir`, and keeps the `most` inputs of each job that are chosen most often.
    pub fn of(dir: &Path, target: TargetKind, most: usize) -> Result<Self, Error> {
        let states = Places::saved_states(dir, target)?;
        let inputs = target.definition().inputs;
        let mut jobs: Vec<_> = states.iter().map(|state| JobReport::of(state, inputs)).collect();
        jobs.iter_mut().for_each(|job| job.parents.truncate(most));
        Ok(Self { jobs })
    }

    /// Prints the report as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.jobs.iter().enumerate().try_for_each(|(number, job)| print_job(number, job, out))
    }
}

fn print_job(number: usize, job: &JobReport, out: &mut impl Write) -> io::Result<()> {
    let JobReport { runs, inputs, without_parent, greatest_depth, parents, mutations } = job;
    let inputs = counted(*inputs, "input");
    writeln!(out, "job {number}: {runs} runs")?;
    writeln!(
        out,
        "{inputs}, {without_parent} without a parent; at most {greatest_depth} ancestors"
    )?;
    writeln!(
        out,
        "\n{:>8} {:>9} {:>6} {:>7} {:>10} {:>8} {:>10}  {:40}  parent",
        "chosen", "children", "kept", "barren", "ancestors", "work", "complexity", "input"
    )?;
    for one in parents {
        let ParentReport { input, parent, depth, chosen_percent, children, kept, .. } = one;
        let ParentReport { barren, work, complexity, changes, .. } = one;
        let parent = parent.as_deref().unwrap_or("none");
        writeln!(
            out,
            "{chosen_percent:>7.2}% {children:>9} {kept:>6} {barren:>7} {depth:>10} {work:>8} {complexity:>10}  {input:40}  {parent}"
        )?;
        if !changes.is_empty() {
            writeln!(out, "{:>9}{}", "", changes.join(", "))?;
        }
    }
    writeln!(out, "\n{:>8} {:>9} {:>8} {:>8}  mutation", "chosen", "children", "kept", "credit")?;
    for MutationWorth { mutation, chosen_percent, children, kept, credit } in mutations {
        writeln!(
            out,
            "{chosen_percent:>7.2}% {children:>9} {kept:>8.1} {credit:>6.2} ×  {mutation}"
        )?;
    }
    writeln!(out)
}
