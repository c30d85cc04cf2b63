//! Reads fields of a text as C's `sscanf` does, with which QEMU parses descriptors. A line break is a space like all
//! others, so that a field may lie in a later line.
//!
//! # Arithmetic
//! `sscanf` keeps a decimal number without room at the largest or the smallest one, and negates a hexadecimal number
//! in 64 bits.

/// A text from which fields are read, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// Skips spaces and line breaks.
    pub(super) fn spaces(&mut self) {
        self.rest = self.rest.split_at(spaces(self.rest)).1;
    }

    /// Reads a word of at most `longest` bytes (`%10s`). A longer word is cut.
    pub(super) fn word(&mut self, longest: usize) -> Option<&'a [u8]> {
        self.spaces();
        self.take_while(longest, |byte| !is_space(byte))
    }

    /// Reads bytes up to one of `stops`, at most `longest` (`%511[^\n\r\"]`).
    pub(super) fn until(&mut self, stops: &[u8], longest: usize) -> Option<&'a [u8]> {
        self.take_while(longest, |byte| !stops.contains(&byte))
    }

    /// Skips `byte`. Returns false if the next byte is another.
    pub(super) fn literal(&mut self, byte: u8) -> bool {
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads a decimal number (`%lld`). A number without room becomes the nearest one that has room.
    pub(super) fn integer(&mut self) -> Option<i64> {
        self.spaces();
        let is_negative = self.sign();
        let digits = self.take_while(usize::MAX, |byte| byte.is_ascii_digit())?;
        Some(digits.iter().fold(0i64, |number, digit| {
            let digit = i64::from(digit.wrapping_sub(b'0'));
            let shifted = number.saturating_mul(10);
            if is_negative { shifted.saturating_sub(digit) } else { shifted.saturating_add(digit) }
        }))
    }

    /// Reads a hexadecimal number (`%x`). A number with more than 32 bits loses the upper bits, and one with more
    /// than 64 bits becomes 32 ones.
    pub(super) fn hexadecimal(&mut self) -> Option<u32> {
        self.spaces();
        let is_negative = self.sign();
        let is_prefixed = matches!(self.rest, [b'0', b'x' | b'X', ..]);
        if is_prefixed {
            self.rest = self.rest.split_at(2).1;
        }
        let digits = self.take_while(usize::MAX, |byte| byte.is_ascii_hexdigit());
        let mut number = Some(0u64);
        // The zero of the prefix is a digit, too.
        for digit in digits.or(is_prefixed.then_some(&[]))? {
            let value = char::from(*digit).to_digit(16).unwrap_or(0);
            number =
                number.and_then(|number| number.checked_mul(16)).map(|it| it | u64::from(value));
        }
        let [a, b, c, d, ..] = match number {
            Some(number) if is_negative => number.wrapping_neg().to_le_bytes(),
            Some(number) => number.to_le_bytes(),
            None => u64::MAX.to_le_bytes(),
        };
        Some(u32::from_le_bytes([a, b, c, d]))
    }

    /// Skips a sign. Reports whether it is a minus.
    fn sign(&mut self) -> bool {
        let is_negative = self.literal(b'-');
        let _ = is_negative || self.literal(b'+');
        is_negative
    }

    /// Takes at least one byte.
    fn take_while(&mut self, longest: usize, wanted: impl Fn(u8) -> bool) -> Option<&'a [u8]> {
        let end = self.rest.iter().take(longest).take_while(|byte| wanted(**byte)).count();
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }
}

/// Returns the number of spaces and line breaks at the beginning of a text.
pub(super) fn spaces(text: &[u8]) -> usize {
    text.iter().take_while(|byte| is_space(**byte)).count()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Returns the text up to the first zero byte.
pub(super) fn text_of(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// Returns the index of the first byte behind the first `name` in a text.
pub(super) fn after(text: &[u8], name: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, name)?.checked_add(name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_scanf() {
        let integer = |text: &[u8]| Scanner::new(text).integer();
        assert_eq!(integer(b" \n 12x"), Some(12));
        assert_eq!((integer(b"-7"), integer(b"+7"), integer(b"+-7")), (Some(-7), Some(7), None));
        assert_eq!(integer(b"99999999999999999999"), Some(i64::MAX));
        assert_eq!(integer(b"-99999999999999999999"), Some(i64::MIN));
        assert_eq!(integer(b"x1"), None);
        let hexadecimal = |text: &[u8]| Scanner::new(text).hexadecimal();
        assert_eq!(hexadecimal(b" fFg"), Some(255));
        assert_eq!((hexadecimal(b"0x1f"), hexadecimal(b"0xg")), (Some(31), Some(0)));
        assert_eq!(
            (hexadecimal(b"-1"), hexadecimal(b"123456789")),
            (Some(u32::MAX), Some(0x2345_6789))
        );
        assert_eq!(hexadecimal(b"10000000000000000"), Some(u32::MAX));
        assert_eq!(hexadecimal(b"g"), None);
    }

    #[test]
    fn long_words_are_cut() {
        let mut scanner = Scanner::new(b"\n RW 123456789012\"x");
        assert_eq!(scanner.word(10), Some(&b"RW"[..]));
        assert_eq!(scanner.word(10), Some(&b"1234567890"[..]));
        assert_eq!(scanner.until(b"\"", 10), Some(&b"12"[..]));
        assert!(scanner.literal(b'"') && !scanner.literal(b'"'));
        assert_eq!((scanner.word(10), scanner.word(10)), (Some(&b"x"[..]), None));
    }
}
