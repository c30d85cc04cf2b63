//! Deflate streams (RFC 1951) made of any bytes. The bytes are read as a stream. Each part that has a meaning becomes a
//! part of the stream, bit by bit: block headers, code lengths, literals, matches. Each fault is corrected or left out.

use std::sync::LazyLock;

/// The longest code in bits.
const MAX_CODE_BITS: usize = 15;
/// The order of the code lengths of code lengths.
const LENGTH_ORDER: [usize; 19] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// The symbol that ends a block.
const END_OF_BLOCK: u16 = 256;
/// The number of literals and lengths that have a meaning, and of distances.
const LITERALS: usize = 286;
const DISTANCES: usize = 30;

/// Appends blocks made of `bytes` to `out`, none of them the last, and their content to `content`, at most `room`
/// bytes. The blocks may end at any bit.
pub(super) fn write(bytes: &[u8], room: usize, out: &mut BitWriter, content: &mut Vec<u8>) {
    static FIXED: LazyLock<[Codes; 2]> = LazyLock::new(|| {
        let lengths = |symbol: usize| match symbol {
            0..=143 => 8,
            144..=255 => 9,
            256..=279 => 7,
            _ => 8,
        };
        let literals: Vec<u8> = (0..288).map(lengths).collect();
        [Codes::new(&literals), Codes::new(&[5; 32])]
    });
    let mut input = BitReader::new(bytes);
    while content.len() < room {
        let before = input;
        // The flag of the last block is ignored: blocks follow that fill the cluster.
        let Some(header) = input.take(3) else { return };
        match header >> 1 {
            0 => stored(&mut input, room, out, content),
            1 => {
                out.put(0b010, 3);
                let end = |out: &mut BitWriter| out.literal(END_OF_BLOCK.into());
                symbols(&mut input, &FIXED, room, out, content, end);
            }
            2 => match dynamic(&mut input) {
                Some((codes, end)) => {
                    copy(before, &input, 0b001, out);
                    let end = |out: &mut BitWriter| out.put(end.0, end.1);
                    symbols(&mut input, &codes, room, out, content, end);
                }
                // The next bits are read as the header of another block.
                None => drop((input = before, input.take(3))),
            },
            // There are no such blocks.
            _ => {}
        }
    }
}

/// Copies the bits from `from` up to `to`, except that the lowest bits of `cleared` become 0.
fn copy(mut from: BitReader, to: &BitReader, cleared: u32, out: &mut BitWriter) {
    let mut left = to.position() - from.position();
    let mut mask = cleared;
    while left > 0 {
        let count = left.min(16);
        // The bits were read before.
        let bits = from.take(count as u32).unwrap_or(0);
        out.put(bits & !mask, count as u32);
        (left, mask) = (left - count, 0);
    }
}

/// Copies a stored block, with the length of the bytes that are there.
fn stored(input: &mut BitReader, room: usize, out: &mut BitWriter, content: &mut Vec<u8>) {
    input.align();
    let Some(length) = input.take(16) else { return };
    let Some(_inverted) = input.take(16) else { return };
    let bytes = input.take_bytes((length as usize).min(room - content.len()));
    // The stored length has 16 bits, so the number of bytes fits, too.
    let length = bytes.len() as u16;
    out.put(0, 3);
    out.align();
    out.put_bytes(&length.to_le_bytes());
    out.put_bytes(&(!length).to_le_bytes());
    out.put_bytes(bytes);
    content.extend_from_slice(bytes);
}

/// Copies symbols up to the end of a block, to the end of the bytes, or up to the first symbol without a meaning. Then
/// `end` writes the end of the block.
fn symbols(
    input: &mut BitReader,
    [literals, distances]: &[Codes; 2],
    room: usize,
    out: &mut BitWriter,
    content: &mut Vec<u8>,
    end: impl Fn(&mut BitWriter),
) {
    loop {
        let before = *input;
        let Some(symbol) = literals.symbol(input) else { break };
        match symbol {
            0..END_OF_BLOCK if content.len() < room => content.push(symbol as u8),
            0..=END_OF_BLOCK => break,
            _ => {
                let Some((length, distance)) = matched(symbol, distances, input) else { break };
                // A match may not reach the stamp before the content.
                if distance > content.len() || length > room - content.len() {
                    break;
                }
                let from = content.len() - distance;
                (from..from + length).for_each(|at| content.push(content[at]));
            }
        }
        copy(before, input, 0, out);
    }
    end(out);
}

/// Reads the rest of a match that begins with a length symbol, and returns its length and its distance.
fn matched(symbol: u16, distances: &Codes, input: &mut BitReader) -> Option<(usize, usize)> {
    let length = match usize::from(symbol).checked_sub(257)? {
        group @ 0..8 => 3 + group,
        28 => 258,
        group @ 8..28 => {
            let bits = group / 4 - 1;
            3 + ((4 + group % 4) << bits) + input.take(bits as u32)? as usize
        }
        _ => return None,
    };
    let distance = match usize::from(distances.symbol(input)?) {
        group @ 0..4 => 1 + group,
        group @ 4..DISTANCES => {
            let bits = group / 2 - 1;
            1 + ((2 + group % 2) << bits) + input.take(bits as u32)? as usize
        }
        _ => return None,
    };
    Some((length, distance))
}

/// Reads the codes of a dynamic block. Returns them with the code of the end of the block and its number of bits.
/// Returns `None` if a reader may refuse them: zlib refuses codes that are not complete.
fn dynamic(input: &mut BitReader) -> Option<([Codes; 2], (u32, u32))> {
    let (literals, distances) = (257 + input.take(5)? as usize, 1 + input.take(5)? as usize);
    let lengths = 4 + input.take(4)? as usize;
    if literals > LITERALS || distances > DISTANCES {
        return None;
    }
    let mut of_lengths = [0; LENGTH_ORDER.len()];
    for place in LENGTH_ORDER.get(..lengths)? {
        of_lengths[*place] = input.take(3)? as u8;
    }
    let codes = Codes::new(&of_lengths).complete()?;
    let mut all = Vec::with_capacity(literals + distances);
    while all.len() < literals + distances {
        let (value, times) = match codes.symbol(input)? {
            length @ 0..16 => (length as u8, 1),
            16 => (*all.last()?, 3 + input.take(2)?),
            17 => (0, 3 + input.take(3)?),
            _ => (0, 11 + input.take(7)?),
        };
        all.extend(std::iter::repeat_n(value, times as usize));
    }
    if all.len() > literals + distances {
        return None;
    }
    let (literals, distances) = all.split_at(literals);
    let end = usize::from(END_OF_BLOCK);
    let of_distances = Codes::new(distances);
    let of_distances = match (distances, of_distances.counts) {
        // There are no distances (a single code of zero bits), or there is one (a single code of one bit).
        ([0], _) => of_distances,
        (_, [_, 1, others @ ..]) if others.iter().all(|count| *count == 0) => of_distances,
        _ => of_distances.complete()?,
    };
    let codes = [Codes::new(literals).complete()?, of_distances];
    let end = codes[0].code_of(end, literals)?;
    Some((codes, end))
}

/// Huffman codes (RFC 1951 §3.2.2): the symbols in the order of their codes, and the number of codes of each length.
struct Codes {
    symbols: Vec<u16>,
    counts: [u16; MAX_CODE_BITS + 1],
}

impl Codes {
    /// Makes the codes of symbols with these lengths; symbols of length 0 have none.
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; MAX_CODE_BITS + 1];
        let mut symbols = Vec::with_capacity(lengths.len());
        for bits in 1..=MAX_CODE_BITS as u8 {
            let of_bits = (0u16..).zip(lengths).filter(|(_, length)| **length == bits);
            let before = symbols.len();
            symbols.extend(of_bits.map(|(symbol, _)| symbol));
            counts[usize::from(bits)] = (symbols.len() - before) as u16;
        }
        Self { symbols, counts }
    }

    /// Returns the codes if each sequence of bits begins with exactly one of them.
    fn complete(self) -> Option<Self> {
        let free = self.counts[1..].iter().try_fold(1u32, |free, count| {
            (free * 2).checked_sub(u32::from(*count)).filter(|free| *free <= 1 << MAX_CODE_BITS)
        });
        (free == Some(0)).then_some(self)
    }

    /// Reads a symbol.
    fn symbol(&self, input: &mut BitReader) -> Option<u16> {
        let (mut code, mut first, mut index) = (0u32, 0u32, 0u32);
        for count in &self.counts[1..] {
            let count = u32::from(*count);
            code |= input.take(1)?;
            if let Some(inside) = code.checked_sub(first).filter(|inside| *inside < count) {
                return self.symbols.get((index + inside) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }

    /// Returns the code of a symbol and its number of bits, the first bit in the lowest place.
    fn code_of(&self, symbol: usize, lengths: &[u8]) -> Option<(u32, u32)> {
        let bits = usize::from(*lengths.get(symbol)?);
        let (mut first, mut index) = (0u32, 0usize);
        for (length, count) in self.counts.iter().enumerate().skip(1) {
            if length == bits {
                let place =
                    self.symbols.get(index..)?.iter().position(|it| usize::from(*it) == symbol)?;
                let code = first + place as u32;
                return Some((code.reverse_bits() >> (32 - bits), bits as u32));
            }
            index += usize::from(*count);
            first = (first + u32::from(*count)) << 1;
        }
        None
    }
}

/// A writer of bits.
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    kept: u32,
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Appends to `out`, whose end is a byte boundary.
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, kept: 0, count: 0 }
    }

    /// Appends the lowest `count` bits, at most 16.
    pub(super) fn put(&mut self, bits: u32, count: u32) {
        self.kept |= bits << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push((self.kept & 0xFF) as u8);
            self.kept >>= 8;
            self.count -= 8;
        }
    }

    /// Appends zeros up to a byte boundary.
    pub(super) fn align(&mut self) {
        self.put(0, (8 - self.count) % 8);
    }

    /// Appends whole bytes at a byte boundary.
    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        self.align();
        self.out.extend_from_slice(bytes);
    }

    /// Appends a code, whose highest bit comes first.
    fn code(&mut self, code: u32, count: u32) {
        self.put(code.reverse_bits() >> (32 - count), count);
    }

    /// Appends a symbol below 288 in its fixed code (RFC 1951 §3.2.6).
    pub(super) fn literal(&mut self, symbol: u32) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xC0 + symbol - 280, 8),
        }
    }

    /// Appends a match of 3 to 258 bytes, 1 to 32,768 bytes back (RFC 1951 §3.2.5).
    pub(super) fn match_of(&mut self, length: u32, distance: u32) {
        match length {
            258 => self.literal(285),
            3..=10 => self.literal(254 + length),
            _ => {
                let (group, extra, bits) = grouped(length - 3, 4);
                self.literal(257 + group);
                self.put(extra, bits);
            }
        }
        let (group, extra, bits) = grouped(distance - 1, 2);
        self.code(group, 5);
        self.put(extra, bits);
    }
}

/// Returns the group of a number in deflate's encoding, the extra bits, and their number. There are `per` groups for
/// each power of two; the first groups have one number each.
fn grouped(value: u32, per: u32) -> (u32, u32, u32) {
    if value < per * 2 {
        return (value, 0, 0);
    }
    let bits = value.ilog2() - per.ilog2();
    (bits * per + (value >> bits), value & ((1 << bits) - 1), bits)
}

/// A reader of bits.
#[derive(Clone, Copy)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// The number of bits that were read.
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads `count` bits, at most 16. Returns `None` if fewer are left.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let mut bits = 0;
        for place in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            bits |= u32::from(byte >> (self.at % 8) & 1) << place;
            self.at += 1;
        }
        Some(bits)
    }

    /// Returns the number of bits that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Skips the bits up to a byte boundary.
    pub(super) fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    /// Reads at most `most` whole bytes from the next byte boundary on, as many as there are.
    pub(super) fn take_bytes(&mut self, most: usize) -> &'a [u8] {
        let rest = self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default();
        let taken = rest.get(..most).unwrap_or(rest);
        self.at = self.at.next_multiple_of(8) + 8 * taken.len();
        taken
    }
}
