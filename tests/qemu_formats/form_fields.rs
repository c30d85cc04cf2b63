//! The fields of the forms of images.

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::internal::programs::operand::Base;

/// A field of the form: its name, its first bit and the number of bits, as `docs/bytecode.md` states them.
pub type Field = (&'static str, u32, u32);

pub const VPC_FIELDS: &[Field] = &[
    ("creator", 0, 3),
    ("fixed", 3, 1),
    ("no footer at the end", 4, 1),
    ("distance of the header", 5, 2),
    ("table behind", 7, 1),
    ("distance of the table", 8, 2),
];

pub const VDI_FIELDS: &[Field] = &[
    ("static", 0, 1),
    ("distance of the map", 1, 2),
    ("distance of the data", 3, 2),
    ("text", 5, 2),
    ("long header", 7, 1),
];

pub const VHDX_FIELDS: &[Field] = &[
    ("header that counts", 0, 1),
    ("other header", 1, 2),
    ("order", 3, 3),
    ("behind all blocks", 6, 1),
    ("gaps", 7, 1),
    ("unknown structures", 8, 1),
    ("reverse order", 9, 1),
    ("longer file", 10, 1),
    ("old log entry", 11, 1),
    ("physical sector", 12, 1),
    ("fixed", 13, 1),
    ("state of absent blocks", 14, 2),
];

pub const VMDK_FIELDS: &[Field] = &[
    ("entries of a table", 0, 3),
    ("kind", 3, 3),
    ("no redundant directory", 6, 1),
    ("tables behind", 7, 1),
    ("version", 8, 2),
    ("zero grains", 10, 1),
    ("adapter", 11, 2),
    ("further lines", 13, 1),
    ("unused sectors", 14, 2),
];

/// Returns the fields of the form of a format.
pub fn fields(base: Base) -> &'static [Field] {
    match base {
        Base::Other(ImageFormat::Vpc, _) => VPC_FIELDS,
        Base::Other(ImageFormat::Vdi, _) => VDI_FIELDS,
        Base::Other(ImageFormat::Vhdx, _) => VHDX_FIELDS,
        _ => VMDK_FIELDS,
    }
}
