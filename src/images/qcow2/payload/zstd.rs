//! Payloads of zstd (RFC 8878).

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, Strategy};

use crate::images::content::STAMP_BYTES;

use super::coding::{Coding, Content};

const FRAME_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// A skippable frame with five bytes.
const SKIPPED: [u8; 13] = [0x50, 0x2A, 0x4D, 0x18, 5, 0, 0, 0, b'q', b'c', b'o', b'w', b'2'];
/// The highest ordinary level. It uses the lazy strategy: in the C code of the optimal parser, which level 19 would
/// use, a build with ASan reports a stack variable out of its scope, and ends. The blocks are of the same kinds.
const HIGH_LEVEL: i32 = 19;
/// The length of the largest block.
const BLOCK_BYTES: usize = 128 << 10;

/// The content size in a frame's header.
enum Sized {
    /// The content size, in eight bytes; a single segment.
    InEight(usize),
    /// The content size, in the smallest field that holds it; a single segment.
    InSmallest(usize),
    /// No content size; a window with this binary logarithm.
    Window(u32),
}

/// Returns the payload of a cluster, and the offset of its stamp.
pub(super) fn payload(content: &Content, coding: Coding) -> (Vec<u8>, usize) {
    let rest = content.rest;
    let cluster = content.cluster_bytes();
    let one_frame = |sized| begin(&sized, false);
    let frame = match coding {
        Coding::Usual | Coding::Longer | Coding::Trailing | Coding::Largest => {
            one_frame(Sized::InEight(cluster))
        }
        Coding::Stored | Coding::Fixed | Coding::Quick | Coding::Dynamic => {
            one_frame(Sized::InSmallest(cluster))
        }
        // RFC 8878 recommends that decoders support windows of 8 MiB. For larger clusters, the window is not larger
        // than a reader has to keep; otherwise the loop would inflate them whole.
        Coding::Window if cluster <= 64 << 10 => one_frame(Sized::Window(23)),
        Coding::Window => one_frame(Sized::Window(21)),
        Coding::Pieces | Coding::Ended => begin(&Sized::InSmallest(STAMP_BYTES), true),
    };
    let (mut bytes, stamp_at) = frame;
    match coding {
        Coding::Usual | Coding::Trailing | Coding::Largest | Coding::Window => {
            bytes.extend(blocks_of(&frame_of(rest, 3, false)));
        }
        Coding::Stored => {
            let mut blocks = rest.chunks(BLOCK_BYTES).peekable();
            while let Some(block) = blocks.next() {
                raw_block(block, blocks.peek().is_none(), &mut bytes);
            }
        }
        Coding::Fixed => runs(rest, &mut bytes),
        Coding::Quick => bytes.extend(blocks_of(&frame_of(rest, 1, false))),
        Coding::Dynamic => bytes.extend(blocks_of(&frame_of(rest, HIGH_LEVEL, false))),
        Coding::Longer => {
            bytes.extend(blocks_of(&frame_of(rest, 3, false)));
            bytes.extend(frame_of(&vec![b'!'; cluster], 3, false));
        }
        Coding::Pieces => pieces(content, &mut bytes),
        Coding::Ended => bytes.extend(frame_of(rest, 3, true)),
    }
    (bytes, stamp_at)
}

/// Returns a payload made of `bytes`, the offset of its stamp, and its content behind the stamp, at most `room` bytes
/// long. Zeros fill the cluster of `cluster_bytes`.
///
/// The bytes are read as blocks. A block becomes a block of the frame with as many bytes as there are. If it is
/// compressed and zstd does not decompress it, or if its type has no meaning, it becomes a raw block.
pub(super) fn given(bytes: &[u8], room: usize, cluster_bytes: usize) -> (Vec<u8>, usize, Vec<u8>) {
    // The window is as long as the cluster, but at least as long as a block, and at most 2 MiB.
    let (mut out, stamp_at) = begin(&Sized::Window(cluster_bytes.ilog2().clamp(17, 21)), false);
    let (mut content, mut left, mut tries) = (Vec::new(), bytes, GIVEN_COMPRESSED_BLOCKS);
    while let Some((header, behind)) = left.split_at_checked(3)
        && content.len() < room
    {
        let header = header.iter().rev().fold(0u32, |header, byte| header << 8 | u32::from(*byte));
        let (kind, size) = (header >> 1 & 0b11, (header >> 3) as usize);
        let there = size.min(behind.len()).min(BLOCK_BYTES);
        let unwritten = room - content.len();
        match (kind, behind) {
            (1, [byte, behind @ ..]) => {
                let times = size.min(unwritten).min(BLOCK_BYTES);
                if times > 0 {
                    block(1, times, &[*byte], false, &mut out);
                }
                content.extend(std::iter::repeat_n(*byte, times));
                left = behind;
            }
            (2, _) if tries > 0 => {
                tries -= 1;
                let block_content = behind.get(..there).unwrap_or_default();
                match inflated(
                    &out,
                    stamp_at,
                    block_content,
                    STAMP_BYTES + content.len(),
                    unwritten,
                ) {
                    Some(more) => {
                        block(2, there, block_content, false, &mut out);
                        content.extend(more);
                    }
                    None => raw_part(block_content, unwritten, &mut out, &mut content),
                }
                left = behind.get(there..).unwrap_or_default();
            }
            _ => {
                raw_part(
                    behind.get(..there).unwrap_or_default(),
                    unwritten,
                    &mut out,
                    &mut content,
                );
                left = behind.get(there..).unwrap_or_default();
            }
        }
    }
    let zeros = cluster_bytes - STAMP_BYTES - content.len();
    for at in (0..zeros).step_by(BLOCK_BYTES) {
        let times = (zeros - at).min(BLOCK_BYTES);
        block(1, times, &[0], false, &mut out);
    }
    // An empty raw block is the last one.
    raw_block(&[], true, &mut out);
    (out, stamp_at, content)
}

/// The number of compressed blocks that a payload made of given bytes may have. Each is decompressed to find out
/// whether it is valid.
const GIVEN_COMPRESSED_BLOCKS: usize = 4;

/// Appends at most `room` bytes as a raw block.
fn raw_part(bytes: &[u8], room: usize, out: &mut Vec<u8>, content: &mut Vec<u8>) {
    let bytes = bytes.get(..room).unwrap_or(bytes);
    if !bytes.is_empty() {
        raw_block(bytes, false, out);
    }
    content.extend_from_slice(bytes);
}

/// Returns the content of a compressed block behind a frame that is not complete and has a content of `before` bytes,
/// beginning with the stamp at `stamp_at`. Returns `None` if the block is not valid, if its content is longer than
/// `room` bytes, or if it depends on the stamp, which is written later.
fn inflated(
    frame: &[u8],
    stamp_at: usize,
    block_content: &[u8],
    before: usize,
    room: usize,
) -> Option<Vec<u8>> {
    thread_local! {
        static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
    }
    let mut frame = frame.to_vec();
    block(2, block_content.len(), block_content, true, &mut frame);
    let mut with_stamp = |byte| {
        frame.get_mut(stamp_at..)?.get_mut(..STAMP_BYTES)?.fill(byte);
        let mut content = Vec::with_capacity(before + room);
        CONTEXT.with_borrow_mut(|context| context.decompress(&mut content, &frame)).ok()?;
        let fits = content.len() <= before + room;
        (fits && content.len() > before).then(|| content.split_off(before))
    };
    let [one, other] = [0, !0].map(&mut with_stamp);
    one.filter(|one| other.as_ref() == Some(one))
}

/// Returns a frame's header and a raw block with room for the stamp, and the offset of that room.
fn begin(sized: &Sized, last: bool) -> (Vec<u8>, usize) {
    let mut bytes = FRAME_MAGIC.to_vec();
    match *sized {
        Sized::InEight(length) => {
            bytes.push(0b1110_0000);
            bytes.extend((length as u64).to_le_bytes());
        }
        Sized::InSmallest(length @ 0..256) => bytes.extend([0b0010_0000, length as u8]),
        Sized::InSmallest(length @ 256..65_792) => {
            bytes.push(0b0110_0000);
            bytes.extend(((length - 256) as u16).to_le_bytes());
        }
        Sized::InSmallest(length) => {
            bytes.push(0b1010_0000);
            bytes.extend((length as u32).to_le_bytes());
        }
        Sized::Window(log) => bytes.extend([0, ((log - 10) << 3) as u8]),
    }
    raw_block(&[0; STAMP_BYTES], last, &mut bytes);
    let stamp_at = bytes.len() - STAMP_BYTES;
    (bytes, stamp_at)
}

/// Appends a raw block, or an RLE block of one byte.
fn block(kind: u32, size: usize, content: &[u8], last: bool, out: &mut Vec<u8>) {
    let header = (size as u32) << 3 | kind << 1 | u32::from(last);
    out.extend(&header.to_le_bytes()[..3]);
    out.extend(content);
}

fn raw_block(content: &[u8], last: bool, out: &mut Vec<u8>) {
    block(0, content.len(), content, last, out);
}

/// Appends `rest` as raw blocks, and as RLE blocks if a byte repeats.
fn runs(rest: &[u8], out: &mut Vec<u8>) {
    /// The shortest run of a byte that is worth a block.
    const RUN_BYTES: usize = 64;
    let mut blocks: Vec<(bool, &[u8])> = Vec::new();
    let mut left = rest;
    while !left.is_empty() {
        let run = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == bytes[0]).count();
        let plain = (0..left.len())
            .find(|at| run(&left[*at..(at + RUN_BYTES).min(left.len())]) == RUN_BYTES)
            .unwrap_or(left.len());
        let (raw, behind) = left.split_at(plain);
        let repeated = if behind.is_empty() { 0 } else { run(behind) };
        let (repeated, behind) = behind.split_at(repeated);
        blocks.extend(raw.chunks(BLOCK_BYTES).map(|block| (false, block)));
        blocks.extend(repeated.chunks(BLOCK_BYTES).map(|block| (true, block)));
        left = behind;
    }
    let count = blocks.len();
    for (at, (repeated, content)) in blocks.into_iter().enumerate() {
        match repeated {
            true => block(1, content.len(), &content[..1], at + 1 == count, out),
            false => raw_block(content, at + 1 == count, out),
        }
    }
}

/// Appends frames of several levels, among them an empty one and a skippable one.
fn pieces(content: &Content, out: &mut Vec<u8>) {
    let (filled, zeros) = content.parts();
    out.extend(SKIPPED);
    for (piece, level) in filled.chunks(filled.len().div_ceil(3).max(1)).zip([1, HIGH_LEVEL, 3]) {
        out.extend(frame_of(piece, level, false));
        out.extend(frame_of(&[], 1, false));
    }
    if !zeros.is_empty() {
        out.extend(frame_of(zeros, 1, true));
    }
}

/// Returns `content` as one frame of the zstd library, with its content size.
fn frame_of(content: &[u8], level: i32, checksum: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    // This cannot fail: the level exists, the flag exists, and the buffer has the size that zstd asks for.
    if !checksum && level < HIGH_LEVEL {
        let _ = zstd_safe::compress(&mut out, content, level);
        return out;
    }
    let mut context = CCtx::create();
    let _ = context.set_parameter(CParameter::CompressionLevel(level));
    let _ = context.set_parameter(CParameter::ChecksumFlag(checksum));
    if level == HIGH_LEVEL {
        let _ = context.set_parameter(CParameter::Strategy(Strategy::ZSTD_btlazy2));
    }
    let _ = context.compress2(&mut out, content);
    out
}

/// Returns the blocks after a frame's header (RFC 8878 §3.1.1.1).
fn blocks_of(frame: &[u8]) -> &[u8] {
    let descriptor = frame.get(4).copied().unwrap_or(0);
    let single_segment = descriptor & 0b10_0000 != 0;
    let window = usize::from(!single_segment);
    let content_size = match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 0b11)];
    &frame[5 + window + dictionary + content_size..]
}

/// Returns the blocks of `content`, which the library compresses.
#[cfg(test)]
pub(super) fn blocks_of_level(content: &[u8], level: i32) -> Vec<u8> {
    blocks_of(&frame_of(content, level, false)).to_vec()
}
