//! Bytes that commands of QEMU have written: an engine reads them. Does not check other bytes, nor those behind the end
//! of the disk, because some formats round its size.

use crate::base::ranges::KnownBytes;
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::tested::TestedDisk;

use super::{OracleResult, violation};

const ORACLE: &str = "known_bytes";

/// Reads the places of `known` that lie on the disk.
pub(in crate::harness) fn check(
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
