//! Structures that several formats share: tables with an entry of 32 bits for each block, checksums, and reports to an
//! observer.

use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::SealKind;
use crate::images::files::image::Image;
use crate::images::qcow2::MappedCluster;

/// Bytes in which all bits are set.
pub static ONES: [u8; 64 << 10] = [0xff; 64 << 10];

/// The length of an entry in bytes.
pub const BLOCK_ENTRY_BYTES: u64 = 4;
/// The unit to which a table is padded, in bytes.
const SECTOR_BYTES: u64 = 512;
/// The number of entries between two blocks up to which one write covers both.
const NEAR_ENTRIES: u64 = 32;

/// Writes a table with the blocks of `mapped`, sorted by their index, whose entries `entry_of` returns. Returns the
/// byte behind the table, which is padded to a whole sector.
pub fn write_table(
    image: &mut Image,
    table: u64,
    entries: u32,
    mapped: &[MappedCluster],
    entry_of: impl Fn(&MappedCluster) -> Option<[u8; 4]>,
) -> u64 {
    let at = |index: u64| HostOffset::new(table.saturating_add(index * BLOCK_ENTRY_BYTES));
    let padded = u64::from(entries).next_multiple_of(SECTOR_BYTES / BLOCK_ENTRY_BYTES);
    let length = |from: u64, until: u64| until.saturating_sub(from) * BLOCK_ENTRY_BYTES;
    let mut next = 0;
    let index_of = |mapped: &MappedCluster| mapped.cluster.get();
    for near in mapped.chunk_by(|here, then| index_of(then) - index_of(here) <= NEAR_ENTRIES) {
        let (first, end) = (index_of(&near[0]), index_of(&near[near.len() - 1]) + 1);
        write_ones(image, at(next), length(next, first));
        let out = image.place(at(first), length(first, end) as usize);
        out.fill(0xff);
        for block in near {
            let Some(entry) = entry_of(block) else { continue };
            let inside = length(first, index_of(block)) as usize;
            out[inside..][..entry.len()].copy_from_slice(&entry);
        }
        next = end;
    }
    write_ones(image, at(next), length(next, padded));
    at(padded).get()
}

/// Writes bytes in which all bits are set. The image refers to them, so that a table costs no copy of its empty parts.
fn write_ones(image: &mut Image, mut at: HostOffset, mut length_bytes: u64) {
    while length_bytes > 0 {
        let piece = length_bytes.min(ONES.len() as u64);
        image.write_parts(at, &[], &ONES[..piece as usize]);
        at += piece;
        length_bytes -= piece;
    }
}

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

/// Reports structures in the order of the file. Each has a host offset, if the image has it.
pub fn report_structures<const N: usize>(
    mut structures: [(Option<u64>, Event); N],
    observer: &dyn Observer,
) {
    observer.begin(State::Serialise);
    structures.sort_by_key(|(offset, _)| *offset);
    for (_, event) in structures.iter().filter(|(offset, _)| offset.is_some()) {
        observer.event(State::Serialise, *event);
    }
}
