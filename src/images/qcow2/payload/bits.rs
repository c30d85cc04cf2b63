//! Bits of deflate streams, from the lowest on (RFC 1951 §3.1.1).

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
