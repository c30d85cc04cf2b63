//! Judges the data file of an image that an engine has written: if the image declares it raw, it must contain the disk.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::AUTOCLEAR_RAW_DATA_FILE;
use crate::formats::qcow2::header::Header;
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::oracles::qcow2::raw_data_file;
use crate::harness::oracles::written::{self, Moment};
use crate::harness::oracles::{OracleResult, SetAside};

use super::cut::Cut;
use super::judge::WriterJudge;

impl WriterJudge {
    /// Judges the files after an engine had the image open for writing, without a request.
    pub(super) fn unchanged(&self, before: &Chain, after: &Chain) -> OracleResult {
        written::check_unchanged(before, after, behind_new_header(before, after))
    }

    /// Judges the data file of a closed image.
    pub(super) fn raw_data_file(
        &mut self,
        chain: &Chain,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Some(RawDataFile { file, cluster_size }) = raw_data_file_of(chain) else {
            return Ok(());
        };
        let Self { built, guest, bytes, .. } = self;
        let size_bytes = guest.size_bytes();
        let most_bytes = cluster_size.saturating_bytes(cluster_size.clusters_for(size_bytes));
        raw_data_file::check_length(file, size_bytes..=most_bytes).or_else(&mut *set_aside)?;
        raw_data_file::check_written(file, &guest.over(built), Moment::Closed, bytes, set_aside)
    }

    /// Judges the data file after a cut that has left a disk of `size_bytes`.
    pub(super) fn raw_data_file_after_cut(
        &mut self,
        cut: &Cut,
        size_bytes: u64,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Some(RawDataFile { file, .. }) = raw_data_file_of(&cut.files) else { return Ok(()) };
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        raw_data_file::check_written(file, &expected, Moment::Cut, &mut self.bytes, set_aside)
    }
}

/// Returns the offset of the first byte that must be as before. That is the second cluster if the header is another one
/// without the bit that declares the data file raw, and otherwise means the same. A writer that does not know this
/// autoclear bit must clear it, and may do so when it opens the image (qcow2 specification, "autoclear_features"). With
/// the bit, it writes the whole header, and its own table of feature names.
fn behind_new_header(before: &Chain, after: &Chain) -> HostOffset {
    let headers =
        Header::read(before.image()).and_then(|it| Ok((it, Header::read(after.image())?)));
    let Ok((before, after)) = headers else { return HostOffset::ZERO };
    let expected = Header {
        autoclear: before.autoclear & !AUTOCLEAR_RAW_DATA_FILE,
        // The header may be longer, and the name may lie elsewhere. `kept` compares the names themselves.
        header_length_bytes: after.header_length_bytes,
        backing_file_offset: after.backing_file_offset,
        ..before
    };
    match before.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0 && after == expected {
        true => HostOffset::new(after.geometry.cluster_size.bytes()),
        false => HostOffset::ZERO,
    }
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
