//! Bytes that a guest must read, at some places of a disk.

use crate::base::known_bytes::KnownBytes;
use crate::disk::offsets::GuestOffset;

use super::data::GuestContent;
use super::expected::Expected;

/// The bytes at each place.
const SAMPLE_BYTES: u64 = 4096;
/// The highest number of places.
const MAX_SAMPLES: usize = 256;

/// Returns the bytes at the beginning and at the end of each range whose bytes are known.
pub(in crate::recipes) fn samples(expected: &Expected<'_>) -> Vec<KnownBytes> {
    let mut samples = Vec::new();
    let (mut at, size) = (0, expected.data.size);
    while at < size && samples.len() < MAX_SAMPLES {
        let (next, content) = expected.at(at);
        let end = next.min(size);
        if content != Some(GuestContent::Unknown) {
            let length = end.saturating_sub(at).min(SAMPLE_BYTES);
            let mut take = |from| {
                let mut bytes = vec![0; length as usize];
                expected.fill(content.as_ref(), from, &mut bytes);
                samples.push(KnownBytes { guest: GuestOffset::new(from), bytes });
            };
            take(at);
            let last = end.saturating_sub(length);
            if last > at {
                take(last);
            }
        }
        at = end;
    }
    samples
}
