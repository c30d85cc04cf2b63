//! Parts of persistent dirty bitmaps and of their remains.

use qcowfuzz::formats::qcow2::bitmap::{BitmapCluster, BitmapEntry, BitmapTableEntry};
use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, BITMAP_FIXED_BYTES, EXTENSION_BITMAPS,
};
use qcowfuzz::formats::qcow2::geometry::Version;
use qcowfuzz::internal::images::qcow2::Leaving;
use qcowfuzz::internal::programs::prologue::Prologue;
use test_support::prelude::*;

use super::{Part, Trace};

const V3: fn(&mut Prologue) = |prologue| prologue.version = Version::V3;

const BITMAPS: &str = "bitmaps";
const IN_USE: &str = "a bitmap in use";
const DATA: &str = "bits of a bitmap";
const BIT_LEFT: &str = "the bitmaps bit without the extension";
const EXTENSION_LEFT: &str = "the bitmaps extension without its bit";

/// The parts of persistent dirty bitmaps and of their remains.
pub const PARTS: &[Part] = &[
    Part {
        name: BITMAPS,
        prepare: V3,
        lines: |entropy| {
            let (one, other) = (bitmap(entropy, "auto"), bitmap(entropy, "none"));
            let first = entropy.below(1 << 16);
            format!(
                "{one}\n{other}\nfill_bitmap index=0 entry={first} entries=2 fill=ones\n\
                 fill_bitmap index=1 entry=0 entries=1 fill=ones\n\
                 fill_bitmap index=1 entry=0 entries=1 fill=zeroes"
            )
        },
        had: |trace| Bitmaps::of(trace).entries.iter().any(|one| !one.in_use()),
    },
    Part {
        name: IN_USE,
        prepare: V3,
        lines: |entropy| bitmap(entropy, "in_use,auto"),
        had: |trace| Bitmaps::of(trace).entries.iter().any(BitmapEntry::in_use),
    },
    Part {
        name: DATA,
        prepare: V3,
        lines: |entropy| {
            let bitmap = bitmap(entropy, "auto");
            let (first, count) = (entropy.below(1 << 16), 1 + entropy.below(3));
            format!("{bitmap}\nfill_bitmap index=15 entry={first} entries={count} fill=bits")
        },
        had: |trace| Bitmaps::of(trace).data_clusters > 0,
    },
    Part {
        name: BIT_LEFT,
        prepare: V3,
        lines: |_| "delete_bitmap index=0 leaving=bit".to_string(),
        had: |trace| Bitmaps::of(trace).left == Some(Leaving::Bit),
    },
    Part {
        name: EXTENSION_LEFT,
        prepare: V3,
        lines: |_| {
            "bitmap granularity=31 flags=none name=9\n\
             fill_bitmap index=0 entry=0 entries=1 fill=bits\n\
             delete_bitmap index=0 leaving=extension"
                .to_string()
        },
        had: |trace| Bitmaps::of(trace).left == Some(Leaving::Extension),
    },
];

const THERE: &str = "what is left of bitmaps is where no bitmaps are";

/// The pairs of parts that exclude each other: an image has either bitmaps or one of the remains.
pub const APART: &[(&str, &str, &str)] = &[
    (BITMAPS, BIT_LEFT, THERE),
    (BITMAPS, EXTENSION_LEFT, THERE),
    (IN_USE, BIT_LEFT, THERE),
    (IN_USE, EXTENSION_LEFT, THERE),
    (DATA, BIT_LEFT, THERE),
    (DATA, EXTENSION_LEFT, THERE),
    (BIT_LEFT, EXTENSION_LEFT, "an extension with its bit must name bitmaps"),
];

/// Returns a `bitmap` line, mostly with a granularity that is allowed for a disk of any size.
fn bitmap(entropy: &mut Entropy, flags: &str) -> String {
    let granularity = [31, 31, 21, 16, 9][entropy.below(5) as usize];
    let name = [0, 1, 7, 8, 9, 600, 1023][entropy.below(7) as usize];
    format!("bitmap granularity={granularity} flags={flags} name={name}")
}

/// The bitmaps of the image that a program builds.
struct Bitmaps {
    entries: Vec<BitmapEntry>,
    /// The clusters with bits.
    data_clusters: usize,
    /// The remains of bitmaps, if there are no bitmaps.
    left: Option<Leaving>,
}

impl Bitmaps {
    fn of(trace: &Trace) -> Self {
        let image = &trace.images.top().image;
        let Head { header, bitmaps, .. } = Head::read(image).unwrap();
        let cluster_size = header.geometry.cluster_size;
        let mut found = Self { entries: Vec::new(), data_clusters: 0, left: None };
        let Some(extension) = bitmaps else {
            let bit = header.autoclear & AUTOCLEAR_BITMAPS != 0;
            let mut first = vec![0; cluster_size.bytes_usize()];
            image.read_at(HostOffset::ZERO, &mut first).unwrap();
            let magic = EXTENSION_BITMAPS.to_be_bytes();
            let extension = first.windows(4).any(|word| word == magic);
            found.left = match (bit, extension) {
                (true, _) => Some(Leaving::Bit),
                (false, true) => Some(Leaving::Extension),
                (false, false) => None,
            };
            return found;
        };
        let mut at = extension.directory_offset;
        for _ in 0..extension.bitmaps {
            let mut fixed = [0; BITMAP_FIXED_BYTES];
            image.read_at(at, &mut fixed).unwrap();
            let entry = BitmapEntry::parse(&fixed);
            let mut table = vec![0; entry.table_entries as usize * 8];
            image.read_at(entry.table_offset, &mut table).unwrap();
            let word = |bytes: &[u8; 8]| BitmapTableEntry(u64::from_be_bytes(*bytes));
            let clusters =
                table.as_chunks().0.iter().map(|bytes| word(bytes).cluster(cluster_size));
            found.data_clusters +=
                clusters.filter(|one| matches!(one, Ok(BitmapCluster::Data(_)))).count();
            found.entries.push(entry);
            at += entry.length_bytes();
        }
        found
    }
}
