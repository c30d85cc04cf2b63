//! Damaged images: after any damage, opening, walking, looking up and reading end within bounds. Answers tile the disk,
//! are possible, and agree with each other. Ranges that no damage can have touched are mapped as the model says. While
//! bytes change during a read, or reads fail, answers only have to tile the disk. If QEMU does not open the image, the
//! oracle `refusal` judges the answers instead. Does not check the mapping of damaged entries, nor the data that they
//! map; [`Untouched`] judges the rest.

mod parts;
pub mod raw;

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::{Event, State};
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun};
use crate::harness::engine::EngineQuestion;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::images::damage::{Damage, Refusal};

use super::bounds::Fuel;
use super::extents::model;
use super::observed;
use super::{Oracle, OracleResult, Violation};
use parts::{RefusedWalks, Untouched};
use raw::{Answers, MAX_ASKED, MeasuredChain, WalkReach, judged_walk, read_edges, rewalk, walk};

const ORACLE: Oracle = Oracle::drawn("hostile");

/// Buffers, reused from image to image.
#[derive(Debug, Default)]
pub struct HostileBuffers {
    whole: Vec<Extent>,
    other: Vec<Extent>,
    clipped: [Vec<Extent>; 2],
    refusals: Vec<Refusal>,
}

/// Judges the engine's answers about a damaged image, and reports their events to the observer. Without the damage, its
/// disk would be that of the model, with the extents `expected`.
pub(crate) fn check(
    engine: &mut TestedEngine,
    (case, model, expected): (&Case, &Model, &[Extent]),
    run: &mut CaseRun,
    buffers: &mut HostileBuffers,
) -> OracleResult<CaseEnd> {
    let HostileBuffers { whole, other, clipped, refusals } = buffers;
    let chain = Chain::damaged(case.images, case.damage, run.meter);
    let table_bytes = case.images.written_bytes();
    let fuel = Fuel::of_chain(table_bytes, chain.layers().len());
    whole.clear();
    case.damage.refusals(case.images, engine.facts().claims.judges_limits(), refusals);
    if !refusals.is_empty() || case.damage.is_unsteady() {
        engine.prepare(&chain, |plan| {
            plan.extend([EngineQuestion::Open, EngineQuestion::Map(Window::ALL)])
        });
    }
    let (refused, tiled) = match refusals.is_empty() {
        true => (None, Ok(())),
        false => {
            let mut walks = RefusedWalks { fuel, extents: other, tiled: Ok(()) };
            let places = (&refusals[..], case.damage, expected);
            (judge_refusals(engine, &chain, places, &mut walks, run)?, walks.tiled)
        }
    };
    let outcome = if let Some(outcome) = refused {
        outcome
    } else {
        let may_fail_to_read = case.damage.may_change_identities(case.images);
        let may_split_grains = case.damage.may_split_grains();
        let span_bits = case.table_span_bits;
        let measured = MeasuredChain { chain: &chain, span_bits };
        let questions = case.questions;
        let touched = case.damage.touched();
        let has_data = !case.damage.is_cut();
        let untouched = Some(Untouched { model, expected, touched, has_data });
        let answers = Answers {
            whole,
            other,
            expected,
            questions,
            fuel,
            may_fail_to_read,
            untouched,
            may_split_grains,
        };
        match case.damage.is_unsteady() {
            true => answers.judge_unsteady(engine, run, &measured)?,
            false => answers.judge(engine, run, &measured)?,
        }
    };
    if !case.damage.is_trapped() {
        // As far as the walk came.
        let touched = case.damage.touched().iter().cloned();
        let set_aside =
            &mut |found: Box<Violation>| run.verdicts.set_aside(found.attributed_to(ORACLE));
        model::check_outside(touched, expected, whole, clipped, set_aside)?;
    }
    check_snapshot(engine, (&chain, case.damage, expected), fuel, run, [other, whole])?;
    if !case.damage.is_trapped() {
        run.verdicts.judge(tiled)?;
    }
    Ok(outcome)
}

/// Walks a snapshot, if the engine opens one.
fn check_snapshot(
    engine: &mut TestedEngine,
    (chain, damage, expected): (&Chain, &Damage, &[Extent]),
    fuel: Fuel,
    run: &mut CaseRun,
    [walked, other]: [&mut Vec<Extent>; 2],
) -> OracleResult {
    chain.rearm();
    let index = run.entropy.below(4) as u32;
    let Ok(mut disk) = engine.open_snapshot(chain, index) else { return Ok(()) };
    run.observer.event(State::Check, Event::Snapshot);
    let judged = walk(&mut disk, walked, fuel, run.observer).map_err(Violation::into_drawn);
    match run.verdicts.judge_answer(judged)? {
        None => observed::read_places(&mut disk, (expected, &[]), run.entropy, run.observer),
        Some((_, reach)) if !damage.is_unsteady() && !damage.may_split_grains() => {
            let again = rewalk(&mut disk, (walked, reach), fuel, run.entropy, other);
            run.verdicts.judge(again)?;
        }
        Some(_) => {}
    }
    Ok(())
}

impl Answers<'_> {
    /// Walks and reads an image whose bytes change during reads, or whose reads fail. That may spoil any answer, but
    /// each must end without a panic.
    fn judge_unsteady(
        self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        measured: &MeasuredChain<'_>,
    ) -> OracleResult<CaseEnd> {
        let Self { whole, expected, questions, fuel, .. } = self;
        let MeasuredChain { chain, span_bits } = *measured;
        chain.rearm();
        run.meter.restart(u64::MAX);
        let Some(mut disk) = observed::opened(engine.open(chain), run.observer) else {
            return Ok(CaseEnd::Refused);
        };
        let (outcome, reach) = judged_walk(&mut disk, whole, fuel, run)?;
        observed::work(run.meter.reads(), run.meter.bytes(), run.observer);
        observed::extents(whole, span_bits, run.observer);
        match whole.is_empty() && reach != WalkReach::Complete {
            true => {
                observed::read_places(&mut disk, (expected, questions), run.entropy, run.observer)
            }
            false => {
                let asked = &whole[..whole.len().min(MAX_ASKED)];
                let _ = read_edges(&mut disk, asked, false, run.observer);
            }
        }
        Ok(outcome)
    }
}

/// Judges the answers at the places of a damaged image at which every reader must refuse. Returns the result of the run
/// if there is nothing else to judge: the engine does not open the image, or QEMU does not. Without the damage, the
/// disk has the extents `expected`.
fn judge_refusals(
    engine: &mut TestedEngine,
    chain: &Chain,
    (refusals, damage, expected): (&[Refusal], &Damage, &[Extent]),
    walks: &mut RefusedWalks,
    run: &mut CaseRun,
) -> OracleResult<Option<CaseEnd>> {
    let Some(mut disk) = observed::opened(engine.open(chain), run.observer) else {
        return Ok(Some(CaseEnd::Refused));
    };
    for place in refusals {
        let held = parts::check_refused(&mut disk, place, damage, expected, walks);
        run.verdicts.judge(held)?;
    }
    Ok(refusals.iter().any(Refusal::is_of_image).then_some(CaseEnd::Failed))
}
