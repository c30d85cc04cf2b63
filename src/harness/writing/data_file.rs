//! Judges the data file of an image that an engine has written: if the image declares it raw, it must contain the disk.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no whole number of its clusters saturates.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::AUTOCLEAR_RAW_DATA_FILE;
use crate::formats::qcow2::header::Header;
use crate::harness::chain::{Chain, ChainFile};
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::qcow2::raw_data_file;
use crate::harness::oracles::written::{self, Moment};

use super::cut::Cut;
use super::judge::WriterJudge;

impl WriterJudge {
    /// Judges the files after an engine had the image open for writing, without a request.
    pub(super) fn unchanged(&self, before: &Chain, after: &Chain) -> OracleResult {
        let may_differ = has_cleared_raw_bit(before, after).then_some(RAW_BIT_AT);
        written::check_unchanged(before, after, may_differ)
    }

    /// Judges the data file of a closed image.
    pub(super) fn raw_data_file(&mut self, chain: &Chain) -> OracleResult {
        let Some(RawDataFile { file, cluster_size }) = raw_data_file_of(chain) else {
            return Ok(());
        };
        let Self { built, guest, bytes, .. } = self;
        let size_bytes = guest.size_bytes();
        let most_bytes = cluster_size.saturating_bytes(cluster_size.clusters_for(size_bytes));
        raw_data_file::check_length(file, size_bytes..=most_bytes)?;
        raw_data_file::check_written(file, &guest.over(built), Moment::Closed, bytes)
    }

    /// Judges the data file after a cut that has left a disk of `size_bytes`.
    pub(super) fn raw_data_file_after_cut(&mut self, cut: &Cut, size_bytes: u64) -> OracleResult {
        let Some(RawDataFile { file, .. }) = raw_data_file_of(&cut.files) else { return Ok(()) };
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        raw_data_file::check_written(file, &expected, Moment::Cut, &mut self.bytes)
    }
}

/// The offset of the byte of the header with the bit that declares a data file raw: the last one of
/// `autoclear_features`.
const RAW_BIT_AT: HostOffset = HostOffset::new(95);

/// Reports whether the bit that declares the data file raw is the only feature bit that has changed. A writer that does
/// not know this autoclear bit must clear it, and may do so when it opens the image (qcow2 specification,
/// "autoclear_features").
fn has_cleared_raw_bit(before: &Chain, after: &Chain) -> bool {
    let bits = |chain: &Chain| Header::read(chain.image()).map_or(0, |header| header.autoclear);
    let (before, after) = (bits(before), bits(after));
    before & AUTOCLEAR_RAW_DATA_FILE != 0 && after == before & !AUTOCLEAR_RAW_DATA_FILE
}

/// The data file of an image that declares it raw.
struct RawDataFile<'c> {
    file: &'c ChainFile,
    cluster_size: ClusterSize,
}

/// Returns the data file of the image at the top, if the image declares it raw. A writer that does not know the feature
/// clears its bit.
fn raw_data_file_of(chain: &Chain) -> Option<RawDataFile<'_>> {
    let file = chain.data_file()?;
    let header = Header::read(chain.image()).ok()?;
    let is_raw = header.geometry.data_file && header.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0;
    is_raw.then_some(RawDataFile { file, cluster_size: header.geometry.cluster_size })
}
