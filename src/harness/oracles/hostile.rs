//! Damaged images: after any damage, opening, walking, looking up and reading end within bounds. Answers tile the
//! disk, are possible, and agree with each other. Ranges that no damage can have touched are mapped as the model
//! says. While bytes change during a read, or reads fail, answers only have to tile the disk. If QEMU does not open the
//! image, the oracle `refusal` judges the answers instead. Does not check the mapping of damaged entries, nor the data.

use std::sync::Arc;

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, State};
use crate::harness::case::Case;
use crate::harness::chain::Chain;
use crate::harness::engine::Engine;
use crate::harness::idle::QuestionKind;
use crate::harness::meter::Meter;
use crate::harness::verdicts::Verdicts;
use crate::images::damage::{Damage, Refusal};
use crate::images::entropy::Entropy;

use super::collector::Fuel;
use super::observed::WalkWork;
use super::raw::{
    Answers, MAX_ASKED, MeasuredChain, RawOutcome, WalkReach, judged_walk, read_edges, rewalk, walk,
};
use super::refusal::RefusedWalks;
use super::{Oracle, Violation, model, observed, refusal, unwalked};

const ORACLE: Oracle = Oracle::drawn("hostile");

/// Buffers, reused from image to image.
#[derive(Debug, Default)]
pub struct HostileBuffers {
    whole: Vec<Extent>,
    other: Vec<Extent>,
    clipped: [Vec<Extent>; 2],
    refusals: Vec<Refusal>,
    meter: Arc<Meter>,
}

impl HostileBuffers {
    /// Returns the meter of the next image, on which no engine counts any more.
    pub fn renewed_meter(&mut self) -> Arc<Meter> {
        Meter::renew(&mut self.meter);
        Arc::clone(&self.meter)
    }
}

/// Judges the engine's answers about a damaged image, and reports their events to `observer`. Without the damage, its
/// disk would have the extents `expected`.
///
/// # Errors
/// The oracle found a violation.
pub fn check<E: Engine, O: Observer>(
    engine: &mut E,
    (case, expected): (&Case, &[Extent]),
    entropy: &mut Entropy,
    observer: &O,
    buffers: &mut HostileBuffers,
    verdicts: &mut Verdicts,
) -> Result<RawOutcome, Box<Violation>> {
    let HostileBuffers { whole, other, clipped, refusals, meter } = buffers;
    let chain = Chain::damaged(case.images, case.damage, meter);
    let table_bytes = case.images.written_bytes();
    let fuel = Fuel::of_chain(table_bytes, chain.layers().len());
    whole.clear();
    case.damage.refusals(case.images, refusals);
    let (refused, tiled) = match refusals.is_empty() {
        true => (None, Ok(())),
        false => {
            let mut walks = RefusedWalks { fuel, extents: other, tiled: Ok(()) };
            let places = Refusals { refusals, damage: case.damage, expected };
            (places.judge(engine, &chain, &mut walks, observer, verdicts)?, walks.tiled)
        }
    };
    let outcome = if let Some(outcome) = refused {
        outcome
    } else {
        let may_fail_to_read = case.damage.may_change_identities(case.images);
        let may_split_grains = case.damage.may_split_grains();
        let span_bits = case.table_span_bits;
        let measured = MeasuredChain { chain: &chain, meter, span_bits, table_bytes };
        let answers = Answers {
            whole,
            other,
            expected,
            questions: case.questions,
            fuel,
            may_fail_to_read,
            may_split_grains,
            observer,
            verdicts,
        };
        match case.damage.is_unsteady() {
            true => answers.judge_unsteady(engine, &measured, entropy)?,
            false => answers.judge(engine, &measured, entropy)?,
        }
    };
    if !case.damage.is_trapped() {
        // As far as the walk came.
        let touched = case.damage.touched().iter().cloned();
        let compared = model::check_outside(touched, expected, whole, clipped);
        verdicts.judge(compared.map_err(|found| found.attributed_to(ORACLE)))?;
    }
    chain.rearm();
    let index = entropy.below(4) as u32;
    if let Ok(mut disk) = engine.open_snapshot(&chain, index) {
        observer.event(State::Check, Event::Snapshot);
        let walked = walk(&mut disk, other, fuel, observer).map_err(Violation::into_drawn);
        match verdicts.judge_answers(QuestionKind::Map, walked)? {
            None => unwalked::read(&mut disk, (expected, &[]), entropy, observer),
            Some((_, reach)) if !case.damage.is_unsteady() && !case.damage.may_split_grains() => {
                verdicts.judge(rewalk(&mut disk, (other, reach), fuel, entropy, whole))?;
            }
            Some(_) => {}
        }
    }
    if !case.damage.is_trapped() {
        verdicts.judge(tiled)?;
    }
    Ok(outcome)
}

impl<O: Observer> Answers<'_, O> {
    /// Walks and reads an image whose bytes change during reads, or whose reads fail. That may spoil any answer, but
    /// each must end without a panic.
    fn judge_unsteady<E: Engine>(
        self,
        engine: &mut E,
        measured: &MeasuredChain<'_>,
        entropy: &mut Entropy,
    ) -> Result<RawOutcome, Box<Violation>> {
        let Self { whole, expected, questions, fuel, observer, verdicts, .. } = self;
        let MeasuredChain { chain, meter, span_bits, table_bytes } = *measured;
        chain.rearm();
        meter.restart(u64::MAX);
        let Some(mut disk) = observed::opened(engine.open(chain), observer) else {
            return Ok(RawOutcome::Refused);
        };
        let (outcome, reach) = judged_walk(&mut disk, whole, fuel, observer, verdicts)?;
        let (reads, bytes, extents) = (meter.reads(), meter.bytes(), whole.len());
        observed::work(&WalkWork { reads, bytes, extents, table_bytes }, observer);
        observed::extents(whole, span_bits, observer);
        match whole.is_empty() && reach != WalkReach::Complete {
            true => unwalked::read(&mut disk, (expected, questions), entropy, observer),
            false => {
                let asked = &whole[..whole.len().min(MAX_ASKED)];
                let _ = read_edges(&mut disk, asked, false, observer);
            }
        }
        Ok(outcome)
    }
}

/// The places of a damaged image at which every reader must refuse.
struct Refusals<'a> {
    refusals: &'a [Refusal],
    damage: &'a Damage,
    /// The extents of the disk without the damage.
    expected: &'a [Extent],
}

impl Refusals<'_> {
    /// Judges the answers at these places. Returns the result of the run if there is nothing else to judge: the engine
    /// does not open the image, or QEMU does not.
    fn judge<E: Engine, O: Observer>(
        &self,
        engine: &mut E,
        chain: &Chain,
        walks: &mut RefusedWalks,
        observer: &O,
        verdicts: &mut Verdicts,
    ) -> Result<Option<RawOutcome>, Box<Violation>> {
        let Self { refusals, damage, expected } = *self;
        let Some(mut disk) = observed::opened(engine.open(chain), observer) else {
            return Ok(Some(RawOutcome::Refused));
        };
        for place in refusals {
            let held = refusal::check(&mut disk, place, damage, expected, walks);
            verdicts.judge(held)?;
        }
        Ok(refusals.iter().any(Refusal::is_of_image).then_some(RawOutcome::Failed))
    }
}
