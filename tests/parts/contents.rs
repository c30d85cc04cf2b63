//! Parts of cluster contents.

use qcowfuzz::formats::qcow2::geometry::Compression;
use qcowfuzz::internal::programs::operand::{ImageFeatures, Keep, Number};
use test_support::prelude::*;

use super::{ANYWHERE, Part};

/// The looks of data of which QEMU would guess another format.
const LOOKS: [&str; 9] =
    ["qcow2", "vmdk", "cowd", "descriptor", "vpc", "vhdx", "luks", "vdi", "parallels"];

/// The parts of cluster contents.
pub const PARTS: &[Part] = &[
    Part {
        name: "zeros that keep their cluster",
        prepare: |prologue| prologue.version = qcowfuzz::formats::qcow2::geometry::Version::V3,
        lines: |_| "write at=start+1 clusters=3\nzero at=start+2 clusters=1 keep=yes".to_string(),
        had: |trace| trace.changed(|one| matches!(one, Operation::Zero { keep: Keep::Yes, .. })),
    },
    Part {
        name: "data that look like a file",
        prepare: |prologue| {
            prologue.features = prologue.features.without(ImageFeatures::EXTENDED_L2);
        },
        lines: |entropy| {
            let at = ["start+0", "end-0", "part+9000"][entropy.below(3) as usize];
            let look = LOOKS[entropy.below(LOOKS.len() as u64) as usize];
            format!("write_as at={at} clusters=1 look={look}")
        },
        had: |trace| trace.changed(|one| matches!(one, Operation::WriteAs { .. })),
    },
    Part {
        name: "compressed clusters",
        prepare: ANYWHERE,
        lines: |_| "compress at=start+5 clusters=3 shape=text skew=packed".to_string(),
        had: |trace| trace.changed(|one| matches!(one, Operation::Compress { .. })),
    },
    Part {
        name: "zstd",
        prepare: |prologue| {
            prologue.version = qcowfuzz::formats::qcow2::geometry::Version::V3;
            prologue.features = prologue.features.with(ImageFeatures::ZSTD);
        },
        lines: |_| "compress at=last+0 clusters=2 shape=half skew=fresh+700".to_string(),
        had: |trace| trace.vm.builder().plan().geometry.compression == Compression::Zstd,
    },
    Part {
        name: "subclusters",
        prepare: |prologue| {
            prologue.version = qcowfuzz::formats::qcow2::geometry::Version::V3;
            prologue.features = prologue.features.with(ImageFeatures::EXTENDED_L2);
            prologue.cluster_bits = Number::new(14.max(prologue.cluster_bits.get())).unwrap();
        },
        lines: |_| {
            "subclusters at=last+0 change=write first=3 count=5 stride=2\n\
             subclusters at=last+0 change=zero first=1 count=9 stride=3"
                .to_string()
        },
        had: |trace| trace.changed(|one| matches!(one, Operation::Subclusters { .. })),
    },
];
