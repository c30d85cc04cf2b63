//! Has the engine read the image that it has written and closed, and judges the sizes that it states.

use crate::disk::extent::Window;
use crate::harness::cases::case::Verdicts;
use crate::harness::engine::EngineError;
use crate::harness::engine::claims::SizePolicy;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::bounds::Collector;
use crate::harness::oracles::extents::window::WholeWalk;
use crate::harness::oracles::written::{self, Moment};
use crate::harness::oracles::{self, OracleResult};
use crate::images::content::entropy::Entropy;

use super::state::SECTOR_BYTES;
use super::{MAX_WALK_STEPS, WriterJudge};

impl WriterJudge {
    pub(super) fn check_open_size(&self, policy: SizePolicy, actual_bytes: u64) -> OracleResult {
        let has_first_size = self.guest.has_first_size();
        self.check_size(policy, has_first_size, (self.guest.size_bytes(), actual_bytes))
    }

    /// Checks the size of an open disk. The policy may excuse a last sector that is not whole.
    pub(super) fn check_size(
        &self,
        policy: SizePolicy,
        has_first_size: bool,
        (expected_bytes, actual_bytes): (u64, u64),
    ) -> OracleResult {
        let stored = self.built.active().stored_size_bytes();
        let is_near = actual_bytes == stored
            || Some(actual_bytes) == stored.checked_next_multiple_of(SECTOR_BYTES);
        match policy == SizePolicy::Near && has_first_size && is_near {
            true => Ok(()),
            false => oracles::extents::model::check_size(expected_bytes, actual_bytes),
        }
    }

    /// Opens the image for reading only, and reads it. It must not be written.
    pub(super) fn read_again(
        &mut self,
        engine: &mut TestedEngine,
        chain: &Chain,
        verdicts: &mut Verdicts,
    ) -> OracleResult {
        let engine_size = engine.facts().policy.size;
        let refused = |error| oracles::unexpected_error("open", "written image", &error);
        let mut disk = match engine.open(chain) {
            // The engine is not to blame, as in a session.
            Err(error @ EngineError::NotGiven(_)) => return Err(refused(error)),
            opened => opened.map_err(|error| written::in_file(refused(error)))?,
        };
        let sized = self.check_open_size(engine_size, disk.virtual_size_bytes());
        if verdicts.judge(sized)?.is_none() {
            return Ok(());
        }
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let compared = self.compare(Moment::Reopened, read, &mut |it| verdicts.set_aside(it));
        verdicts.judge_answer(compared)?;
        verdicts.judge(self.walk_again(&mut disk))?;
        disk.close().map_err(|error| oracles::unexpected_error("written", "close", &error))
    }

    /// Has the engine walk the image that it has written: as a whole, up to a stop, and from there on. The extents must
    /// be those of our walker. An engine that emits no extents, or rounds the size of the disk, is judged by its reads.
    fn walk_again(&mut self, disk: &mut TestedDisk) -> OracleResult {
        let Self { guest, extents, again, entropy, .. } = self;
        let size_bytes = disk.virtual_size_bytes();
        if size_bytes != guest.size_bytes() {
            return Ok(());
        }
        let mut collector = Collector::new(again, MAX_WALK_STEPS);
        let walked = disk.map(Window::ALL, &mut collector);
        oracles::bounds::check_steps(collector.exhausted(), MAX_WALK_STEPS)?;
        match walked {
            Err(EngineError::NoAnswer) => return Ok(()),
            walked => walked.map_err(|error| oracles::unexpected_error("walk", "image", &error))?,
        }
        oracles::extents::check_partition(again, &(0..size_bytes))?;
        oracles::extents::model::check(extents, again)?;
        // A stream of its own, so that the choices of the other oracles stay as they are.
        let mut own = Entropy::new(entropy.state().rotate_left(16));
        let stop_after = own.below(extents.len() as u64) as usize + 1;
        WholeWalk::complete(extents).check_resumed(disk, stop_after, MAX_WALK_STEPS, again)
    }
}
