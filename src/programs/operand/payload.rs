//! Operands for the content of a compressed cluster, and for its coding.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::images::content::Shape;
use crate::images::qcow2::payload::Coding;

use super::encoding::Operand;
use super::kind::OperandKind;
use super::word::words;

/// The words of the shapes, in the order of [`Shape::ALL`].
const SHAPES: [&str; Shape::ALL.len()] = [
    "zeros", "text", "speck", "eighth", "half", "most", "coins", "mixed", "noise", "nearly", "far",
];

/// The number of shapes that `compress` can name.
const FIRST_SHAPES: usize = 8;

fn parse_shape(text: &str, known: usize) -> Option<Shape> {
    let at = SHAPES.iter().position(|word| *word == text).filter(|at| *at < known)?;
    Some(Shape::ALL[at])
}

/// The first eight shapes.
impl Operand for Shape {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "zeros, text, speck, eighth, half, most, coins or mixed";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self::ALL[usize::from(bytes.get_u8()) % FIRST_SHAPES]
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self as u8);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHAPES[self as usize])
    }
    fn parse(text: &str) -> Option<Self> {
        parse_shape(text, FIRST_SHAPES)
    }
}

/// Any shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnyShape(pub Shape);

impl Operand for AnyShape {
    const BYTES: usize = 1;
    const EXPECTED: &'static str =
        "zeros, text, speck, eighth, half, most, coins, mixed, noise, nearly or far";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(Shape::ALL[usize::from(bytes.get_u8()) % Shape::ALL.len()])
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0 as u8);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHAPES[self.0 as usize])
    }
    fn parse(text: &str) -> Option<Self> {
        parse_shape(text, SHAPES.len()).map(Self)
    }
}

words!(
    Coding,
    Content,
    "usual, stored, fixed, quick, dynamic, window, longer, trailing, pieces, ended or largest",
    Coding::Usual = "usual",
    Coding::Stored = "stored",
    Coding::Fixed = "fixed",
    Coding::Quick = "quick",
    Coding::Dynamic = "dynamic",
    Coding::Window = "window",
    Coding::Longer = "longer",
    Coding::Trailing = "trailing",
    Coding::Pieces = "pieces",
    Coding::Ended = "ended",
    Coding::Largest = "largest",
);
