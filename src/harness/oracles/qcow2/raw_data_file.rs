//! A raw data file contains the whole disk: a reader that opens it as a raw image gets the guest's bytes (qcow2
//! specification, "Autoclear features", bit 1). An engine that reads through the tables cannot show that. Checks the
//! edges of every piece, as `data` does; if an engine has written the file, the edges that `written` checks. The file
//! of an engine may end with the last cluster of the disk: QEMU writes this cluster as a whole. Does not check a raw
//! data file below an overlay, and the length of the file after a cut.

use std::ops::RangeInclusive;

use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::harness::engine::EngineError;
use crate::harness::files::chain::ChainFile;
use crate::harness::model::Model;
use crate::harness::oracles::written::{self, BeyondEdges, ExpectedDisk, Moment, WrittenBuffers};
use crate::harness::oracles::{OracleResult, SetAside, Violation, data, violation};
use crate::images::image::Image;

const ORACLE: &str = "raw_data_file";

/// Compares a raw data file with the disk that `model` expects.
pub fn check(file: &Image, model: &Model) -> OracleResult {
    let size_bytes = model.virtual_size_bytes();
    check_length(file, size_bytes..=size_bytes)?;
    data::edges::check(&mut read_of(file), model, |_| true, &mut Err)
        .map_err(|violation| violation.attributed_to(ORACLE))
}

/// Compares a raw data file that an engine has written with the disk that the guest expects.
pub(crate) fn check_written(
    file: &ChainFile,
    disk: &impl ExpectedDisk,
    moment: Moment,
    bytes: &mut WrittenBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    let set_aside = &mut |found: Box<Violation>| set_aside(found.attributed_to(ORACLE));
    written::check(&mut read_of(file), disk, moment, BeyondEdges::Nothing, bytes, set_aside)
}

/// Checks the length of a raw data file: a reader that opens it as a raw image gets the size of the disk from it.
pub(crate) fn check_length(file: &impl Storage, expected: RangeInclusive<u64>) -> OracleResult {
    let actual_bytes = file.length_bytes();
    match expected.contains(&actual_bytes) {
        true => Ok(()),
        false => violation(ORACLE, "length", ("that of the disk", "another"), || {
            let (least, most) = expected.into_inner();
            format!("expected {least} to {most} bytes, found {actual_bytes}")
        }),
    }
}

/// Reads the disk as a reader does that opens the file as a raw image.
fn read_of(file: &impl Storage) -> impl FnMut(GuestOffset, &mut [u8]) -> Result<(), EngineError> {
    |guest, into| Ok(file.read_at(HostOffset::new(guest.get()), into)?)
}
