//! The macro that defines the operations from their table, their classes, and the alias table: the meaning of the
//! opcode bytes above the canonical ones.

use crate::disk::observer::Event;

/// The length of an operation in bytes.
pub const OPERATION_BYTES: usize = 8;

/// The opcode of all operations of the second table. The byte behind it is their number in that table.
pub(super) const ESCAPE: u8 = 33;
/// The opcode of the first operation of the second table. A program writes it as two bytes.
pub(super) const SECOND_TABLE: u16 = 1 << 8;

/// Returns the number of bytes that an opcode takes in a record.
pub(super) const fn opcode_bytes(opcode: u16) -> usize {
    if opcode < SECOND_TABLE { 1 } else { 2 }
}

/// Writes an opcode to the front of a record.
pub(super) fn put_opcode(opcode: u16, record: &mut [u8; OPERATION_BYTES]) {
    let [low, high] = opcode.to_le_bytes();
    match high {
        0 => record[0] = low,
        _ => record[..2].copy_from_slice(&[ESCAPE, low]),
    }
}

/// Defines [`Operation`](super::Operation). An entry is
///
/// ```text
/// /// Documentation.
/// OPCODE "name" Name {
///     /// Documentation.
///     operand: Type,
/// } is CLASS, plainer [OPERATION, ...], slots NUMBER;
/// ```
///
/// Opcodes from 256 on are those of the second table: 256 is number 0 there. `CLASS` and the plainer operations are
/// expressions that may use the operands. Without `slots`, the operation has no slot in the alias table.
macro_rules! operations {
    ($($(#[$doc:meta])* $code:literal $text:literal $name:ident {
        $($(#[$operand_doc:meta])* $operand:ident: $kind:ty),* $(,)?
    } is $class:expr, plainer [$($plainer:expr),* $(,)?] $(, slots $slots:literal)?;)+) => {
        use std::fmt;

        use bytes::Buf;

        use crate::programs::operand::{
            Hex, Operand, OperandPlace, TextError, TextOperands, print_operand,
        };

        use definition::{
            CANONICAL_OPCODES, ESCAPE, SECOND_TABLE, aliases, opcode_bytes, put_opcode,
        };

        /// One instruction of a program.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $name { $($(#[$operand_doc])* $operand: $kind),* },)+
            /// The next bytes of the operation `bytes` before it. They are its whole record: it has no opcode, so that
            /// only [`Program`](crate::programs::Program) decodes it.
            Data([u8; OPERATION_BYTES]),
        }

        impl Operation {
            /// Every opcode with its name, in ascending order. Those from 256 on are the opcodes of the second table.
            pub const OPCODES: &'static [(u16, &'static str)] = &[$(($code, $text)),+];

            /// Returns `record` with an opcode of [`OPCODES`](Self::OPCODES) in the place of the bytes at its front.
            pub fn with_opcode(
                opcode: u16,
                mut record: [u8; OPERATION_BYTES],
            ) -> [u8; OPERATION_BYTES] {
                put_opcode(opcode, &mut record);
                record
            }

            /// Returns the opcode.
            pub(crate) fn opcode(&self) -> u16 {
                match self {
                    Self::Data(_) => 0,
                    $(Self::$name { .. } => $code),+
                }
            }

            /// Decodes a record of any bytes; returns `None` if its opcode has no meaning yet.
            #[inline]
            pub fn decode(record: &[u8; OPERATION_BYTES]) -> Option<Self> {
                $(const _: () = assert!(
                    opcode_bytes($code) $(+ <$kind>::BYTES)* <= OPERATION_BYTES
                );)+
                const ALIASES: &[u8] = &aliases(&[$(($code, 0 $(+ $slots)?)),+]);
                let mut bytes = record.as_slice();
                let opcode = match bytes.get_u8() {
                    ESCAPE => SECOND_TABLE | u16::from(bytes.get_u8()),
                    byte if byte < CANONICAL_OPCODES => byte.into(),
                    byte => {
                        ALIASES[usize::from(byte - CANONICAL_OPCODES) % ALIASES.len()].into()
                    }
                };
                match opcode {
                    $($code => Some(Self::$name { $($operand: Operand::decode(&mut bytes)),* }),)+
                    _ => None,
                }
            }

            /// Returns the canonical record.
            pub fn encode(&self) -> [u8; OPERATION_BYTES] {
                let mut record = [0; OPERATION_BYTES];
                put_opcode(self.opcode(), &mut record);
                let mut out = &mut record[opcode_bytes(self.opcode())..];
                match *self {
                    Self::Data(bytes) => return bytes,
                    $(Self::$name { $($operand),* } => {
                        $(Operand::encode($operand, &mut out);)*
                        let _ = out;
                    })+
                }
                record
            }

            /// Returns the name of the operation.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Data(_) => "data",
                    $(Self::$name { .. } => $text),+
                }
            }

            /// Returns the places of its operands in its record.
            pub fn places(&self) -> &'static [OperandPlace] {
                match self {
                    Self::Data(_) => &[],
                    $(Self::$name { .. } => {
                        const PLACES: &[OperandPlace] =
                            &OperandPlace::in_a_row(opcode_bytes($code), [$((<$kind>::KIND, <$kind>::BYTES)),*]);
                        PLACES
                    })+
                }
            }

            /// Returns the class of the operation.
            #[allow(unused_variables, reason = "the class of most operations depends on no operand")]
            pub fn class(&self) -> Class {
                match *self {
                    Self::Data(_) => Class::Arranges,
                    $(Self::$name { $($operand),* } => $class),+
                }
            }

            /// Returns similar but plainer operations, the plainest first. The minimizer tries them in place of this
            /// one.
            #[allow(unused_variables, reason = "a plainer operation leaves operands out")]
            pub fn plainer(&self) -> Vec<Self> {
                match *self {
                    Self::Data(_) => Vec::new(),
                    $(Self::$name { $($operand),* } => vec![$($plainer),*]),+
                }
            }

            pub(in crate::programs) fn parse(
                name: &str,
                mut operands: TextOperands,
            ) -> Result<Self, TextError> {
                let operation = match name {
                    $($text => Self::$name { $($operand: operands.take(stringify!($operand))?),* },)+
                    _ => return Err(TextError::UnknownName(name.to_string())),
                };
                operands.finish()?;
                Ok(operation)
            }
        }

        impl fmt::Display for Operation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())?;
                match *self {
                    Self::Data(bytes) => write!(f, " {}", Hex(&bytes))?,
                    $(Self::$name { $($operand),* } => {
                        $(print_operand(f, stringify!($operand), $operand)?;)*
                    })+
                }
                Ok(())
            }
        }
    };
}

pub(super) use operations;

/// The purpose of an operation. The event is reported to an observer if the operation has an effect. Operations with
/// the same effect on an image share an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The operation changes the image.
    Builds(Event),
    /// The operation sets the placement or the form of later structures.
    Arranges,
    /// The operation begins another layer.
    Overlays,
    /// The operation asks a question of the image that the program built.
    Asks(Event),
    /// The operation has the image built and verified.
    Checkpoints,
    /// The operation asks the engine to change the disk, in the target that writes.
    Requests(Event),
    /// The operation damages the files, in targets that allow attacks.
    Attacks,
}

impl Class {
    /// Returns the event of an operation with an effect.
    pub fn event(self) -> Event {
        match self {
            Self::Builds(event) | Self::Asks(event) | Self::Requests(event) => event,
            Self::Arranges => Event::Arranged,
            Self::Overlays => Event::Overlay,
            Self::Checkpoints => Event::Checkpoint,
            Self::Attacks => Event::Attacked,
        }
    }
}

/// Opcode bytes below this are canonical: each operation has a number of its own. The decoder skips numbers that no
/// operation has, and the encoder never emits them.
pub(super) const CANONICAL_OPCODES: u8 = 40;

/// The number of slots of the alias table, which is repeated up to byte 255.
const SLOTS: usize = 32;

/// Returns the opcode of each slot, from pairs of an opcode and its number of slots.
///
/// # Panics
/// At compile time, if the numbers of slots do not add up to the length of the table.
pub(super) const fn aliases(slots: &[(u16, usize)]) -> [u8; SLOTS] {
    let (mut table, mut filled, mut at) = ([0; SLOTS], 0, 0);
    while at < slots.len() {
        let (opcode, count) = slots[at];
        let end = filled + count;
        while filled < end {
            // Only operations of the first table have slots.
            assert!(opcode < CANONICAL_OPCODES as u16);
            table[filled] = opcode as u8;
            filled += 1;
        }
        at += 1;
    }
    assert!(filled == SLOTS, "the alias table is frozen: new operations have no slots");
    table
}
