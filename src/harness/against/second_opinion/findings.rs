//! The differences between the answers of another implementation and those of the engine, as violations.

use crate::disk::extent::{Extent, Mapping};
use crate::harness::oracles::{
    OracleResult, Violation, differing_field, disagreement, disagreement_with, violation,
};

/// The other implementation, as findings name it.
#[derive(Clone, Copy, Debug)]
pub(in crate::harness) struct Other<'n> {
    /// The first word of the fingerprints.
    pub(in crate::harness) oracle: &'static str,
    /// The word for a value of the implementation in fingerprints.
    pub(in crate::harness) whose: &'static str,
    /// The name in details.
    pub(in crate::harness) name: &'n str,
}

impl Other<'_> {
    /// Compares the sizes of a disk in bytes.
    pub(in crate::harness) fn check_size(&self, theirs: u64, ours: u64) -> OracleResult {
        if theirs == ours {
            return Ok(());
        }
        let (name, actual) = (self.name, if ours < theirs { "smaller" } else { "larger" });
        violation(self.oracle, "size", (self.whose, actual), || {
            format!("{name} finds a disk of {theirs} bytes, the implementation one of {ours}")
        })
    }

    /// Returns the violation of an image that only the other implementation opens. `error` is that of the engine.
    pub(in crate::harness) fn opens_alone(&self, error: &str) -> Box<Violation> {
        let detail =
            format!("{} opens the image, and the implementation does not: {error}", self.name);
        disagreement_with(error, self.oracle, "open", ("opened", "refused"), detail)
    }

    /// Returns the violation of an image that only the engine opens.
    pub(in crate::harness) fn refuses_alone(&self, error: &str) -> Box<Violation> {
        let detail =
            format!("the implementation opens the image, and {} does not: {error}", self.name);
        disagreement_with(error, self.oracle, "open", ("refused", "opened"), detail)
    }

    /// Returns the violation of a walk that ends with an error of the engine alone.
    pub(in crate::harness) fn walks_alone(&self, error: &str) -> Box<Violation> {
        let detail = format!("{} maps all of the disk, and the walk ends: {error}", self.name);
        disagreement_with(error, self.oracle, "walk", ("an answer", "an error"), detail)
    }

    /// Returns the violation of data that only the other implementation reads.
    pub(in crate::harness) fn reads_alone(&self, start: u64, length_bytes: u64) -> Box<Violation> {
        let detail = format!(
            "guest offset {start:#x}: {} reads {length_bytes} bytes, and the implementation does not",
            self.name
        );
        disagreement(self.oracle, "data", ("an answer", "an error"), detail)
    }

    /// Returns the violation of data that only the engine reads.
    pub(in crate::harness) fn unread(
        &self,
        start: u64,
        extents: &[Extent],
        error: &str,
    ) -> Box<Violation> {
        let kinds = ("an error", kind_at(extents, start));
        let (name, error) = (self.name, error.trim());
        let detail = format!(
            "guest offset {start:#x}: the implementation reads data, and {name} does not: {error}"
        );
        disagreement(self.oracle, "data", kinds, detail)
    }

    /// Returns the violation of a byte that is another one.
    pub(in crate::harness) fn other_byte(&self, at: u64, extents: &[Extent]) -> Box<Violation> {
        let name = self.name;
        let detail =
            format!("guest offset {at:#x}: the implementation reads another byte than {name}");
        disagreement(self.oracle, "data", (kind_at(extents, at), "other bytes"), detail)
    }

    /// Returns the violation of two extents that begin at the same byte and differ.
    pub(in crate::harness) fn other_extent(
        &self,
        theirs: &Extent,
        ours: &Extent,
    ) -> Box<Violation> {
        let field = differing_field(&theirs.mapping, &ours.mapping).unwrap_or("length");
        let detail = format!("{}: {theirs}; the implementation: {ours}", self.name);
        let kinds = (theirs.mapping.kind(), ours.mapping.kind());
        disagreement(self.oracle, map_field(field), kinds, detail)
    }
}

/// Returns the name of a field of a map in fingerprints.
pub(in crate::harness) fn map_field(field: &'static str) -> &'static str {
    match field {
        "kind" => "map: kind",
        "depth" => "map: depth",
        "offset" => "map: offset",
        "length" => "map: length",
        "extents" => "map: extents",
        _ => "map: flags",
    }
}

/// Returns the kind of the extent with a guest byte.
fn kind_at(extents: &[Extent], at: u64) -> &'static str {
    let next = extents.partition_point(|extent| extent.start.get() <= at);
    let found = next.checked_sub(1).and_then(|index| extents.get(index));
    found.map_or("unmapped", |extent| Mapping::kind(&extent.mapping))
}

/// Returns extents with the mappings that `mapping_of` makes of theirs, and those that continue each other as one.
pub(in crate::harness) fn merged(
    extents: &[Extent],
    mapping_of: impl Fn(Mapping) -> Mapping,
    merged: &mut Vec<Extent>,
) {
    merged.clear();
    for extent in extents {
        let mapping = mapping_of(extent.mapping);
        match merged.last_mut() {
            Some(last) if last.mapping.continues_as(last.length_bytes, &mapping) => {
                // A length that is held at 2^64 lies past the end of every disk.
                last.length_bytes = last.length_bytes.saturating_add(extent.length_bytes);
            }
            _ => merged.push(Extent { mapping, ..*extent }),
        }
    }
}
