//! The complete list of allowed differences between our walker and qemu-img, each with its reason. A test checks that
//! each still exists (`qemu_images.rs`).

use std::fmt;

use qcowfuzz::disk::extent::{Extent, Mapping};

/// An allowed difference.
#[derive(Clone, Copy)]
pub struct Difference {
    /// The name.
    pub name: &'static str,
    /// The reason why it is not a bug.
    pub reason: &'static str,
    /// Turns qemu-img's answer into ours. Returns true if that changed it.
    pub settle: fn(&mut Vec<Extent>) -> bool,
}

/// All allowed differences.
pub const DIFFERENCES: [Difference; 2] = [
    Difference {
        name: "empty record",
        reason: "of an empty window qemu-img map prints one record of length 0, with all flags \
                 false; extents are never empty, so that the walker gives none",
        settle: settle_empty_record,
    },
    Difference {
        name: "zero data",
        reason: "where the file takes far less space than its counts say, qemu-img asks the file \
                 system for holes and calls the data there zeros (qcow2.c, \
                 qcow2_detect_metadata_preallocation); what a file system keeps is not in the image",
        settle: settle_zero_data,
    },
];

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.reason)
    }
}

/// Removes `allowed` differences from qemu-img's answer, and returns those that it had.
pub fn settle(extents: &mut Vec<Extent>, allowed: &[Difference]) -> Vec<Difference> {
    allowed.iter().copied().filter(|difference| (difference.settle)(extents)).collect()
}

fn settle_empty_record(extents: &mut Vec<Extent>) -> bool {
    let blank = Mapping { zero: false, ..Mapping::HOLE };
    let empty =
        matches!(extents[..], [Extent { length_bytes: 0, mapping, .. }] if mapping == blank);
    if empty {
        extents.clear();
    }
    empty
}

fn settle_zero_data(extents: &mut Vec<Extent>) -> bool {
    let zero_data = |extent: &Extent| extent.mapping.zero && extent.mapping.data;
    if !extents.iter().any(zero_data) {
        return false;
    }
    let mut settled: Vec<Extent> = Vec::with_capacity(extents.len());
    for mut extent in extents.drain(..) {
        extent.mapping.zero &= !extent.mapping.data;
        match settled.last_mut() {
            // qemu-img cuts only extents of data at the edges of holes of the file.
            Some(last)
                if extent.mapping.data
                    && last.mapping.continues_as(last.length_bytes, &extent.mapping) =>
            {
                last.length_bytes += extent.length_bytes;
            }
            _ => settled.push(extent),
        }
    }
    *extents = settled;
    true
}
