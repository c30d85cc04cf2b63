//! Bugs in the course of a walk: windows, stopping and resuming, its cost, failed reads.

use crate::prelude::*;
use qcowfuzz::formats::error::MapError;
use qcowfuzz::formats::qcow2::entry::Layout;

use super::{Case, Facts, Fault, Walked, cut};

pub const CASES: &[Case] = &[
    // Window.
    Case::extents(
        "an unaligned start omits the delta",
        |extents, facts, window| {
            let inside = window.start.get() & facts.geometry.cluster_size.mask();
            if let Some(first) = extents.first_mut() {
                let offset = first.mapping.offset;
                first.mapping.offset = offset.map(|at| HostOffset::new(at.get() - inside));
            }
        },
        // Subclusters end inside a cluster, so a resumed walk also starts unaligned.
        &["window: clip, normal → normal", "window: clip, ", "window: resumed, "],
    ),
    Case {
        name: "max-length is taken as an end",
        fault: Fault { window: Some(length_as_end), ..Fault::NONE },
        fingerprints: &["partition: end, the window's end → short of it"],
    },
    Case {
        name: "start + length wraps",
        fault: Fault {
            window: Some(|window, _| {
                let end = window.start.get().wrapping_add(window.length_bytes);
                let length_bytes = end.saturating_sub(window.start.get());
                Window { length_bytes, ..window }
            }),
            ..Fault::NONE
        },
        fingerprints: &[
            "window: resumed, as many as are left → another number",
            "partition: end, the window's end → short of it",
        ],
    },
    Case::extents(
        "going on skips an extent",
        |extents, _, window| {
            if window.start > GuestOffset::ZERO && window.length_bytes == u64::MAX {
                extents.drain(..extents.len().min(1));
            }
        },
        &[
            "window: resumed, as many as are left → another number",
            // A program may request such a window itself.
            "partition: ",
        ],
    ),
    Case::extents(
        "a resumed walk repeats extents",
        |extents, _, window| {
            if let Some(first) = extents.first_mut().filter(|_| window.length_bytes == u64::MAX)
                && window.start > GuestOffset::ZERO
            {
                let start = GuestOffset::new(first.start.get() - 1);
                *first = Extent { start, length_bytes: first.length_bytes + 1, ..*first };
            }
        },
        &["window: resumed, the same place → another", "window: resumed, ", "partition: "],
    ),
    Case::extents(
        "the second walk of a disk forgets",
        |extents, facts, _| {
            if let Some(first) = extents.first_mut().filter(|_| facts.walks == 1) {
                first.mapping = Mapping { present: !first.mapping.present, ..Mapping::HOLE };
            }
        },
        // If the program asks for a window between two images, that is the second walk.
        &["window: repeated, ", "window: clip, "],
    ),
    Case::extents(
        "a window's last extent is cut in two",
        |extents, _, window| {
            if let Some(last) = extents.len().checked_sub(1)
                && window != Window::ALL
                && extents[last].length_bytes > 1
            {
                cut(extents, last, 1);
            }
        },
        &["window: clip, no more extents → more", "window: clip, ", "window: resumed, "],
    ),
    Case {
        name: "stopping is not heard",
        fault: Fault {
            emit: Some(|extents, _, visitor| {
                extents.iter().for_each(|extent| {
                    let _ = visitor.extent(*extent);
                });
            }),
            ..Fault::NONE
        },
        fingerprints: &["window: stopped, as many as asked → another number"],
    },
    // Bounds.
    Case {
        name: "the walk goes round in circles",
        fault: Fault {
            emit: Some(|_, _, visitor| while visitor.step().is_continue() {}),
            ..Fault::NONE
        },
        fingerprints: &["bounds: steps, an end → out of fuel"],
    },
    Case {
        name: "the same extent for ever",
        fault: Fault { emit: Some(one_for_ever), ..Fault::NONE },
        fingerprints: &["bounds: steps, an end → out of fuel"],
    },
    Case {
        name: "the whole file is read",
        fault: Fault { end: Some(read_all), ..Fault::NONE },
        fingerprints: &["bounds: bytes read, within bounds → more"],
    },
    Case {
        name: "a table is read anew for each entry",
        fault: Fault { end: Some(read_for_each_entry), ..Fault::NONE },
        fingerprints: &["bounds: bytes read, within bounds → more"],
    },
    Case::extents("an extent for each byte", bytewise, &["bounds: extents, within bounds → more"]),
    // Io.
    Case {
        name: "a failed read is a hole",
        fault: Fault { end: Some(swallow), ..Fault::NONE },
        fingerprints: &["io: failed read, an error → an answer"],
    },
    Case {
        name: "a failed read is reported as another error",
        fault: Fault {
            end: Some(|walked, _, _| match walked {
                Err(_) => Err(EngineError::from(MapError::Unsupported("luck"))),
                Ok(()) => Ok(()),
            }),
            ..Fault::NONE
        },
        fingerprints: &["io: failed read, a storage error → another error"],
    },
    Case {
        name: "a failed read gives a wrong extent before its error",
        fault: Fault {
            end: Some(|walked, extents, facts| {
                if walked.is_err() {
                    extents.clear();
                    extents.push(hole(0, facts.size_bytes));
                }
                walked
            }),
            ..Fault::NONE
        },
        fingerprints: &["io: prefix, of the whole walk → not"],
    },
    Case {
        name: "a failed read loses what was pending",
        fault: Fault {
            end: Some(|walked, extents, _| {
                if walked.is_err() && extents.len() >= 2 {
                    extents.remove(0);
                }
                walked
            }),
            ..Fault::NONE
        },
        fingerprints: &["partition: start, the last end → a gap"],
    },
];

/// Bugs that only walks of a part have: of a window, up to a stop, or from there on.
pub const CASES_OF_PARTS: &[Case] = &[
    Case::extents(
        "a walk begins 512 bytes late after a stop",
        |extents, facts, window| {
            if resumes(window, facts) {
                begin_late(extents);
            }
        },
        &["partition: start, the last end → a gap"],
    ),
    Case::extents(
        "a walk that will be stopped begins 512 bytes late",
        |extents, facts, window| {
            if facts.walks > 0 && window == Window::ALL {
                begin_late(extents);
            }
        },
        &["partition: start, the last end → a gap"],
    ),
    Case::extents(
        "a resumed walk ends its first extent early",
        |extents, facts, window| {
            if resumes(window, facts) {
                extents.iter_mut().take(1).for_each(end_early);
            }
        },
        &[
            "partition: start, the last end → a gap",
            // It is the only extent.
            "partition: end, the window's end → short of it",
        ],
    ),
    Case::extents(
        "a window loses its last sector",
        |extents, _, window| {
            if window != Window::ALL {
                extents.iter_mut().next_back().into_iter().for_each(end_early);
            }
        },
        &["partition: end, the window's end → short of it"],
    ),
    Case::extents(
        "a window begins with the mapping of the byte before",
        |extents, _, window| {
            if let Some(first) = extents.first_mut()
                && window.start > GuestOffset::ZERO
            {
                let offset = first.mapping.offset;
                first.mapping.offset = offset.map(|at| HostOffset::new(at.get().saturating_sub(1)));
            }
        },
        &["window: clip, normal → normal", "window: clip, ", "window: resumed, "],
    ),
];

/// Reports whether a window is that of a resumed walk. If the whole walk failed, the oracle resumes in the third walk,
/// and the window ends where the whole walk did.
fn resumes(window: Window, facts: &Facts) -> bool {
    let reaches_end = if facts.failed { facts.walks == 2 } else { window.length_bytes == u64::MAX };
    window.start > GuestOffset::ZERO && reaches_end
}

fn begin_late(extents: &mut [Extent]) {
    if let Some(first) = extents.first_mut().filter(|first| first.length_bytes > 512) {
        first.start += 512;
        first.length_bytes -= 512;
        first.mapping = first.mapping.advanced(512).unwrap();
    }
}

fn end_early(extent: &mut Extent) {
    if extent.length_bytes > 512 {
        extent.length_bytes -= 512;
    }
}

fn hole(start: u64, length_bytes: u64) -> Extent {
    Extent { start: GuestOffset::new(start), length_bytes, mapping: Mapping::HOLE }
}

fn length_as_end(window: Window, _: &Facts) -> Window {
    match window.length_bytes {
        // The window reaches to the end of the disk, so the engine cannot mistake its length for an end.
        u64::MAX => window,
        end => Window { length_bytes: end.saturating_sub(window.start.get()), ..window },
    }
}

fn one_for_ever(extents: &[Extent], _: &Facts, visitor: &mut dyn Visitor) {
    if let Some(first) = extents.first() {
        while visitor.extent(*first).is_continue() {}
    }
}

fn read_all(walked: Walked, _: &mut Vec<Extent>, facts: &Facts) -> Walked {
    // A far gap makes a file of terabytes. A few megabytes suffice for the oracle.
    let length = facts.storage.length_bytes().min(4 << 20);
    let mut piece = [0; 4096];
    for at in (0..length).step_by(piece.len()) {
        facts.storage.read_at(HostOffset::new(at), &mut piece)?;
    }
    walked
}

fn read_for_each_entry(walked: Walked, extents: &mut Vec<Extent>, facts: &Facts) -> Walked {
    let mut table = vec![0; facts.geometry.cluster_size.bytes_usize()];
    for extent in extents {
        let clusters = extent.length_bytes.div_ceil(facts.geometry.cluster_size.bytes());
        for _ in 0..clusters.min(8) {
            facts.storage.read_at(HostOffset::ZERO, &mut table)?;
        }
    }
    walked
}

/// Cuts bytes off the extents until there is one extent more than the disk has cells.
fn bytewise(extents: &mut Vec<Extent>, facts: &Facts, _: Window) {
    let cells = facts.size_bytes.div_ceil(facts.geometry.cell_bytes());
    // On a larger disk, the fuel would run out first.
    if cells <= 1024 && !extents.is_empty() {
        let mut index = 0;
        while extents.len() as u64 <= cells {
            match extents[index].length_bytes {
                1 => {}
                _ => cut(extents, index, 1),
            }
            index += 1;
        }
    }
}

fn swallow(walked: Walked, extents: &mut Vec<Extent>, facts: &Facts) -> Walked {
    if walked.is_err() {
        let end = extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
        if end < facts.size_bytes {
            extents.push(hole(end, facts.size_bytes - end));
        }
    }
    Ok(())
}
