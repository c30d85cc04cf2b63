//! Reads a disk whose extents are not known: the engine has no answer to walks, or its walk came to nothing. A read
//! must end, without a panic. Does not check the bytes: damage may have changed them.
//!
//! # Arithmetic
//! An offset that saturates lies past the end of the disk.

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, State, Vital};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::OpenDisk;
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
pub(super) fn read<O: Observer>(
    disk: &mut impl OpenDisk,
    (expected, questions): (&[Extent], &[Question]),
    entropy: &mut Entropy,
    observer: &O,
) {
    let size = disk.virtual_size_bytes();
    let stored = expected.iter().filter(|extent| extent.mapping.data).take(MAX_EXPECTED_PLACES);
    let mut places = 0;
    let mut read_at = |at: u64| {
        observer.event(State::Check, Event::Read);
        places += 1;
        read_any(disk, GuestOffset::new(at), PLACE_BYTES, observer);
    };
    read_at(0);
    read_at(size.saturating_sub(PLACE_BYTES.into()));
    stored.for_each(|extent| read_at(extent.start.get()));
    for _ in 0..DRAWN_PLACES {
        // Near the beginning as often as anywhere else: small images have their data there.
        let most = size.max(1) >> entropy.below(u64::BITS.into());
        read_at(entropy.below(most.max(1)));
    }
    observer.vital(Vital::Questions, places + questions.len() as u64);
    for question in questions {
        if let Question::Read { start, length_bytes } = *question {
            observer.event(State::Check, Event::Read);
            read_any(disk, start, length_bytes, observer);
        }
    }
}

/// Reads a range that may be compressed, or past the end of the disk. The answer may be an error: the read must only
/// end without a panic.
pub(super) fn read_any<O: Observer>(
    disk: &mut impl OpenDisk,
    start: GuestOffset,
    length_bytes: u16,
    observer: &O,
) {
    let mut bytes = [0; MAX_ANY_READ_BYTES];
    let length = usize::from(length_bytes).min(bytes.len());
    if let Err(error) = disk.read(start, &mut bytes[..length]) {
        observed::error(&error, observer);
    }
}
