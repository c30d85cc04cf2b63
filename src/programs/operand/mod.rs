//! Operands: decoding from any bytes, encoding, printing and parsing. Every operand folds all values of its bytes into
//! its range. The folds are frozen, because the meaning of corpus files depends on them.

mod encoding;
mod image;
mod number;
mod size;
mod turns;
mod word;

pub(super) use encoding::{Hex, TextError, TextOperands, parse_hex, print_operand};
pub use encoding::{Operand, OperandKind, OperandPlace};
pub use image::{Base, ImageFeatures, ImageForm};
pub use number::{
    Anchor, At, ClusterBits, Count, Extra, Few, Inside, Length, Meaning, NameLength, Number,
    RefcountOrder,
};
pub use size::{FarGap, Gap, Magnitude, Relative, Size, Skew};
pub use turns::TurnOrder;
pub use word::{
    AnyShape, BitmapFlags, BytesKind, Change, CutKind, DataContent, DataIn, DeviceError, Failures,
    FileOperation, Hidden, Keep, OldBytes, SyncKind,
};
