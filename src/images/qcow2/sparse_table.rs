//! Tables of big-endian 64-bit entries, most of which are empty: L1 tables and the refcount table.

use crate::disk::offsets::HostOffset;
use crate::images::image::Image;

/// Entries that are nearer than this are written as one piece.
const JOIN_ENTRIES: u64 = 8;

/// Writes `entries` into the table at `table`. Each has an index and a value that `value` turns into an entry; they
/// are sorted by index. Pieces begin and end at pairs of entries.
pub fn write<T: Copy>(
    image: &mut Image,
    table: HostOffset,
    entries: &[(u64, T)],
    value: impl Fn(T) -> u64,
) {
    for group in entries.chunk_by(|(here, _), (next, _)| next - here <= JOIN_ENTRIES) {
        let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else {
            continue;
        };
        let (first, last) = (first / 2 * 2, last / 2 * 2 + 2);
        let bytes = image.place(table + first * 8, (last - first) as usize * 8);
        for (index, entry) in group {
            let at = (index - first) as usize * 8;
            bytes[at..at + 8].copy_from_slice(&value(*entry).to_be_bytes());
        }
    }
}
