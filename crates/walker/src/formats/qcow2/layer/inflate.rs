//! Inflates compressed clusters, only as far as the caller needs, and keeps the last inflated clusters in some MiB of
//! memory.

use std::fmt;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use crate::disk::error::StorageError;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::layer::ReadBuffers;
use crate::formats::qcow2::entry::CompressedRun;
use crate::formats::qcow2::geometry::{Compression, Geometry};

use super::kept::{KeptClusters, Known, PayloadLocation};

/// The reason why a cluster could not be inflated.
pub(crate) enum InflateError {
    Storage(StorageError),
    Payload(&'static str),
}

impl InflateError {
    /// Returns the error of the cluster at `guest`.
    pub(crate) fn at(self, guest: GuestOffset) -> MapError {
        match self {
            Self::Storage(error) => error.into(),
            Self::Payload(what) => MapError::Compressed { guest, what },
        }
    }
}

/// Decoders and their buffers, which are reused from cluster to cluster, and the last inflated clusters.
#[derive(Default)]
pub(crate) struct Inflater {
    input: Vec<u8>,
    deflate: Box<DecompressorOxide>,
    zstd: Option<DCtx<'static>>,
    kept: KeptClusters,
}

impl ReadBuffers for Inflater {
    fn forget(&mut self) {
        self.kept.forget();
    }
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflater").finish_non_exhaustive()
    }
}

/// log2 of the largest window for which zstd may keep a buffer: that of the largest cluster. Frames with a larger
/// window are inflated in one call, which needs no such buffer.
const ZSTD_WINDOW_LOG: u32 = 21;

impl Inflater {
    /// Returns the first `end` bytes of the cluster whose payload is `run`; `end` is at most a cluster.
    pub(crate) fn inflate<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        run: CompressedRun,
        end: usize,
    ) -> Result<&[u8], InflateError> {
        let cluster = geometry.cluster_size.bytes_usize();
        // A descriptor has no room for more than two clusters.
        let length = run.length_bytes().min(2 * cluster as u64) as usize;
        let Geometry { compression, .. } = *geometry;
        let payload = PayloadLocation { offset: run.offset, length, cluster, compression };
        let Self { input, kept, .. } = self;
        grow(input, length);
        let known = kept.find(&payload, end, |bytes| {
            let input = &mut input[..bytes.len()];
            storage.read_at(payload.offset, input).map_err(InflateError::Storage)?;
            Ok(input == bytes)
        })?;
        let Known { index, content_bytes } = match known {
            Some(known) => known,
            None => Known { index: kept.add(payload), content_bytes: 0 },
        };
        if content_bytes < end {
            // A guest that reads on has twice as much inflated each time, so that all its reads together inflate at
            // most twice the cluster. Damage behind the requested bytes must have no effect.
            let ahead = (2 * content_bytes).min(cluster);
            if ahead <= end || self.inflate_into(storage, &payload, index, ahead).is_err() {
                self.inflate_into(storage, &payload, index, end)?;
            }
        }
        Ok(&self.kept.content(index)[..end])
    }

    /// Inflates the first `end` bytes of a cluster into the entry at `index`.
    fn inflate_into<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        payload: &PayloadLocation,
        index: usize,
        end: usize,
    ) -> Result<(), InflateError> {
        let length = payload.length;
        let mut taken = if end == payload.cluster { length } else { first_taken(payload, end) };
        loop {
            let input = &mut self.input[..taken];
            storage.read_at(payload.offset, input).map_err(InflateError::Storage)?;
            match self.inflate_from(payload, index, taken, end) {
                Err(_) if taken < length => taken = (taken * READ_ON).min(length),
                Err(error) => {
                    self.kept.spoil(index);
                    return Err(error);
                }
                Ok(content_bytes) => {
                    self.kept.note(index, &self.input[..taken], content_bytes);
                    return Ok(());
                }
            }
        }
    }

    /// Inflates the first `end` bytes of a cluster, or more, from the first `taken` bytes of its payload. Returns how
    /// many bytes it inflated.
    fn inflate_from(
        &mut self,
        payload: &PayloadLocation,
        index: usize,
        taken: usize,
        end: usize,
    ) -> Result<usize, InflateError> {
        let cluster = payload.cluster;
        let input = &self.input[..taken];
        match payload.compression {
            Compression::Deflate => {
                let room = self.kept.room(index, end);
                deflate(&mut self.deflate, input, room, end == cluster)?;
                Ok(end)
            }
            Compression::Zstd => {
                let zstd = self.zstd.get_or_insert_with(DCtx::create);
                if end < cluster && zstd_prefix(zstd, input, self.kept.room(index, end)) {
                    return Ok(end);
                }
                zstd_whole(zstd, input, self.kept.room(index, cluster))?;
                Ok(cluster)
            }
        }
    }
}

/// Returns the number of payload bytes to read first for the first `end` bytes of the cluster: the number that stored
/// (uncompressed) content takes. If they do not suffice, the inflater reads [`READ_ON`] times as many, and so on.
fn first_taken(payload: &PayloadLocation, end: usize) -> usize {
    let header_bytes = match payload.compression {
        // The header of a stored block (RFC 1951 §3.2.4).
        Compression::Deflate => 5,
        // The headers of a frame with its content size and of a raw block (RFC 8878 §3.1.1).
        Compression::Zstd => 16,
    };
    (header_bytes + end).min(payload.length)
}

/// The factor by which each further attempt reads more. Each attempt inflates from the start.
const READ_ON: usize = 4;

fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}

/// Fills `output` and ignores the rest of the stream, as QEMU does (`block/qcow2-threads.c`, `qcow2_zlib_decompress`).
/// For a `whole` cluster, zlib decodes up to the first byte that has no room: a fault of the stream before that is an
/// error.
fn deflate(
    decoder: &mut DecompressorOxide,
    input: &[u8],
    output: &mut [u8],
    whole: bool,
) -> Result<(), InflateError> {
    decoder.init();
    let wanted = output.len();
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(decoder, input, output, 0, flags);
    if written != wanted {
        let what = "the deflate stream ends or breaks before the cluster is full";
        return Err(InflateError::Payload(what));
    }
    match status {
        TINFLStatus::Failed if whole => {
            Err(InflateError::Payload("the deflate stream breaks behind the cluster"))
        }
        _ => Ok(()),
    }
}

/// Fills `output`, the beginning of a cluster, without inflating the rest. Returns false if that takes more than one
/// frame or too large a window.
fn zstd_prefix(decoder: &mut DCtx<'static>, input: &[u8], output: &mut [u8]) -> bool {
    let wanted = output.len();
    let ready = decoder.reset(ResetDirective::SessionOnly).is_ok()
        && decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG)).is_ok();
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(output);
    while ready && output.pos() < wanted {
        let before = (input.pos(), output.pos());
        match decoder.decompress_stream(&mut output, &mut input) {
            // The frame has ended, or the decoder makes no progress.
            Ok(0) | Err(_) => break,
            Ok(_) if before == (input.pos(), output.pos()) => break,
            Ok(_) => {}
        }
    }
    output.pos() == wanted
}

/// Fills `output`, a whole cluster, from one or more frames. A frame with more content is an error, as in QEMU
/// (`block/qcow2-threads.c`, `qcow2_zstd_decompress`).
fn zstd_whole(
    decoder: &mut DCtx<'static>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), InflateError> {
    let broken = InflateError::Payload("no zstd frames that fill the cluster exactly");
    let (mut input, mut output) = (input, output);
    while !output.is_empty() {
        let Ok(frame_bytes) = zstd_safe::find_frame_compressed_size(input) else {
            return Err(broken);
        };
        let Some((frame, rest)) = input.split_at_checked(frame_bytes) else { return Err(broken) };
        if window_bytes(frame).is_some_and(|window| window > MAX_WINDOW_BYTES) {
            return Err(broken);
        }
        let Ok(written) = decoder.decompress(output, frame) else { return Err(broken) };
        output = &mut output[written..];
        input = rest;
    }
    Ok(())
}

/// The largest window for which zstd inflates a frame that does not state its content size, as in QEMU.
const MAX_WINDOW_BYTES: u64 = 1 << 27;

/// Returns the window of a frame that does not state its content size (RFC 8878 §3.1.1.1.2).
fn window_bytes(frame: &[u8]) -> Option<u64> {
    let Ok(None) = zstd_safe::get_frame_content_size(frame) else { return None };
    let descriptor = frame.get(5)?;
    let base = 1u64 << (10 + (descriptor >> 3));
    Some(base + base / 8 * u64::from(descriptor & 7))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::disk::clusters::ClusterSize;
    use crate::disk::offsets::HostOffset;
    use crate::formats::qcow2::geometry::Version;

    /// Pseudo-random numbers: Knuth's linear congruential generator (MMIX).
    struct Entropy(u64);

    impl Entropy {
        /// Returns a number below `bound`, which has at most 32 bits.
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 32) * bound) >> 32
        }
    }

    /// Returns the run of a payload of `length_bytes` at the beginning of a file.
    fn run_of(length_bytes: usize) -> CompressedRun {
        let additional_sectors = (length_bytes as u64).saturating_sub(1) / 512;
        CompressedRun { offset: HostOffset::ZERO, additional_sectors }
    }

    fn geometry(cluster_bits: u32, compression: Compression) -> Geometry {
        Geometry {
            version: Version::V3,
            cluster_size: ClusterSize::from_bits(cluster_bits).unwrap(),
            refcount_order: 4,
            extended_l2: false,
            compression,
            data_file: false,
        }
    }

    fn inflate(compression: Compression, payload: &[u8], end: usize) -> Option<Vec<u8>> {
        let geometry = geometry(12, compression);
        let run = run_of(payload.len());
        Inflater::default().inflate(payload, &geometry, run, end).ok().map(<[u8]>::to_vec)
    }

    #[test]
    fn deflate_is_cut_and_must_not_be_short() {
        let content: Vec<u8> = (0..8192u32).map(|n| (n / 7) as u8).collect();
        let longer = miniz_oxide::deflate::compress_to_vec(&content, 6);
        assert_eq!(inflate(Compression::Deflate, &longer, 4096).unwrap(), content[..4096]);
        assert_eq!(inflate(Compression::Deflate, &longer, 10).unwrap(), content[..10]);
        let shorter = miniz_oxide::deflate::compress_to_vec(&content[..4095], 6);
        assert!(inflate(Compression::Deflate, &shorter, 4096).is_none());
        assert_eq!(inflate(Compression::Deflate, &shorter, 100).unwrap(), content[..100]);
        assert!(inflate(Compression::Deflate, &[0xFF; 64], 1).is_none());
    }

    #[test]
    fn damage_behind_deflated_content_breaks_only_whole_clusters() {
        let content = [7; 4096];
        let mut stream = miniz_oxide::deflate::compress_to_vec(&content, 0);
        // One stored block, no longer the last one, and then a block of an invalid type.
        stream[0] = 0;
        stream.extend([0b111, 0, 0]);
        assert_eq!(inflate(Compression::Deflate, &stream, 4095).unwrap(), content[..4095]);
        assert!(inflate(Compression::Deflate, &stream, 4096).is_none());
        // Bytes behind the end do not belong to the stream.
        stream[0] = 1;
        assert_eq!(inflate(Compression::Deflate, &stream, 4096).unwrap(), content);
    }

    #[test]
    fn zstd_windows_are_bounded_without_a_content_size() {
        let framed = |window_log: u8, sized: bool| {
            let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, if sized { 0x80 } else { 0 }];
            frame.push((window_log - 10) << 3);
            if sized {
                frame.extend(4096u32.to_le_bytes());
            }
            // One RLE block, the last.
            frame.extend(&(4096u32 << 3 | 0b011).to_le_bytes()[..3]);
            frame.push(b'r');
            frame
        };
        let read = |window_log, sized| inflate(Compression::Zstd, &framed(window_log, sized), 4096);
        for (window_log, sized) in [(12, false), (21, false), (23, false), (27, false), (31, true)]
        {
            assert_eq!(read(window_log, sized).unwrap(), [b'r'; 4096], "{window_log} {sized}");
        }
        assert!(read(28, false).is_none());
        assert!(read(31, false).is_none());
    }

    #[test]
    fn zstd_frames_must_fill_the_cluster_exactly() {
        let content: Vec<u8> = (0..8192u32).map(|n| (n / 7) as u8).collect();
        let frame = |bytes: &[u8]| {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
            zstd_safe::compress(&mut out, bytes, 3).unwrap();
            out
        };
        let exact = frame(&content[..4096]);
        assert_eq!(inflate(Compression::Zstd, &exact, 4096).unwrap(), content[..4096]);
        assert_eq!(inflate(Compression::Zstd, &exact, 10).unwrap(), content[..10]);
        let two = [frame(&content[..1000]), frame(&content[1000..4096])].concat();
        assert_eq!(inflate(Compression::Zstd, &two, 4096).unwrap(), content[..4096]);
        assert_eq!(inflate(Compression::Zstd, &two, 1500).unwrap(), content[..1500]);
        assert!(inflate(Compression::Zstd, &frame(&content), 4096).is_none());
        assert!(inflate(Compression::Zstd, &frame(&content[..4095]), 4096).is_none());
        assert!(inflate(Compression::Zstd, &[7; 64], 16).is_none());
    }

    /// An inflater that keeps clusters returns the same bytes as one that keeps none, for reads in any order from
    /// several files in turn.
    #[test]
    fn kept_clusters_are_never_out_of_date() {
        let mut entropy = Entropy(5);
        let content = |step: u32| (0..65536u32).map(|n| (n / step % 251) as u8).collect::<Vec<_>>();
        let files: Vec<(Compression, Vec<u8>)> = (1..=40)
            .map(|step| match step % 2 {
                0 => {
                    let mut frame = Vec::with_capacity(1 << 17);
                    zstd_safe::compress(&mut frame, &content(step), 3).unwrap();
                    (Compression::Zstd, frame)
                }
                _ => {
                    (Compression::Deflate, miniz_oxide::deflate::compress_to_vec(&content(step), 6))
                }
            })
            .collect();
        let mut inflater = Inflater::default();
        let mut failed = 0;
        for _ in 0..1000 {
            let (compression, file) = &files[entropy.below(files.len() as u64) as usize];
            let mut file = file.clone();
            if entropy.below(4) == 0 {
                // The file changes between the reads.
                let at = entropy.below(file.len() as u64) as usize;
                file[at] ^= 1 << entropy.below(8);
            }
            // The file is longer than the payloads: all descriptors name the same offset and length.
            file.resize(1 << 15, 0);
            let run = run_of(file.len());
            let end = match entropy.below(4) {
                0 => 16,
                1 => 1 << 16,
                _ => 1 + entropy.below(1 << 16) as usize,
            };
            let geometry = geometry(16, *compression);
            let mut fresh = Inflater::default();
            let fresh = fresh.inflate(file.as_slice(), &geometry, run, end);
            let kept = inflater.inflate(file.as_slice(), &geometry, run, end);
            failed += usize::from(fresh.is_err());
            assert_eq!(kept.ok(), fresh.ok());
        }
        assert!((20..400).contains(&failed), "{failed}");
    }

    /// A storage that counts its reads. Each attempt to inflate makes one, and so does the comparison with a kept
    /// payload.
    struct CountingStorage(Vec<u8>, Cell<u32>);
    impl Storage for CountingStorage {
        fn length_bytes(&self) -> u64 {
            self.0.as_slice().length_bytes()
        }
        fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
            self.1.set(self.1.get() + 1);
            self.0.as_slice().read_at(offset, into)
        }
    }

    #[test]
    fn a_cluster_is_inflated_once_until_it_is_forgotten() {
        let geometry = geometry(12, Compression::Deflate);
        let content: Vec<u8> = (0..4096u32).map(|n| (n * n / 7) as u8).collect();
        let file =
            CountingStorage(miniz_oxide::deflate::compress_to_vec(&content, 6), Cell::new(0));
        let run = run_of(file.0.len());
        let mut inflater = Inflater::default();
        let reads_of = |inflater: &mut Inflater, end| {
            assert_eq!(inflater.inflate(&file, &geometry, run, end).ok(), Some(&content[..end]));
            file.1.replace(0)
        };
        let first = reads_of(&mut inflater, 40);
        assert!(first > 1, "{first}");
        assert_eq!(reads_of(&mut inflater, 40), 1);
        assert_eq!(reads_of(&mut inflater, 7), 1);
        // Pieces of 40 bytes. The inflater doubles its output each time, so that most pieces are kept already.
        let pieces = (80..=4096).step_by(40);
        let (count, reads) = pieces
            .map(|end| reads_of(&mut inflater, end))
            .fold((0, 0), |(n, sum), one| (n + 1, sum + one));
        assert!(reads < count + 30, "{reads} reads for {count} pieces");
        inflater.forget();
        assert_eq!(reads_of(&mut inflater, 40), first);
    }

    /// The reads of a file are coverage, so they must not depend on the disks that an inflater has read before.
    #[test]
    fn earlier_disks_change_no_reads() {
        // Reads some clusters, each from a file of its own, then the beginning of each again. Returns the number of
        // reads: to inflate such a beginning takes more than one.
        let reads_of = |inflater: &mut Inflater, cluster_bits: u32, clusters: u32| {
            let geometry = geometry(cluster_bits, Compression::Deflate);
            let payload = |step: u32| {
                let content = (0..1u32 << cluster_bits).map(|n| (n.min(4096).pow(2) / step) as u8);
                miniz_oxide::deflate::compress_to_vec(&content.collect::<Vec<_>>(), 6)
            };
            let files = (7..7 + clusters).map(payload).map(|it| CountingStorage(it, Cell::new(0)));
            let files: Vec<_> = files.collect();
            for end in [1 << cluster_bits, 40] {
                for file in &files {
                    let run = run_of(file.0.len());
                    assert!(inflater.inflate(file, &geometry, run, end).is_ok());
                }
            }
            files.iter().map(|file| file.1.get()).sum::<u32>()
        };
        let mut inflater = Inflater::default();
        // Seven clusters of 512 KiB are kept, ten are too many.
        for clusters in [7, 10] {
            reads_of(&mut inflater, 21, 2);
            inflater.forget();
            let fresh = reads_of(&mut Inflater::default(), 19, clusters);
            assert_eq!(reads_of(&mut inflater, 19, clusters), fresh);
            inflater.forget();
        }
    }
}
