//! Judges what a writer has to keep in a file.

use crate::harness::files::chain::Chain;
use crate::harness::oracles::qcow2::kept;
use crate::harness::oracles::{OracleResult, SetAside};

use super::cut::Cut;
use super::judge::WriterJudge;

impl WriterJudge {
    /// Checks the bits in the header of a closed file, or of one after a cut.
    pub(super) fn kept_bits(&self, chain: &Chain, set_aside: &mut SetAside) -> OracleResult {
        kept::check_bits(self.before.as_ref().map(Chain::image), chain.image(), set_aside)
    }

    /// Compares the names in the header, and the snapshots from before, with those before the requests.
    pub(super) fn kept(&self, chain: &Chain, set_aside: &mut SetAside) -> OracleResult {
        let Some(before) = &self.before else { return Ok(()) };
        kept::check(before.image(), chain.image(), self.guest.snapshots.kept(), set_aside)
    }

    /// Compares the names in the header of a file after a cut with those before the requests, and so the snapshots from
    /// before, unless a request has changed their table since the last flush.
    pub(super) fn kept_after_cut(&self, cut: &Cut, set_aside: &mut SetAside) -> OracleResult {
        let Some(before) = &self.before else { return Ok(()) };
        let snapshots = &cut.guest.snapshots;
        let kept = snapshots.is_settled().then(|| snapshots.kept()).into_iter().flatten();
        kept::check(before.image(), cut.files.image(), kept, set_aside)
    }
}
