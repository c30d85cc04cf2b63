//! Payloads of raw deflate (RFC 1951).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};

use crate::images::content::{MAX_DISTANCE, STAMP_BYTES};

use super::coding::{Coding, Content};
use super::deflate_from_bytes;
use super::deflate_from_bytes::BitWriter;

/// The numbers of zlib's strategies in miniz.
const DEFAULT_STRATEGY: i32 = 0;
const FIXED_CODES: i32 = 4;

/// An empty stored block that is not the last, as a flush leaves it.
const FLUSH: [u8; 5] = [0, 0, 0, 0xFF, 0xFF];
/// An empty block of fixed codes that is the last.
const EMPTY_LAST: [u8; 2] = [3, 0];

/// Returns the payload of a cluster, and the offset of its stamp.
pub(super) fn payload(content: &Content, coding: Coding) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    stored_block(&[0; STAMP_BYTES], false, &mut bytes);
    let stamp_at = bytes.len() - STAMP_BYTES;
    let (filled, zeros) = content.parts();
    let out = &mut bytes;
    let mut in_two = |level, strategy| {
        part(level, strategy, filled, TDEFLFlush::Full, out);
        zeros_part(strategy, zeros.len(), TDEFLFlush::Finish, out);
    };
    match coding {
        Coding::Usual | Coding::Trailing | Coding::Largest => in_two(6, DEFAULT_STRATEGY),
        Coding::Fixed => in_two(6, FIXED_CODES),
        Coding::Quick => in_two(1, DEFAULT_STRATEGY),
        Coding::Dynamic => in_two(9, DEFAULT_STRATEGY),
        Coding::Stored => {
            let mut blocks = content.rest.chunks(usize::from(u16::MAX)).peekable();
            while let Some(block) = blocks.next() {
                stored_block(block, blocks.peek().is_none(), out);
            }
        }
        Coding::Window => far_matches(content.rest, out),
        Coding::Longer => {
            part(6, DEFAULT_STRATEGY, filled, TDEFLFlush::Full, out);
            // The stream contains another cluster of zeros, which the reader cuts.
            let mut longer = zeros.to_vec();
            longer.resize(zeros.len() + content.cluster_bytes(), b'!');
            part(1, DEFAULT_STRATEGY, &longer, TDEFLFlush::Finish, out);
        }
        Coding::Pieces => pieces(filled, zeros.len(), out),
        Coding::Ended => {
            part(6, DEFAULT_STRATEGY, filled, TDEFLFlush::Full, out);
            zeros_part(DEFAULT_STRATEGY, zeros.len(), TDEFLFlush::Full, out);
            out.extend(EMPTY_LAST);
        }
    }
    (bytes, stamp_at)
}

/// Appends `content` as blocks that end at a byte boundary.
fn part(level: i32, strategy: i32, content: &[u8], flush: TDEFLFlush, out: &mut Vec<u8>) {
    let flags = create_comp_flags_from_zip_params(level, -15, strategy);
    let mut stream = CompressorOxide::new(flags);
    // The callback takes every piece, so the stream cannot stop.
    compress_to_output(&mut stream, content, flush, |piece| {
        out.extend_from_slice(piece);
        true
    });
}

/// Appends `length` zeros, for which the fastest level is as good as any. Most of a large cluster is zeros in nearly
/// all payloads, so the process compresses them once.
fn zeros_part(strategy: i32, length: usize, flush: TDEFLFlush, out: &mut Vec<u8>) {
    type Made = BTreeMap<(i32, usize, bool), Vec<u8>>;
    static MADE: Mutex<Made> = Mutex::new(Made::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let part = made.entry((strategy, length, flush == TDEFLFlush::Finish)).or_insert_with(|| {
        let mut bytes = Vec::new();
        part(1, strategy, &vec![0; length], flush, &mut bytes);
        bytes
    });
    out.extend_from_slice(part);
}

/// Appends a stored block of at most 65,535 bytes. The stream must be at a byte boundary.
fn stored_block(content: &[u8], last: bool, out: &mut Vec<u8>) {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    out.push(u8::from(last));
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(content);
}

/// Appends blocks of every kind in turn, each followed by a flush.
fn pieces(filled: &[u8], zeros: usize, out: &mut Vec<u8>) {
    out.extend(FLUSH);
    for (turn, piece) in filled.chunks(filled.len().div_ceil(7).max(1)).enumerate() {
        match turn % 4 {
            0 => stored_block(piece, false, out),
            1 => part(6, FIXED_CODES, piece, TDEFLFlush::Full, out),
            2 => part(9, DEFAULT_STRATEGY, piece, TDEFLFlush::Full, out),
            _ => part(1, DEFAULT_STRATEGY, piece, TDEFLFlush::Sync, out),
        }
        out.extend(FLUSH);
    }
    zeros_part(DEFAULT_STRATEGY, zeros, TDEFLFlush::Finish, out);
}

/// Appends `rest` as one block of fixed codes with matches from as far back as possible. No match includes the stamp
/// before it.
fn far_matches(rest: &[u8], out: &mut Vec<u8>) {
    let mut bits = BitWriter::new(out);
    // The last block, fixed codes.
    bits.put(0b011, 3);
    let mut at = 0;
    while at < rest.len() {
        let alike = |distance: usize| {
            let pairs = rest[at..].iter().zip(&rest[at - distance..]);
            (pairs.take(258).take_while(|(here, there)| here == there).count(), distance)
        };
        let distances = [at.min(MAX_DISTANCE), 1];
        let mut found =
            distances.into_iter().filter(|distance| (1..=at).contains(distance)).map(alike);
        match found.find(|(length, _)| *length >= 3) {
            Some((length, distance)) => {
                bits.match_of(length as u32, distance as u32);
                at += length;
            }
            None => {
                bits.literal(u32::from(rest[at]));
                at += 1;
            }
        }
    }
    // The end of the block, and padding to a byte.
    bits.literal(256);
    bits.align();
}

/// Returns a payload made of `bytes`, the offset of its stamp, and its content behind the stamp, at most `room` bytes
/// long. Zeros fill the cluster of `cluster_bytes`.
pub(super) fn given(bytes: &[u8], room: usize, cluster_bytes: usize) -> (Vec<u8>, usize, Vec<u8>) {
    let (mut out, mut content) = (Vec::new(), Vec::new());
    stored_block(&[0; STAMP_BYTES], false, &mut out);
    let stamp_at = out.len() - STAMP_BYTES;
    let mut bits = BitWriter::new(&mut out);
    deflate_from_bytes::write(bytes, room, &mut bits, &mut content);
    // The last block, fixed codes.
    bits.put(0b011, 3);
    let mut zeros = (cluster_bytes - STAMP_BYTES - content.len()) as u32;
    if zeros > 0 {
        bits.literal(0);
        zeros -= 1;
    }
    while zeros > 0 {
        match zeros {
            1 | 2 => bits.literal(0),
            _ => bits.match_of(zeros.min(258), 1),
        }
        zeros -= if zeros < 3 { 1 } else { zeros.min(258) };
    }
    bits.literal(256);
    bits.align();
    (out, stamp_at, content)
}
