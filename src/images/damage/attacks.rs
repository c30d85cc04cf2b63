//! The attacks that a hostile program can make on its images, and shorthands for the changes of attacks of known
//! meaning.
//!
//! The fields have the order of `docs/bytecode.md`: `nth` is twice the number of a field, or one more if the attack
//! corrects the checksum. If a structure has a copy, the attack changes both. If the image has no copy, both changes
//! hit the structure itself. So these attacks set values: a second flip of a bit would undo the first.

use crate::formats::anatomy::{Part, StructureField};

/// An element of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The part that the element belongs to.
    pub part: Part,
    /// The number of the layer, counted down from the top, modulo the number of layers.
    pub depth: u8,
    /// The number of the element; see [`Anatomy::element`](crate::formats::anatomy::Anatomy::element).
    pub nth: u16,
    /// The byte of a compressed cluster that is attacked in place of the first, modulo their number.
    pub inside: u32,
}

/// The change of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// Flips one bit: the value modulo the element's bits.
    #[default]
    Flip,
    /// Writes one of the values at which readers go wrong; the value chooses it.
    Boundary,
    /// Adds the value as a signed number.
    Add,
    /// Adds the value as a signed number of clusters.
    AddClusters,
    /// Points at another element's cluster: the element with the value's index, over all parts.
    Structure,
    /// Points at the element's own cluster.
    Own,
    /// Points past the end of the file, by the value in clusters.
    PastEnd,
    /// Moves the target of the pointer off its boundary, by the value in sectors.
    Misalign,
    /// Exchanges the element with the next one of its part. In a trap, it writes the value.
    Swap,
    /// Writes the value.
    Set,
}

impl Transform {
    /// All transforms, in order.
    pub const ALL: [Self; 10] = [
        Self::Flip,
        Self::Boundary,
        Self::Add,
        Self::AddClusters,
        Self::Structure,
        Self::Own,
        Self::PastEnd,
        Self::Misalign,
        Self::Swap,
        Self::Set,
    ];
}

/// The change of an element by an attack of known meaning: its part, the number that names it (`nth`), the transform
/// and its operand.
pub type FieldChange = (Part, u16, Transform, u16);

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Changes an element.
    Patch {
        /// The target element.
        spot: Spot,
        /// The transform.
        transform: Transform,
        /// The operand of the transform.
        value: u16,
    },
    /// Changes an element after a number of reads.
    Trap {
        /// The target element.
        spot: Spot,
        /// The transform.
        transform: Transform,
        /// The operand of the transform.
        value: u16,
        /// The number of reads that return the old value.
        reads: u8,
    },
    /// Lets reads of a part fail.
    FailRead {
        /// The part.
        part: Part,
        /// The layer.
        depth: u8,
        /// The number of reads that succeed before.
        reads: u8,
    },
    /// Cuts bytes off the end of a file.
    Truncate {
        /// The layer.
        depth: u8,
        /// The number of bytes.
        bytes: u64,
    },
}

/// The declared fields of a structure among the elements of a part.
#[derive(Clone, Copy, Debug)]
pub struct FieldList {
    part: Part,
    /// The number of elements before the first field.
    before: usize,
    fields: &'static [StructureField],
}

impl FieldList {
    /// Creates the list of the fields that are the first elements of a part.
    pub const fn new(part: Part, fields: &'static [StructureField]) -> Self {
        Self { part, before: 0, fields }
    }

    /// Returns the list of the fields that follow these.
    pub const fn behind(self, fields: &'static [StructureField]) -> Self {
        Self { part: self.part, before: self.before + self.fields.len(), fields }
    }

    /// Returns the change of a field. Its number is twice its index: an odd number would name the element behind it, or
    /// ask for a correct checksum.
    ///
    /// # Panics
    /// The field is none of the list. All attacks are constants, so that the compiler reports this.
    pub const fn change(
        self,
        field: StructureField,
        transform: Transform,
        value: u16,
    ) -> FieldChange {
        let mut index = 0;
        while self.fields[index].at != field.at {
            index += 1;
        }
        (self.part, 2 * (self.before + index) as u16, transform, value)
    }

    /// Returns the same change with a correct checksum of the structure.
    ///
    /// # Panics
    /// As [`FieldList::change`].
    pub const fn sealed(
        self,
        field: StructureField,
        transform: Transform,
        value: u16,
    ) -> FieldChange {
        let (part, nth, transform, value) = self.change(field, transform, value);
        (part, nth + 1, transform, value)
    }
}

/// Returns the change of an item of the metadata.
pub const fn item(nth: u16, transform: Transform, value: u16) -> FieldChange {
    (Part::Metadata, nth, transform, value)
}

/// Returns the change of the first entry of the tables.
pub const fn entry(transform: Transform, value: u16) -> FieldChange {
    (Part::Table, 0, transform, value)
}
