//! Persistent dirty bitmaps, and what they leave.

use qcowfuzz::build::Leaving;
use qcowfuzz::entropy::Entropy;
use qcowfuzz::qcow2::header::Version;
use qcowfuzz::vm::operand::BitmapFlags;
use qcowfuzz::vm::operation::Prologue;
use qcowfuzz::vm::{Effect, Operation};

use super::{Part, Trace};

const V3: fn(&mut Prologue) = |prologue| prologue.version = Version::V3;

const BITMAPS: &str = "bitmaps";
const IN_USE: &str = "a bitmap in use";
const DATA: &str = "bits of a bitmap";
const BIT_LEFT: &str = "the bitmaps bit without the extension";
const EXTENSION_LEFT: &str = "the bitmaps extension without its bit";

/// Persistent dirty bitmaps, and what they leave.
pub const PARTS: &[Part] = &[
    Part {
        name: BITMAPS,
        prepare: V3,
        lines: |entropy| {
            let (one, other) = (bitmap(entropy, "auto"), bitmap(entropy, "none"));
            let first = entropy.below(1 << 16);
            format!(
                "{one}\n{other}\nfill_bitmap index=0 first={first} count=2 fill=ones\n\
                 fill_bitmap index=1 first=0 count=1 fill=ones\n\
                 fill_bitmap index=1 first=0 count=1 fill=zeroes"
            )
        },
        had: |trace| trace.vm.builder().bitmap_count() > 0,
    },
    Part {
        name: IN_USE,
        prepare: V3,
        lines: |entropy| bitmap(entropy, "in_use,auto"),
        had: |trace| {
            let in_use = |one: &Operation| match one {
                Operation::Bitmap { flags, .. } => flags.has(BitmapFlags::IN_USE),
                _ => false,
            };
            trace.changed(in_use) && trace.vm.builder().bitmap_count() > 0
        },
    },
    Part {
        name: DATA,
        prepare: V3,
        lines: |entropy| {
            let bitmap = bitmap(entropy, "auto");
            let (first, count) = (entropy.below(1 << 16), 1 + entropy.below(3));
            format!("{bitmap}\nfill_bitmap index=15 first={first} count={count} fill=bits")
        },
        had: |trace| {
            let filled = |one: &Operation| matches!(one, Operation::FillBitmap { .. });
            trace.changed(filled) && trace.vm.builder().bitmap_count() > 0
        },
    },
    Part {
        name: BIT_LEFT,
        prepare: V3,
        lines: |_| "delete_bitmap index=0 leaving=bit".to_string(),
        had: |trace| left(trace) == Some(Leaving::Bit),
    },
    Part {
        name: EXTENSION_LEFT,
        prepare: V3,
        lines: |_| {
            "bitmap granularity=31 flags=none name=9\n\
             fill_bitmap index=0 first=0 count=1 fill=bits\n\
             delete_bitmap index=0 leaving=extension"
                .to_string()
        },
        had: |trace| left(trace) == Some(Leaving::Extension),
    },
];

const THERE: &str = "what is left of bitmaps is where no bitmaps are";

/// What is left of bitmaps says that there are none.
pub const APART: &[(&str, &str, &str)] = &[
    (BITMAPS, BIT_LEFT, THERE),
    (BITMAPS, EXTENSION_LEFT, THERE),
    (IN_USE, BIT_LEFT, THERE),
    (IN_USE, EXTENSION_LEFT, THERE),
    (DATA, BIT_LEFT, THERE),
    (DATA, EXTENSION_LEFT, THERE),
    (BIT_LEFT, EXTENSION_LEFT, "an extension with its bit must name bitmaps"),
];

/// Mostly of a granularity with which a disk of any size can have one.
fn bitmap(entropy: &mut Entropy, flags: &str) -> String {
    let granularity = [31, 31, 21, 16, 9][entropy.below(5) as usize];
    let name = [0, 1, 7, 8, 9, 600, 1023][entropy.below(7) as usize];
    format!("bitmap granularity={granularity} flags={flags} name={name}")
}

/// What is left at the end, where there are no bitmaps any more.
fn left(trace: &Trace) -> Option<Leaving> {
    let changed = trace.operations.iter().filter(|(_, effect)| *effect == Effect::Changed);
    let last = changed.rev().find_map(|(one, _)| match one {
        Operation::Bitmap { .. } => Some(None),
        Operation::DeleteBitmap { leaving, .. } => Some(Some(*leaving)),
        _ => None,
    });
    last.flatten().filter(|leaving| *leaving != Leaving::Nothing)
}
