//! The target `recipes`: disks that QEMU makes and changes. Its oracle `known_bytes` judges the bytes that commands of
//! QEMU have written: an engine reads them. Does not check other bytes, nor those behind the end of the disk, because
//! some formats round its size.

use crate::base::ranges::KnownBytes;
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::damaged::raw::RawJudge;
use crate::harness::oracles::{OracleResult, violation};
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const RECIPES: Definition = Definition {
    name: "recipes",
    about: "Choices of commands by which the installed QEMU makes a disk: the engine's answers about it, and QEMU's",
    inputs: Inputs::Recipes,
    // The programs with which some recipes begin have limits of their own.
    limits: Limits::HOSTILE,
    expectation: Expectation::Bytes,
    claims: |facts| facts.claims,
    judges_structures: false,
    // The bound on memory depends on the tables of programs.
    judges_memory: false,
};

/// Judges how an engine reads the disks of recipes.
#[derive(Debug, Default)]
pub(super) struct MadeDiskJudge {
    judge: RawJudge,
    buffer: Vec<u8>,
}

impl JudgeCase for MadeDiskJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let Self { judge, buffer } = self;
        let end = judge.judge(engine, run, case)?;
        if end == CaseEnd::Judged && !case.known.is_empty() {
            let chain = Chain::metered(case.images, run.meter);
            // The walk before has opened it.
            if let Ok(mut disk) = engine.open(&chain) {
                run.verdicts.judge(check_known_bytes(&mut disk, case.known, buffer))?;
            }
        }
        Ok(end)
    }
}

const ORACLE: &str = "known_bytes";

/// Reads the places of `known` that lie on the disk.
fn check_known_bytes(
    disk: &mut TestedDisk,
    known: &[KnownBytes],
    buffer: &mut Vec<u8>,
) -> OracleResult {
    let size_bytes = disk.virtual_size_bytes();
    for KnownBytes { guest, bytes } in known {
        let there = size_bytes.saturating_sub(guest.get()).min(bytes.len() as u64) as usize;
        buffer.clear();
        buffer.resize(there, 0);
        if there == 0 {
            continue;
        }
        if disk.read(*guest, buffer).is_err() {
            // The oracle `data` and the second opinion judge errors.
            continue;
        }
        let pairs = bytes.iter().zip(buffer.iter());
        if let Some((at, (wanted, read))) = (0..).zip(pairs).find(|(_, (one, other))| one != other)
        {
            return different(*guest + at, *wanted, *read);
        }
    }
    Ok(())
}

/// Returns the violation for a byte.
fn different(guest: GuestOffset, wanted: u8, read: u8) -> OracleResult {
    let kinds = match (wanted, read) {
        (0, _) => ("zeros", "data"),
        (_, 0) => ("data", "zeros"),
        _ => ("data", "other data"),
    };
    violation(ORACLE, "byte", kinds, || {
        format!("guest offset {guest}: expected {wanted:#04x}, the engine reads {read:#04x}")
    })
}
