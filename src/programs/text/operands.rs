//! The operands of a line: `name=value`, in any order.

use std::fmt;

use crate::programs::operand::Operand;

/// The reason why a line of text is not a record.
pub(in crate::programs) enum TextError {
    UnknownName(String),
    Operand { name: &'static str, found: String, expected: &'static str },
    Missing(&'static str),
    Unexpected(String),
}

/// The operands of one line. Each one is removed when it is parsed.
pub(in crate::programs) struct TextOperands<'a> {
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> TextOperands<'a> {
    /// Splits words of the form `name=value`.
    pub(in crate::programs) fn new(
        words: impl Iterator<Item = &'a str>,
    ) -> Result<Self, TextError> {
        let split = |word: &'a str| {
            word.split_once('=').ok_or_else(|| TextError::Unexpected(word.to_string()))
        };
        Ok(Self { left: words.map(split).collect::<Result<_, _>>()? })
    }

    /// Removes and parses the operand `name`, which is required.
    pub(in crate::programs) fn take<T: Operand>(
        &mut self,
        name: &'static str,
    ) -> Result<T, TextError> {
        self.take_with(name, T::EXPECTED, T::parse)
    }

    /// Removes the operand `name`, which is required, and parses it with `parse`.
    pub(in crate::programs) fn take_with<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, TextError> {
        let at = self.left.iter().position(|(found, _)| *found == name);
        let (_, value) = self.left.remove(at.ok_or(TextError::Missing(name))?);
        parse(value).ok_or(TextError::Operand { name, found: value.to_string(), expected })
    }

    /// Removes and parses the operand `name`; returns `default` if it is missing.
    pub(in crate::programs) fn take_or<T: Operand>(
        &mut self,
        name: &'static str,
        default: T,
    ) -> Result<T, TextError> {
        match self.take(name) {
            Err(TextError::Missing(_)) => Ok(default),
            found => found,
        }
    }

    /// Returns an error if operands are left.
    pub(in crate::programs) fn finish(self) -> Result<(), TextError> {
        match self.left.first() {
            Some((name, value)) => Err(TextError::Unexpected(format!("{name}={value}"))),
            None => Ok(()),
        }
    }
}

/// Writes an operand with its name.
pub(in crate::programs) fn print_operand<T: Operand>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: T,
) -> fmt::Result {
    write!(f, " {name}=")?;
    value.print(f)
}

/// Bytes that are written as hexadecimal digits.
pub(in crate::programs) struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses hexadecimal digits, two for each byte.
pub(in crate::programs) fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}
