//! Structures of a file with a checksum.

use crate::formats::anatomy::SealKind;

/// Writes the checksum of a structure.
pub fn seal(structure: &mut [u8], checksum_at: usize, kind: SealKind) {
    let checksum = kind.of(structure, checksum_at);
    put(structure, checksum_at, checksum);
}

/// Returns a part of a file, if the file has all of it.
pub fn part(file: &mut [u8], at: usize, length: usize) -> Option<&mut [u8]> {
    file.get_mut(at..at.checked_add(length)?)
}

/// Writes a checksum.
fn put(structure: &mut [u8], at: usize, checksum: [u8; 4]) {
    if let Some(place) = structure.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = checksum;
    }
}
