//! A raw data file contains the whole disk: a reader that opens it as a raw image gets the guest's bytes (qcow2
//! specification, "Autoclear features", bit 1). An engine that reads through the tables cannot show that. Checks the
//! edges of every piece, as `data` does. Does not check a raw data file below an overlay.

use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::harness::engine::EngineError;
use crate::harness::model::Model;
use crate::harness::oracles::{OracleResult, data, violation};
use crate::images::image::Image;

const ORACLE: &str = "raw_data_file";

/// Compares a raw data file with the disk that `model` expects.
pub fn check(file: &Image, model: &Model) -> OracleResult {
    if file.length_bytes() != model.virtual_size_bytes() {
        return violation(ORACLE, "length", ("that of the disk", "another"), || {
            format!("expected {} bytes, found {}", model.virtual_size_bytes(), file.length_bytes())
        });
    }
    let read = &mut |guest: GuestOffset, into: &mut [u8]| -> Result<(), EngineError> {
        Ok(file.read_at(HostOffset::new(guest.get()), into)?)
    };
    data::check(read, model, |_| true).map_err(|violation| violation.attributed_to(ORACLE))
}
