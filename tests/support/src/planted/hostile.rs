//! Bugs that only damaged images show.

use crate::prelude::*;

use super::{Case, Facts, Fault, LookUp};

/// Reports whether an extent lies past the end of the file, as in damaged images.
fn past_the_file(extents: &[Extent], facts: &Facts) -> bool {
    let end = facts.storage.length_bytes();
    extents.iter().any(|it| it.mapping.offset.is_some_and(|at| at.get() >= end))
}

pub const CASES: &[Case] = &[
    Case {
        name: "a malformed entry is a hole, and the walk goes on",
        fault: Fault {
            end: Some(|walked, extents, facts| {
                let failed = walked.is_err();
                if failed {
                    let end = extents.last().and_then(Extent::end).unwrap_or_default();
                    let length_bytes = facts.size_bytes - end.get();
                    extents.push(Extent { start: end, length_bytes, mapping: Mapping::HOLE });
                }
                Ok(())
            }),
            ..Fault::NONE
        },
        // Look-ups refuse the entry, the extents behind it are lost, or the hole does not merge.
        fingerprints: &["lookup: byte, an answer → an error", "lookup: ", "hostile: ", "maximal: "],
    },
    Case {
        name: "an error is reported as an end",
        fault: Fault { end: Some(|_, _, _| Ok(())), ..Fault::NONE },
        fingerprints: &["partition: end, the window's end → short of it"],
    },
    Case {
        name: "a walk that fails loses its first extent",
        fault: Fault {
            end: Some(|walked, extents, _| {
                if walked.is_err() && extents.len() > 1 {
                    extents.remove(0);
                }
                walked
            }),
            ..Fault::NONE
        },
        fingerprints: &["partition: start, the last end → a gap"],
    },
    Case {
        name: "a failed walk reports a wrong last extent",
        fault: Fault {
            end: Some(|walked, extents, _| {
                if let (true, [first, ..]) = (walked.is_err(), extents.as_mut_slice()) {
                    first.mapping = Mapping { present: true, ..Mapping::HOLE };
                }
                walked
            }),
            ..Fault::NONE
        },
        fingerprints: &[
            "hostile: kind, unallocated → zero-plain",
            "maximal: ",
            "lookup: ",
            "hostile: ",
        ],
    },
    Case {
        name: "one damaged entry makes a hole of everything",
        fault: Fault {
            extents: Some(|extents, facts, _| {
                if past_the_file(extents, facts) {
                    let whole = Extent { length_bytes: facts.size_bytes, ..extents[0] };
                    *extents = vec![Extent { mapping: Mapping::HOLE, ..whole }];
                }
            }),
            ..Fault::NONE
        },
        // Both edges of the disk are holes, so look-ups there agree.
        fingerprints: &["hostile: kind, normal → unallocated", "hostile: kind, ", "lookup: "],
    },
    Case {
        name: "a walk of a damaged table does not end",
        fault: Fault {
            emit: Some(|extents, facts, visitor| {
                let odd = past_the_file(extents, facts);
                for extent in extents {
                    if visitor.extent(*extent).is_break() {
                        return;
                    }
                }
                while odd && visitor.step() == ControlFlow::Continue(()) {}
            }),
            ..Fault::NONE
        },
        fingerprints: &["bounds: steps, an end → out of fuel"],
    },
    Case {
        name: "look-ups do not see damage",
        fault: Fault {
            lookup: Some(|disk, _, guest| match disk.lookup(guest) {
                Ok(Mapping { data: true, offset: None, .. }) => {
                    Err(EngineError::untyped("compressed"))
                }
                other => other,
            }),
            ..Fault::NONE
        },
        fingerprints: &["lookup: "],
    },
];
