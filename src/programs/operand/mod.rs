//! Operands: decoding from any bytes, encoding, printing and parsing. Every operand folds all values of its bytes into
//! its range. The folds are frozen, because the meaning of corpus files depends on them.

mod base;
mod bitmap;
mod encoding;
mod features;
mod file;
mod header;
mod kind;
mod number;
mod payload;
mod position;
mod size;
mod word;

pub use base::{Base, ImageForm};
pub use bitmap::BitmapFlags;
pub use encoding::Operand;
pub use features::ImageFeatures;
pub use file::Hidden;
pub use kind::{OperandKind, OperandPlace};
pub use number::{ClusterBits, Extra, Few, Length, Meaning, NameLength, Number, RefcountOrder};
pub use payload::AnyShape;
pub use position::{Anchor, At, Count, Inside};
pub use size::{FarGap, Gap, Magnitude, Relative, Size, Skew};
pub use word::{BytesKind, Change, DataContent, DataIn, Keep, SyncKind};
