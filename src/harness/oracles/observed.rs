//! The events of an engine's answers, for feedback, and the reads of a disk whose extents are not known: the engine has
//! no answer to walks, or its walk came to nothing. They judge nothing. A read must end, without a panic. The bytes are
//! not checked: damage may have changed them.

use smallvec::{SmallVec, smallvec};

use crate::disk::extent::Extent;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::EngineError;
use crate::harness::engine::tested::TestedDisk;
use crate::images::content::entropy::Entropy;
use crate::programs::Question;

/// Reports the extents of a whole walk. Each table of the disk maps `1 << span_bits` bytes.
pub fn extents(whole: &[Extent], span_bits: u32, observer: &dyn Observer) {
    if !observer.observes() {
        return;
    }
    observer.begin(State::Emit);
    observer.vital(Vital::Extents, whole.len() as u64);
    for extent in whole {
        let Extent { start, length_bytes, mapping } = extent;
        observer.event(State::Emit, mapping.event());
        observer.vital(Vital::Depth, u64::from(mapping.depth));
        // `partition` has checked that no extent is empty, and that none ends past 2^64.
        let last = start.get().saturating_add(length_bytes.saturating_sub(1));
        if mapping.present && start.get() >> span_bits != last >> span_bits {
            observer.rare(Rare::ExtentAcrossTables);
        }
    }
}

/// Reports the work of an engine while it opened an image and walked the disk: its reads, and the bytes that they
/// returned.
pub fn work(reads: u64, bytes: u64, observer: &dyn Observer) {
    observer.vital(Vital::Reads, reads);
    observer.vital(Vital::ReadBytes, bytes);
}

/// Reports that the engine opens a damaged image, or why it does not. Returns the disk, if it does.
pub fn opened<D>(answer: Result<D, EngineError>, observer: &dyn Observer) -> Option<D> {
    observer.begin(State::Check);
    match answer {
        Ok(disk) => Some(disk),
        Err(refused) => {
            observer.event(State::Check, Event::Failed);
            error(&refused, observer);
            None
        }
    }
}

/// Reports an error of the engine about a damaged image.
pub fn error(error: &EngineError, observer: &dyn Observer) {
    if observer.observes() {
        observer.reason(&error.to_string());
    }
}

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
pub(super) fn read_places(
    disk: &mut TestedDisk,
    (expected, questions): (&[Extent], &[Question]),
    entropy: &mut Entropy,
    observer: &dyn Observer,
) {
    let places = places(disk.virtual_size_bytes(), (expected, questions), entropy);
    for (start, length_bytes) in &places {
        observer.event(State::Check, Event::Read);
        read_any(disk, *start, *length_bytes, observer);
    }
    let others = questions.iter().filter(|it| !matches!(it, Question::Read { .. })).count();
    observer.vital(Vital::Questions, (places.len() + others) as u64);
}

/// The number of places for which no list is allocated.
const USUAL_PLACES: usize = 32;

/// Returns the places of [`read_places`] on a disk of `size` bytes, and the number of bytes at each.
pub(super) fn places(
    size: u64,
    (expected, questions): (&[Extent], &[Question]),
    entropy: &mut Entropy,
) -> SmallVec<[(GuestOffset, u16); USUAL_PLACES]> {
    let stored = expected.iter().filter(|extent| extent.mapping.data).take(MAX_EXPECTED_PLACES);
    let mut places: SmallVec<[u64; USUAL_PLACES]> =
        smallvec![0, size.saturating_sub(PLACE_BYTES.into())];
    places.extend(stored.map(|extent| extent.start.get()));
    places.extend((0..DRAWN_PLACES).map(|_| {
        // Near the beginning as often as anywhere else: small images have their data there.
        let most = size.max(1) >> entropy.below(u64::BITS.into());
        entropy.below(most.max(1))
    }));
    let asked = questions.iter().filter_map(|question| match *question {
        Question::Read { start, length_bytes } => Some((start, length_bytes)),
        _ => None,
    });
    places.into_iter().map(|at| (GuestOffset::new(at), PLACE_BYTES)).chain(asked).collect()
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
    if let Err(failed) = disk.read(start, &mut bytes[..length]) {
        error(&failed, observer);
    }
}
