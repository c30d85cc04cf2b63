//! Shorthands for the changes of which attacks of known meaning consist.

use crate::formats::anatomy::Part;
use crate::images::damage::{FieldChange, Transform};

/// Returns the change that sets an element to `value`.
pub const fn set(part: Part, nth: u16, value: u16) -> FieldChange {
    (part, nth, Transform::Set, value)
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
