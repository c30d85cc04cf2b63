//! Judges what a writer has to keep in a closed file.

use crate::harness::chain::Chain;
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::qcow2::kept;

use super::judge::WriterJudge;

impl WriterJudge {
    /// Compares the names in the header, and the snapshots from before, with those before the requests.
    pub(super) fn kept(&self, chain: &Chain) -> OracleResult {
        match &self.before {
            Some(before) => kept::check(before.image(), chain.image(), self.guest.snapshots.kept()),
            None => Ok(()),
        }
    }
}
