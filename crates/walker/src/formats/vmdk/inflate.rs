//! Inflates compressed grains, in pieces: a grain may have 1 GiB.
//!
//! # Arithmetic
//! A payload that passes 2^64 lies past the end of every file, where all bytes are zeros.

use std::fmt;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_COMPUTE_ADLER32, TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_PARSE_ZLIB_HEADER,
    TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use crate::disk::error::StorageError;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::GRAIN_MARKER_BYTES;

/// The place of a compressed grain.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredGrain {
    /// The host offset of its marker, or of the zlib stream if it has none.
    pub(super) offset: HostOffset,
    pub(super) has_marker: bool,
    /// The length of the grain.
    pub(super) bytes: u64,
}

/// The reason why a grain could not be inflated.
pub(super) enum PayloadError {
    Storage(StorageError),
    Payload(&'static str),
}

impl From<StorageError> for PayloadError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl PayloadError {
    /// Returns the error of the grain at `guest`.
    pub(super) fn at(self, guest: GuestOffset) -> MapError {
        match self {
            Self::Storage(error) => error.into(),
            Self::Payload(what) => MapError::Grain { guest, what },
        }
    }
}

/// The number of bytes to which a zlib stream can refer back.
const WINDOW_BYTES: usize = 32 << 10;

/// A decoder and its buffers, which are reused from grain to grain. The first grain allocates them.
#[derive(Default)]
pub(crate) struct ZlibInflater {
    decoder: Option<Box<DecompressorOxide>>,
    input: Vec<u8>,
    window: Vec<u8>,
}

impl fmt::Debug for ZlibInflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZlibInflater").finish_non_exhaustive()
    }
}

impl ZlibInflater {
    /// Fills `into` with the bytes of a grain from `skipped` on. As in QEMU (`block/vmdk.c`, `vmdk_read_extent`), the
    /// whole stream must be valid and inflate to at most a grain. It may be shorter than a grain.
    pub(super) fn inflate<S: Storage + ?Sized>(
        &mut self,
        file: &S,
        grain: StoredGrain,
        skipped: u64,
        into: &mut [u8],
    ) -> Result<(), PayloadError> {
        let (mut at, mut left) = payload(file, grain)?;
        self.input.resize(PIECE_BYTES, 0);
        self.window.resize(WINDOW_BYTES, 0);
        let decoder = self.decoder.get_or_insert_default();
        decoder.init();
        let (mut input, mut written) = (0..0, 0u64);
        loop {
            if input.is_empty() && left > 0 {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                input = 0..length;
                file.read_at(at, self.input.get_mut(..length).unwrap_or_default())?;
                (at, left) = (at + length as u64, left - length as u64);
            }
            let mut flags = TINFL_FLAG_PARSE_ZLIB_HEADER | TINFL_FLAG_COMPUTE_ADLER32;
            if left > 0 {
                flags |= TINFL_FLAG_HAS_MORE_INPUT;
            }
            // In the first window, a reference to bytes before the stream is an error.
            if written < WINDOW_BYTES as u64 {
                flags |= TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            }
            let bytes = self.input.get(input.clone()).unwrap_or_default();
            // The remainder fits.
            let room = usize::try_from(written % WINDOW_BYTES as u64).unwrap_or(0);
            let (status, taken, count) = decompress(decoder, bytes, &mut self.window, room, flags);
            input.start += taken;
            copy(self.window.get(room..).unwrap_or_default(), count, written, skipped, into);
            written = written.saturating_add(count as u64);
            if written > grain.bytes {
                return Err(PayloadError::Payload("the zlib stream is longer than the grain"));
            }
            match status {
                TINFLStatus::Done => break,
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if left > 0 => {}
                _ => return Err(PayloadError::Payload("the zlib stream is damaged or incomplete")),
            }
        }
        match written >= skipped.saturating_add(into.len() as u64) {
            true => Ok(()),
            false => Err(PayloadError::Payload("the zlib stream ends before the requested bytes")),
        }
    }
}

/// Returns the host offset of the stream, and the largest number of bytes that it may have.
fn payload<S: Storage + ?Sized>(
    file: &S,
    grain: StoredGrain,
) -> Result<(HostOffset, u64), PayloadError> {
    if !grain.has_marker {
        return Ok((grain.offset, grain.bytes));
    }
    let mut marker = [0; GRAIN_MARKER_BYTES as usize];
    file.read_at(grain.offset, &mut marker)?;
    // The guest sector precedes the length.
    let [.., a, b, c, d] = marker;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    match (1..=grain.bytes * 2).contains(&length) {
        true => Ok((grain.offset + GRAIN_MARKER_BYTES, length)),
        false => Err(PayloadError::Payload(
            "the length in its marker is 0, or more than that of two grains",
        )),
    }
}

/// Copies the first `count` bytes of `inflated`, which begin at `at` in the grain, to `into`, which begins at
/// `skipped`.
fn copy(inflated: &[u8], count: usize, at: u64, skipped: u64, into: &mut [u8]) {
    let before = usize::try_from(skipped.saturating_sub(at)).unwrap_or(usize::MAX);
    let behind = usize::try_from(at.saturating_sub(skipped)).unwrap_or(usize::MAX);
    let from = inflated.get(..count).unwrap_or_default().get(before..).unwrap_or_default();
    let room = into.get_mut(behind..).unwrap_or_default();
    room.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes of a grain, which is stored at the beginning of a file.
    fn inflate(
        file: &[u8],
        has_marker: bool,
        bytes: u64,
        skipped: u64,
        count: usize,
    ) -> Option<Vec<u8>> {
        let grain = StoredGrain { offset: HostOffset::ZERO, has_marker, bytes };
        let mut into = vec![0xa5; count];
        let inflated = ZlibInflater::default().inflate(file, grain, skipped, &mut into);
        inflated.is_ok().then_some(into)
    }

    fn content(length: usize) -> Vec<u8> {
        let mut state = 7u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Some bytes repeat, and some distances are long.
            if state >> 28 > 3 { (state >> 24) as u8 } else { 0 }
        };
        (0..length).map(next).collect()
    }

    #[test]
    fn all_parts_of_a_grain_are_inflated() {
        let content = content(200_000);
        let stream = miniz_oxide::deflate::compress_to_vec_zlib(&content, 6);
        assert!(stream.len() > PIECE_BYTES);
        for (skipped, count) in [(0, 200_000), (0, 1), (32_767, 2), (32_768, 65_536), (199_999, 1)]
        {
            let part = inflate(&stream, false, 1 << 20, skipped, count);
            assert_eq!(part.as_deref(), Some(&content[skipped as usize..][..count]), "{skipped}");
        }
        assert_eq!(inflate(&stream, false, 1 << 20, 199_999, 2), None);
        assert!(inflate(&stream, false, 200_000, 0, 1).is_some());
        assert!(inflate(&stream, false, 199_999, 0, 1).is_none());
    }

    #[test]
    fn the_whole_stream_counts() {
        let stream = miniz_oxide::deflate::compress_to_vec_zlib(&content(65_536), 6);
        let raw = miniz_oxide::deflate::compress_to_vec(&content(65_536), 6);
        assert!(inflate(&stream, false, 65_536, 0, 1).is_some());
        assert!(inflate(&raw, false, 65_536, 0, 1).is_none());
        // The checksum is the end of the stream.
        for at in [0, 1, stream.len() - 1] {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(inflate(&damaged, false, 65_536, 0, 1).is_none(), "{at}");
        }
        assert!(inflate(&stream[..stream.len() - 1], false, 65_536, 0, 1).is_none());
        assert!(inflate(&[stream, vec![0xff; 9]].concat(), false, 65_536, 0, 1).is_some());
    }

    #[test]
    fn references_before_the_stream_are_errors() {
        // A block of the fixed code: a literal, and three bytes from the distance 2.
        let stream = [0x78, 0x01, 0x4b, 0x04, 0x22, 0x00];
        assert!(inflate(&stream, false, 4096, 0, 1).is_none());
    }

    #[test]
    fn the_marker_states_the_length_of_the_stream() {
        let content = content(1000);
        let stream = miniz_oxide::deflate::compress_to_vec_zlib(&content, 6);
        let marked = |length: u32| {
            let marker = [&[9; 8][..], &length.to_le_bytes()].concat();
            inflate(&[marker, stream.clone()].concat(), true, 1024, 0, 1000)
        };
        assert_eq!(marked(stream.len() as u32), Some(content.clone()));
        assert_eq!(marked(2048), Some(content.clone()));
        assert!(marked(0).is_none() && marked(2049).is_none());
        assert!(marked(stream.len() as u32 - 1).is_none());
    }
}
