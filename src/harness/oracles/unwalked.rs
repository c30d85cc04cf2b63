//! Reads a disk whose extents are not known: the engine has no answer to walks, or its walk came to nothing. A read
//! must end, without a panic. Does not check the bytes: damage may have changed them.

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, State, Vital};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::tested::TestedDisk;
use crate::images::entropy::Entropy;
use crate::programs::Question;

use super::observed;

/// The most extents at whose beginnings a disk is read.
const MAX_EXPECTED_PLACES: usize = 64;
/// The number of places that the stream selects.
const DRAWN_PLACES: usize = 8;
/// The bytes of a read at a place.
const PLACE_BYTES: u16 = 512;
/// The most bytes that a question of a program reads from a damaged image.
const MAX_ANY_READ_BYTES: usize = 4096;

/// Reads a disk at its edges, at the beginnings of `expected` extents, where its tables have entries, at some drawn
/// places, and where the questions of the program read.
pub(super) fn read(
    disk: &mut TestedDisk,
    (expected, questions): (&[Extent], &[Question]),
    entropy: &mut Entropy,
    observer: &dyn Observer,
) {
    let mut places = 0;
    each_place(disk.virtual_size_bytes(), (expected, questions), entropy, |start, length_bytes| {
        observer.event(State::Check, Event::Read);
        places += 1;
        read_any(disk, start, length_bytes, observer);
    });
    let others = questions.iter().filter(|it| !matches!(it, Question::Read { .. })).count();
    observer.vital(Vital::Questions, places + others as u64);
}

/// Calls `visit` with the places of [`read`] on a disk of `size` bytes, and the number of bytes at each.
pub(super) fn each_place(
    size: u64,
    (expected, questions): (&[Extent], &[Question]),
    entropy: &mut Entropy,
    mut visit: impl FnMut(GuestOffset, u16),
) {
    let stored = expected.iter().filter(|extent| extent.mapping.data).take(MAX_EXPECTED_PLACES);
    let mut place = |at: u64| visit(GuestOffset::new(at), PLACE_BYTES);
    place(0);
    place(size.saturating_sub(PLACE_BYTES.into()));
    stored.for_each(|extent| place(extent.start.get()));
    for _ in 0..DRAWN_PLACES {
        // Near the beginning as often as anywhere else: small images have their data there.
        let most = size.max(1) >> entropy.below(u64::BITS.into());
        place(entropy.below(most.max(1)));
    }
    for question in questions {
        if let Question::Read { start, length_bytes } = *question {
            visit(start, length_bytes);
        }
    }
}

/// Reads a range that may be compressed, or past the end of the disk. The answer may be an error: the read must only
/// end without a panic.
pub(super) fn read_any(
    disk: &mut TestedDisk,
    start: GuestOffset,
    length_bytes: u16,
    observer: &dyn Observer,
) {
    let mut bytes = [0; MAX_ANY_READ_BYTES];
    let length = usize::from(length_bytes).min(bytes.len());
    if let Err(error) = disk.read(start, &mut bytes[..length]) {
        observed::error(&error, observer);
    }
}
