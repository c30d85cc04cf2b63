//! Shorthands for the changes of which attacks of known meaning consist.

use crate::formats::anatomy::Part;
use crate::formats::anatomy::StructureField;
use crate::images::damage::{FieldChange, Transform};

/// Returns the change that sets an element to `value`.
pub const fn set(part: Part, nth: u16, value: u16) -> FieldChange {
    (part, nth, Transform::Set, value)
}

/// Returns the change of a declared field of the headers. Its number is twice its index: an odd number would name the
/// element behind it, or ask for a correct checksum.
///
/// # Panics
/// The field is none of `fields`. All attacks are constants, so that the compiler reports this.
pub const fn declared(
    fields: &[StructureField],
    field: StructureField,
    transform: Transform,
    value: u16,
) -> FieldChange {
    let mut index = 0;
    while fields[index].at != field.at {
        index += 1;
    }
    header(2 * index as u16, transform, value)
}

/// Returns the change of a field of the headers.
pub const fn header(nth: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Header, nth, transform, value)
}

/// Returns the change of an item of the metadata.
pub const fn item(nth: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Metadata, nth, transform, value)
}

/// Returns the change of the first entry of the tables.
pub const fn entry(transform: Transform, value: u16) -> FieldChange {
    (Part::Table, 0, transform, value)
}
