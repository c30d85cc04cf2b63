//! Defines the operations from their table.

/// The length of an operation in bytes.
pub const OPERATION_BYTES: usize = 8;

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
/// `CLASS` and the plainer operations are expressions that may use the operands. Without `slots`, the operation has no
/// slot in the alias table.
macro_rules! operations {
    ($($(#[$doc:meta])* $code:literal $text:literal $name:ident {
        $($(#[$operand_doc:meta])* $operand:ident: $kind:ty),* $(,)?
    } is $class:expr, plainer [$($plainer:expr),* $(,)?] $(, slots $slots:literal)?;)+) => {
        use std::fmt;

        use bytes::{Buf, BufMut};

        use crate::programs::operand::{Operand, OperandPlace};
        use crate::programs::text::{Hex, TextError, TextOperands, print_operand};

        use super::aliases::{CANONICAL_OPCODES, aliases};
        use super::class::Class;
        use super::definition::OPERATION_BYTES;

        /// One instruction of a program.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $name { $($(#[$operand_doc])* $operand: $kind),* },)+
            /// The next bytes of the operation `bytes` before it. They are its whole record: it has no opcode, so that
            /// only [`Program`](crate::programs::Program) decodes it.
            Data([u8; OPERATION_BYTES]),
        }

        impl Operation {
            /// Every opcode with its name, in ascending order.
            pub const OPCODES: &'static [(u8, &'static str)] = &[$(($code, $text)),+];

            /// Decodes a record of any bytes; returns `None` if its opcode has no meaning yet.
            #[inline]
            pub fn decode(record: &[u8; OPERATION_BYTES]) -> Option<Self> {
                $(const _: () = assert!(0 $(+ <$kind>::BYTES)* < OPERATION_BYTES);)+
                const ALIASES: &[u8] = &aliases(&[$(($code, 0 $(+ $slots)?)),+]);
                let mut bytes = record.as_slice();
                let opcode = match bytes.get_u8() {
                    byte if byte < CANONICAL_OPCODES => byte,
                    byte => ALIASES[usize::from(byte - CANONICAL_OPCODES) % ALIASES.len()],
                };
                match opcode {
                    $($code => Some(Self::$name { $($operand: Operand::decode(&mut bytes)),* }),)+
                    _ => None,
                }
            }

            /// Returns the canonical record.
            pub fn encode(&self) -> [u8; OPERATION_BYTES] {
                let mut record = [0; OPERATION_BYTES];
                let mut out = record.as_mut_slice();
                match *self {
                    Self::Data(bytes) => return bytes,
                    $(Self::$name { $($operand),* } => {
                        out.put_u8($code);
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
                            &OperandPlace::in_a_row(1, [$((<$kind>::KIND, <$kind>::BYTES)),*]);
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
