//! Parts of headers. The last `header` operation of a program decides, so each line requests its part and random
//! others.

use qcowfuzz::formats::qcow2::constants::{
    COMPATIBLE_LAZY_REFCOUNTS, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_DATA_FILE,
    EXTENSION_END, EXTENSION_FEATURE_NAMES, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use qcowfuzz::formats::qcow2::geometry::Version;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::internal::images::files::{Deviation, LayerFiles};
use qcowfuzz::internal::programs::operand::ImageFeatures;
use qcowfuzz::internal::programs::prologue::Prologue;
use test_support::prelude::*;

use super::Part;

/// Declares the parts. A row has a name, the requirements, and a function that looks for the part in the image's bytes.
macro_rules! parts {
    ($($name:literal: $prepare:expr, $length:literal, $flags:literal, $had:expr;)+) => {
        /// The parts of headers.
        pub const PARTS: &[Part] = &[$(Part {
            name: $name,
            prepare: $prepare,
            lines: |entropy| line(entropy, $length, $flags),
            had: |trace| {
                let had: fn(&First) -> bool = $had;
                had(&First::of(trace.images.top()))
            },
        }),+];
    };
}

parts! {
    "a header of 104 bytes": version_3, "104+0", "", |it| it.length() == 104;
    "a header of 105 bytes": version_3, "104+1", "", |it| it.length() == 105;
    "a header of 112 bytes": version_3, "104+8", "", |it| it.length() == 112;
    "a longer header of odd length": version_3, "104+205", "", |it| it.length() > 112 && it.length() % 2 == 1;
    "a header as long as the cluster": version_3, "cluster-0", "", |it| it.length() == it.cluster_bytes();
    "unknown header fields": version_3, "104+72", "junk", |it| it.length() > 112 && it.bytes(112, 1) == [0x5A];
    "several unknown extensions": version_3, "shortest", "", |it| it.unknown().count() > 1;
    "an empty unknown extension": version_3, "shortest", "", |it| it.unknown().any(|(.., length)| length == 0);
    "an unknown extension of odd length, its padding not zero": version_3, "shortest", "junk",
        |it| it.unknown().any(|(_, at, length)| {
            length % 8 != 0 && it.bytes(at + 8 + u64::from(length), 1) == [0xC3]
        });
    "feature names behind an unknown extension": version_3, "shortest", "feature_names",
        |it| it.extensions.windows(2).any(|pair| {
            pair[1].0 == EXTENSION_FEATURE_NAMES && pair[0].0 != EXTENSION_FEATURE_NAMES
        });
    "names of unknown features": version_3, "shortest", "unknown_names",
        |it| it.extensions.iter().any(|(kind, _, length)| {
            *kind == EXTENSION_FEATURE_NAMES && *length == 8 * 48
        });
    "extensions that fill their area": version_3, "shortest", "no_end",
        |it| !it.end && it.header.backing_file_offset.get() == 0 && !it.extensions.is_empty();
    "extensions cut off by a name": version_3, "shortest", "no_end,empty_name",
        |it| !it.end && it.name_offset() > it.length() && it.name_offset() < it.cluster_bytes();
    "a name at the end of the cluster": version_3, "shortest", "name_at_end,empty_name",
        |it| it.name_offset() > 0 && it.name_end() == it.cluster_bytes();
    "unknown compatible bits": version_3, "shortest", "compatible_bits", |it| it.header.compatible >> 1 != 0;
    "unknown autoclear bits": version_3, "shortest", "autoclear_bits", |it| it.header.autoclear >> 2 != 0;
    "the dirty bit": version_3, "shortest", "dirty",
        |it| it.header.incompatible & INCOMPATIBLE_DIRTY != 0;
    "the corrupt bit": version_3, "shortest", "corrupt",
        |it| it.header.incompatible & INCOMPATIBLE_CORRUPT != 0;
    "lazy refcounts": lazy, "shortest", "", |it| it.header.compatible & COMPATIBLE_LAZY_REFCOUNTS != 0;
    "counts that are too low": version_3, "shortest", "out_of_date",
        |it| it.out_of_date.iter().any(|one| one.on_disk < one.references);
    "counts that are too high": version_3, "shortest", "out_of_date",
        |it| it.out_of_date.iter().any(|one| one.on_disk > one.references);
    "free clusters that are counted": version_3, "shortest", "out_of_date,hole",
        |it| it.out_of_date.iter().any(|one| one.references == 0);
}

/// The pairs of parts that exclude each other in a header, each with its reason.
pub const APART: &[(&str, &str, &str)] = &[
    ("a header of 104 bytes", "zstd", "the compression type lies behind them"),
    ("a header of 104 bytes", "a header of 105 bytes", ONE_LENGTH),
    ("a header of 104 bytes", "a header of 112 bytes", ONE_LENGTH),
    ("a header of 104 bytes", "a longer header of odd length", ONE_LENGTH),
    ("a header of 104 bytes", "a header as long as the cluster", ONE_LENGTH),
    ("a header of 104 bytes", "unknown header fields", ONE_LENGTH),
    ("a header of 105 bytes", "a header of 112 bytes", ONE_LENGTH),
    ("a header of 105 bytes", "a longer header of odd length", ONE_LENGTH),
    ("a header of 105 bytes", "a header as long as the cluster", ONE_LENGTH),
    ("a header of 105 bytes", "unknown header fields", ONE_LENGTH),
    ("a header of 112 bytes", "a longer header of odd length", ONE_LENGTH),
    ("a header of 112 bytes", "a header as long as the cluster", ONE_LENGTH),
    ("a header of 112 bytes", "unknown header fields", ONE_LENGTH),
    ("a longer header of odd length", "a header as long as the cluster", ONE_LENGTH),
    ("a header as long as the cluster", "several unknown extensions", NO_ROOM),
    ("a header as long as the cluster", "an empty unknown extension", NO_ROOM),
    ("a header as long as the cluster", ODD_PADDED, NO_ROOM),
    ("a header as long as the cluster", "feature names behind an unknown extension", NO_ROOM),
    ("a header as long as the cluster", "names of unknown features", NO_ROOM),
    ("a header as long as the cluster", "extensions that fill their area", NO_ROOM),
    ("a header as long as the cluster", "extensions cut off by a name", NO_ROOM),
    ("a header as long as the cluster", "backing file, qcow2", NO_ROOM),
    ("a header as long as the cluster", "backing file, raw", NO_ROOM),
    ("a header as long as the cluster", "backing file, VHD", NO_ROOM),
    ("a header as long as the cluster", "backing file, VHDX", NO_ROOM),
    ("a header as long as the cluster", "backing file, VMDK", NO_ROOM),
    ("a header as long as the cluster", "four layers", NO_ROOM),
    ("a header as long as the cluster", "shorter backing file", NO_ROOM),
    ("a header as long as the cluster", "longer backing file", NO_ROOM),
    ("a header as long as the cluster", "backing file of the same size", NO_ROOM),
    ("a header as long as the cluster", "backing file of odd size", NO_ROOM),
    ("a header as long as the cluster", "backing file of size 0", NO_ROOM),
    ("a header as long as the cluster", "backing file of another cluster size", NO_ROOM),
    ("a header as long as the cluster", "data file", NO_ROOM),
    ("a header as long as the cluster", "raw data file", NO_ROOM),
    ("a header as long as the cluster", "data file with a backing file", NO_ROOM),
    ("a header as long as the cluster", "bitmaps", NO_ROOM),
    ("a header as long as the cluster", "a bitmap in use", NO_ROOM),
    ("a header as long as the cluster", "bits of a bitmap", NO_ROOM),
    ("a header as long as the cluster", "the bitmaps extension without its bit", NO_ROOM),
    ("extensions that fill their area", "backing file, qcow2", ONE_END),
    ("extensions that fill their area", "backing file, raw", ONE_END),
    ("extensions that fill their area", "backing file, VHD", ONE_END),
    ("extensions that fill their area", "backing file, VHDX", ONE_END),
    ("extensions that fill their area", "backing file, VMDK", ONE_END),
    ("extensions that fill their area", "four layers", ONE_END),
    ("extensions that fill their area", "shorter backing file", ONE_END),
    ("extensions that fill their area", "longer backing file", ONE_END),
    ("extensions that fill their area", "backing file of the same size", ONE_END),
    ("extensions that fill their area", "backing file of odd size", ONE_END),
    ("extensions that fill their area", "backing file of size 0", ONE_END),
    ("extensions that fill their area", "backing file of another cluster size", ONE_END),
    ("extensions that fill their area", "data file with a backing file", ONE_END),
    ("extensions that fill their area", "extensions cut off by a name", ONE_END),
    ("extensions that fill their area", "a name at the end of the cluster", ONE_END),
];

const ODD_PADDED: &str = "an unknown extension of odd length, its padding not zero";
const ONE_LENGTH: &str = "a header has one length";
const NO_ROOM: &str = "extensions and names lie behind the header, in the same cluster";
const ONE_END: &str = "the area ends at the cluster's end, or at a name";

fn version_3(prologue: &mut Prologue) {
    prologue.version = Version::V3;
}

fn lazy(prologue: &mut Prologue) {
    version_3(prologue);
    prologue.features = prologue.features.with(ImageFeatures::LAZY_REFCOUNTS);
}

fn line(entropy: &mut Entropy, length: &str, flags: &str) -> String {
    let lengths = ["shortest", "104+0", "104+1", "104+8", "104+72", "104+205", "cluster-0"];
    let other = lengths[entropy.below(lengths.len() as u64) as usize];
    let length = if length == "shortest" { other } else { length };
    let asked = |word: &str| flags.split(',').any(|flag| flag == word);
    let words: Vec<_> =
        lines::HEADER_FLAGS.into_iter().filter(|word| asked(word) || entropy.one_in(3)).collect();
    let flags = if words.is_empty() { "none".to_string() } else { words.join(",") };
    let bytes = [0, 0, 3, 13, 64][entropy.below(5) as usize];
    let (order, unknown) = (entropy.below(256), entropy.below(5));
    // A freed cluster may keep its refcount.
    let hole = "write at=start+20 clusters=9\ndiscard at=start+21 clusters=1\n\
                discard at=start+24 clusters=1\ndiscard at=start+27 clusters=1\n";
    let hole = if asked("hole") { hole } else { "" };
    format!(
        "{hole}header length={length} order={order} unknown={unknown} bytes={bytes} flags={flags}"
    )
}

/// The first cluster of the image at the end of a program.
struct First<'i> {
    image: &'i Image,
    header: Header,
    /// The type, the offset and the length of each extension before the end.
    extensions: Vec<(u32, u64, u32)>,
    /// An extension marks the end.
    end: bool,
    out_of_date: &'i [Deviation],
}

impl<'i> First<'i> {
    fn of(files: &'i LayerFiles) -> Self {
        let LayerFiles { image, out_of_date, .. } = files;
        let header = Head::read(image).unwrap().header;
        let mut first = Self { image, header, extensions: Vec::new(), end: false, out_of_date };
        let mut at = first.length();
        while at < first.header.extension_area_end() {
            let word = |at| u32::from_be_bytes(first.bytes(at, 4).try_into().unwrap());
            let (kind, length) = (word(at), word(at + 4));
            if kind == EXTENSION_END {
                first.end = true;
                break;
            }
            first.extensions.push((kind, at, length));
            at += 8 + u64::from(length).next_multiple_of(8);
        }
        first
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.image.read_at(HostOffset::new(at), &mut bytes).unwrap();
        bytes
    }

    fn length(&self) -> u64 {
        u64::from(self.header.header_length_bytes)
    }

    fn cluster_bytes(&self) -> u64 {
        self.header.geometry.cluster_size.bytes()
    }

    fn name_end(&self) -> u64 {
        self.name_offset() + u64::from(self.header.backing_file_bytes)
    }

    fn name_offset(&self) -> u64 {
        self.header.backing_file_offset.get()
    }

    fn unknown(&self) -> impl Iterator<Item = (u32, u64, u32)> {
        let known = [
            EXTENSION_BACKING_FORMAT,
            EXTENSION_BITMAPS,
            EXTENSION_DATA_FILE,
            EXTENSION_FEATURE_NAMES,
        ];
        self.extensions.iter().copied().filter(move |(kind, ..)| !known.contains(kind))
    }
}
