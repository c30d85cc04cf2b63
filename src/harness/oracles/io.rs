//! If a read fails, the engine returns an error, and the extents that it emitted before are a correct prefix. Does
//! not check reads of guest data, nor the error itself, except that it must not say that the image is malformed.

use crate::disk::extent::{Extent, Window};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{EngineError, ErrorKind};
use crate::harness::files::chain::Chain;
use crate::harness::files::meter::Meter;
use crate::harness::model::Model;

use super::bounds::Collector;
use super::{Oracle, OracleResult, Violation, data, extents, unexpected_error, violation};

const ORACLE: Oracle = Oracle::drawn("io");

/// Opens and walks `chain` with the read number `fail_at` failing. `meter` counts the reads of the chain; a whole
/// walk makes more than `fail_at`.
pub fn check(
    engine: &mut TestedEngine,
    chain: &Chain,
    meter: &Meter,
    fail_at: u64,
    whole: &[Extent],
    fuel: u64,
    buffer: &mut Vec<Extent>,
) -> OracleResult {
    buffer.clear();
    meter.restart(fail_at);
    let answer = match engine.open(chain) {
        Ok(mut disk) => disk.map(Window::ALL, &mut Collector::new(buffer, fuel)),
        Err(error) => Err(error),
    };
    meter.restart(u64::MAX);
    check_answer(&answer, whole, buffer)
}

/// Opens `chain` and reads all edges of `model` with the read number `fail_at` failing. The engine may refuse what it
/// likes, but its data must be right.
pub fn check_data(
    engine: &mut TestedEngine,
    chain: &Chain,
    meter: &Meter,
    fail_at: u64,
    model: &Model,
) -> OracleResult {
    meter.restart(fail_at);
    let judged = engine.open(chain).map(|mut disk| {
        let set_aside = &mut |found: Box<Violation>| match found.error_kind() {
            Some(_) => Ok(()),
            None => Err(found.attributed_to(ORACLE)),
        };
        data::edges::check(&mut |at, into| disk.read(at, into), model, |_| true, set_aside)
    });
    meter.restart(u64::MAX);
    judged.unwrap_or(Ok(()))
}

fn check_answer(
    answer: &Result<(), EngineError>,
    whole: &[Extent],
    emitted: &[Extent],
) -> OracleResult {
    match answer {
        Ok(()) => {
            return violation(ORACLE, "failed read", ("an error", "an answer"), || {
                format!("{} of {} extents", emitted.len(), whole.len())
            });
        }
        Err(error) if matches!(error.kind(), ErrorKind::Failed | ErrorKind::Unsupported) => {
            let detail = || error.to_string();
            return violation(ORACLE, "failed read", ("a storage error", "another error"), detail);
        }
        Err(error) if error.kind() == ErrorKind::NoAnswer => {
            return Err(unexpected_error(ORACLE, "walk", error));
        }
        Err(_) => {}
    }
    let size = whole.last().and_then(Extent::end).map_or(0, |end| end.get());
    // The number of the failing read is drawn, so a violation of `partition` is drawn here, too.
    extents::check_prefix(emitted, &(0..size)).map_err(Violation::into_drawn)?;
    for (index, (part, whole)) in emitted.iter().zip(whole).enumerate() {
        let last = index + 1 == emitted.len();
        let fits = if last {
            part.length_bytes <= whole.length_bytes
        } else {
            part.length_bytes == whole.length_bytes
        };
        if part.mapping != whole.mapping || !fits {
            return violation(ORACLE, "prefix", ("of the whole walk", "not"), || {
                format!("extent {index}: {part}, the whole walk has {whole}")
            });
        }
    }
    Ok(())
}
