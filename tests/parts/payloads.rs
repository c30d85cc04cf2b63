//! Parts of compressed clusters: the coding and the length of their payloads.

use qcowfuzz::formats::qcow2::geometry::Compression;
use qcowfuzz::internal::images::content::{CompressedContent, Shape};
use qcowfuzz::internal::images::qcow2::payload::Coding;
use qcowfuzz::internal::programs::interpreter::Effect;
use qcowfuzz::internal::programs::journal::JournalRecord;
use test_support::prelude::*;

use super::{ANYWHERE, Part, Trace};

/// Deflate, in one of its codings.
pub const DEFLATE_CODINGS: &str = "deflate in codings of its own";
/// Zstd, in one of its codings.
pub const ZSTD_CODINGS: &str = "zstd in codings of its own";

/// Declares the part for a coding.
macro_rules! coded {
    ($name:literal, $coding:ident, $lines:literal) => {
        Part {
            name: $name,
            prepare: ANYWHERE,
            lines: |_| $lines.to_string(),
            had: |trace| {
                trace.changed(|one| {
                    matches!(one, Operation::CompressAs { coding: Coding::$coding, .. })
                })
            },
        }
    };
}

/// The parts of compressed clusters.
pub const PARTS: &[Part] = &[
    Part {
        name: "a payload of given bytes",
        prepare: ANYWHERE,
        lines: |entropy| {
            format!(
                "bytes kind=payload data={}\ncompress at=start+3 clusters=1 shape=zeros skew=packed",
                lines::digits(entropy)
            )
        },
        had: |trace| {
            trace.vm.journal().records.iter().any(|record| {
                matches!(record, JournalRecord::Compressed {
                    content: CompressedContent::Given { length_bytes, .. }, ..
                } if *length_bytes > 2)
            })
        },
    },
    coded!(
        "stored and raw blocks",
        Stored,
        "compress_as at=start+1 shape=text coding=stored skew=packed\n\
         compress_as at=last+0 shape=noise coding=stored skew=fresh+900"
    ),
    coded!(
        "fixed codes and RLE blocks",
        Fixed,
        "compress_as at=last+0 shape=mixed coding=fixed skew=packed\n\
         compress_as at=last+0 shape=zeros coding=fixed skew=fresh+33"
    ),
    coded!(
        "level 1",
        Quick,
        "compress_as at=start+9 shape=coins coding=quick skew=packed\n\
         compress_as at=last+0 shape=half coding=quick skew=packed"
    ),
    coded!(
        "dynamic codes and level 19",
        Dynamic,
        "compress_as at=start+4 shape=coins coding=dynamic skew=packed\n\
         compress_as at=last+0 shape=mixed coding=dynamic skew=packed"
    ),
    coded!(
        "matches from far back and no content size",
        Window,
        "compress_as at=start+2 shape=far coding=window skew=packed\n\
         compress_as at=last+0 shape=text coding=window skew=fresh+1"
    ),
    coded!(
        "streams that go on past the cluster",
        Longer,
        "compress_as at=last+0 shape=text coding=longer skew=packed\n\
         compress_as at=last+0 shape=far coding=longer skew=fresh+20000"
    ),
    coded!(
        "bytes behind the stream",
        Trailing,
        "compress_as at=start+7 shape=eighth coding=trailing skew=packed\n\
         compress_as at=last+0 shape=speck coding=trailing skew=packed"
    ),
    coded!(
        "several blocks and frames",
        Pieces,
        "compress_as at=last+0 shape=coins coding=pieces skew=packed\n\
         compress_as at=last+0 shape=mixed coding=pieces skew=fresh+300"
    ),
    coded!(
        "empty last blocks and checksums",
        Ended,
        "compress_as at=last+0 shape=most coding=ended skew=packed\n\
         compress_as at=start+0 shape=mixed coding=ended skew=packed"
    ),
    coded!(
        "the largest length of a descriptor",
        Largest,
        "compress_as at=last+0 shape=text coding=largest skew=fresh+511\n\
         compress_as at=start+6 shape=speck coding=largest skew=packed"
    ),
    Part {
        name: "payloads of a few bytes",
        prepare: ANYWHERE,
        lines: |_| "compress_as at=last+0 shape=zeros coding=usual skew=packed".to_string(),
        had: |trace| compressed(trace, |_, _, shape| shape == Shape::Zeros),
    },
    Part {
        name: "payloads of most of the cluster",
        prepare: ANYWHERE,
        lines: |_| "compress_as at=start+3 shape=nearly coding=quick skew=packed".to_string(),
        had: |trace| {
            // In larger clusters, only 64 KiB are filled.
            compressed(trace, |length, cluster, _| {
                (cluster.min(64 << 10) / 2..cluster).contains(&length)
            })
        },
    },
    Part {
        name: "payloads longer than the cluster",
        prepare: |prologue| {
            let bits = prologue.cluster_bits.get().clamp(10, 16);
            prologue.cluster_bits =
                qcowfuzz::internal::programs::operand::Number::new(bits).unwrap();
        },
        lines: |_| {
            "compress_as at=start+8 shape=noise coding=usual skew=packed\n\
             compress_as at=last+0 shape=noise coding=dynamic skew=fresh+4000"
                .to_string()
        },
        had: |trace| {
            compressed(trace, |length, cluster, shape| shape == Shape::Noise && length > cluster)
        },
    },
    Part {
        name: DEFLATE_CODINGS,
        prepare: ANYWHERE,
        lines: |_| "compress_as at=start+8 shape=far coding=fixed skew=packed".to_string(),
        had: |trace| coded(trace, Compression::Deflate),
    },
    Part {
        name: ZSTD_CODINGS,
        prepare: |prologue| {
            use qcowfuzz::internal::programs::operand::ImageFeatures;
            prologue.version = qcowfuzz::formats::qcow2::geometry::Version::V3;
            prologue.features = prologue.features.with(ImageFeatures::ZSTD);
        },
        lines: |_| "compress_as at=start+8 shape=far coding=pieces skew=packed".to_string(),
        had: |trace| coded(trace, Compression::Zstd),
    },
];

fn coded(trace: &Trace, compression: Compression) -> bool {
    trace.vm.builder().plan().geometry.compression == compression
        && trace.top_operations().iter().any(|(one, effect)| {
            *effect == Effect::Changed && matches!(one, Operation::CompressAs { .. })
        })
}

/// Reports whether the program wrote a payload that is `wanted`, given its length, the cluster's length and its shape.
fn compressed(trace: &Trace, wanted: fn(u64, u64, Shape) -> bool) -> bool {
    let cluster = trace.vm.builder().plan().geometry.cluster_size.bytes();
    trace.vm.journal().records.iter().any(|record| match record {
        JournalRecord::Compressed {
            length_bytes,
            content: CompressedContent::Shape(shape),
            ..
        } => wanted(u64::from(*length_bytes), cluster, *shape),
        _ => false,
    })
}
