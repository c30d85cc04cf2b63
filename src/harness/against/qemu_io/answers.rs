//! The meaning of QEMU's answers: the images about which it answers slowly or wrongly, the classes of its refusals, the
//! named differences, and the violations for all other differences.

use std::ops::Range;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::SecondAnswer;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::qcow2::constants::header;
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::header::Header;
use crate::harness::against::differences::Other;
use crate::harness::against::second_opinion::{self, JudgedDisk, JudgedImage};
use crate::harness::engines::engine_process::EndedProgram;
use crate::harness::files::chain::{Chain, ChainFile, ChainLayer};
use crate::harness::oracles::{Violation, disagreement};
use crate::images::format::list::drawer;

/// The text with which qemu-io begins a refusal.
const REFUSED: &str = "can't open";

/// Words of an error, and the class of an error that has them. The first row counts.
const REFUSAL_CLASSES: &[(&str, SecondAnswer)] = &[
    ("itmap", SecondAnswer::RefusedBitmaps),
    ("efcount", SecondAnswer::RefusedRefcounts),
    ("napshot", SecondAnswer::RefusedSnapshots),
    ("L1 ", SecondAnswer::RefusedTable),
    ("BAT", SecondAnswer::RefusedTable),
    ("L2", SecondAnswer::RefusedTable),
    ("grain", SecondAnswer::RefusedTable),
    ("eader extension", SecondAnswer::RefusedExtension),
    ("data file", SecondAnswer::RefusedOtherFile),
    ("data-file", SecondAnswer::RefusedOtherFile),
    ("acking", SecondAnswer::RefusedOtherFile),
    ("xtent", SecondAnswer::RefusedDescriptor),
    ("escriptor", SecondAnswer::RefusedDescriptor),
    ("hecksum", SecondAnswer::RefusedChecksum),
    ("eature", SecondAnswer::RefusedFeature),
    ("nsupported", SecondAnswer::RefusedFeature),
    ("etadata", SecondAnswer::RefusedMetadata),
    ("egion", SecondAnswer::RefusedMetadata),
    ("size", SecondAnswer::RefusedSize),
    ("large", SecondAnswer::RefusedSize),
    ("format", SecondAnswer::RefusedFormat),
    ("ersion", SecondAnswer::RefusedFormat),
    ("magic", SecondAnswer::RefusedFormat),
    ("Input/output error", SecondAnswer::RefusedByRead),
];

/// Words of an error about a name that leads nowhere.
const LOST: [&str; 3] = ["No such file", "requires a file name", "Unknown protocol"];

/// Returns the refusal in the output of `open`; `None` if QEMU opens the image.
pub(super) fn refusal(printed: &str) -> Option<&str> {
    let (_, refusal) = printed.split_once(REFUSED)?;
    // The name of the device has no spaces, and differs from run to run.
    let refusal = refusal.split_once("}: ").map_or(refusal, |(_, reason)| reason);
    Some(refusal.trim_start_matches(": ").trim())
}

pub(super) fn class(refusal: &str) -> SecondAnswer {
    let found = REFUSAL_CLASSES.iter().find(|(words, _)| refusal.contains(words));
    found.map_or(SecondAnswer::RefusedOtherwise, |(_, class)| *class)
}

/// Reports whether a refusal of an image that the engine opens is a named difference.
///
/// - The mapping of a disk does not depend on the directory of bitmaps, which QEMU loads when it opens an image.
/// - An engine has the files of the chain. QEMU looks for a file under a name that an attack has changed.
pub(super) fn is_named(refusal: &str, image: &JudgedImage) -> bool {
    let is_about_bitmaps = refusal.contains("itmap") && !refusal.contains("bitmaps_ext");
    let follows_names = image.is_damaged && image.chain.has_other_files();
    is_about_bitmaps || follows_names && LOST.iter().any(|words| refusal.contains(words))
}

/// Returns a text with `_` in place of the paths of files that QEMU opens: they differ from run to run.
pub(super) fn without_paths(text: &str) -> String {
    let is_path = |word: &str| {
        word.trim_start_matches(['\'', '"', '(']).starts_with('/') || word.contains("\"/")
    };
    let words = text.split(' ').map(|word| if is_path(word) { "_" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// The first word of the fingerprints.
pub(super) const ORACLE: &str = second_opinion::OF_QEMU;

/// QEMU, as findings name it.
pub(super) const QEMU: Other<'static> = Other { oracle: ORACLE, whose: "QEMU's", name: "QEMU" };

/// A function that records the class of an answer of QEMU.
pub(super) type RecordAnswer<'a> = dyn FnMut(SecondAnswer) + 'a;

/// Returns the violation of a byte that only one side allocates in the image at the top.
pub(super) fn wrong_allocation(at: u64, is_allocated: bool) -> Box<Violation> {
    let kinds = match is_allocated {
        true => ("allocated", "not allocated"),
        false => ("not allocated", "allocated"),
    };
    let (theirs, ours) = kinds;
    let detail =
        format!("to QEMU it is {theirs} in the image at the top, to the implementation {ours}");
    disagreement(ORACLE, "allocation", kinds, detail).at(GuestOffset::new(at))
}

/// Returns the violation of an end of qemu-io in place of an answer.
#[expect(clippy::boxed_local, reason = "the error of a question has a box")]
pub(super) fn ended(ran: Box<EndedProgram>) -> Box<Violation> {
    // Addresses and numbers of processes differ from run to run, so only the status is shown.
    let detail = "qemu-io ends in place of an answer; 'none' means that it was silent for too long";
    disagreement(ORACLE, "end", ("an answer", ran.end.process.name()), detail.to_string())
}

/// Returns the violation of data that differ, if blkverify has ended qemu-io for that.
pub(super) fn mismatch(ran: &EndedProgram, extents: &[Extent]) -> Option<Box<Violation>> {
    let (_, report) = ran.output.rsplit_once("blkverify: ")?;
    let number = |name: &str| {
        let (_, rest) = report.split_once(name)?;
        let digits = rest.split(|one: char| !one.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    match number("contents mismatch at offset ") {
        Some(at) => Some(QEMU.other_byte(at, extents)),
        None if report.contains("return value mismatch") => {
            Some(QEMU.unread(number("read offset=")?, extents, "blkverify"))
        }
        None => None,
    }
}

/// The highest number of snapshots of a qcow2 image: QEMU opens an image with the most that it allows in seconds.
const MAX_OPENED_SNAPSHOTS: u32 = 1024;
/// The host offset of the number of snapshots in a qcow2 header.
const SNAPSHOTS_AT: HostOffset = HostOffset::new(header::NB_SNAPSHOTS.at as u64);
/// The highest number of clusters, or subclusters, of a file whose image is mapped.
const MAX_COUNTED_CELLS: u64 = 1 << 21;
/// A disk with more tables is costly: QEMU reads the whole table at the top when it opens the image.
const MAX_CHEAP_TABLES: u64 = 1 << 16;
/// The largest disk of which an engine maps all, in bytes.
const MAX_ENGINE_DISK_BYTES: u64 = 1 << 47;
/// The highest number of tables of such a disk.
const MAX_ENGINE_DISK_TABLES: u64 = 1 << 17;

/// Reports whether QEMU would take seconds to open a layer.
pub(crate) fn has_many_snapshots(layer: &ChainLayer) -> bool {
    let mut snapshots = [0; 4];
    layer.format == ImageFormat::Qcow2
        && layer.image.read_at(SNAPSHOTS_AT, &mut snapshots).is_ok()
        && u32::from_be_bytes(snapshots) > MAX_OPENED_SNAPSHOTS
}

/// Reports whether a file of an image is so long that QEMU would count its clusters for seconds before it maps the disk
/// (`block/qcow2.c`, `qcow2_detect_metadata_preallocation`).
pub(super) fn is_long(image: &JudgedImage) -> bool {
    image.chain.layers().iter().any(|layer| has_many_cells(&layer.image, image.cell_bytes))
}

/// Reports whether the image at the top is so long that `qemu-img check` would count its clusters for seconds.
pub(super) fn is_long_to_check(files: &Chain) -> bool {
    let image = files.image();
    let is_long = |header: Header| has_many_cells(image, header.geometry.cluster_size.bytes());
    Header::read(image).is_ok_and(is_long)
}

/// Reports whether `qemu-img map` or `qemu-img convert` would take seconds for the disk at the top of `chain`: they
/// visit each table, also a missing one, and each GiB. Nothing is known about an image without a sound header.
pub(crate) fn is_slow_to_map(chain: &Chain) -> bool {
    let is_slow = |layer: &ChainLayer| match layer.format {
        ImageFormat::Qcow2 => Header::read(&layer.image).is_ok_and(|header| {
            let Header { geometry, size_bytes, .. } = header;
            let span_bits = geometry.l2_bits() + geometry.cluster_size.bits();
            let files = [Some(&layer.image), layer.data_file.as_ref()].into_iter().flatten();
            let mut files = files.map(|file| has_many_cells(file, geometry.cluster_size.bytes()));
            size_bytes > MAX_ENGINE_DISK_BYTES
                || size_bytes >> span_bits > MAX_ENGINE_DISK_TABLES
                || files.any(|is_long| is_long)
        }),
        _ => layer.image.length_bytes() > MAX_ENGINE_DISK_BYTES,
    };
    chain.layers().iter().any(|layer| has_many_snapshots(layer) || is_slow(layer))
}

fn has_many_cells(file: &ChainFile, cell_bytes: u64) -> bool {
    file.length_bytes() / cell_bytes.max(1) > MAX_COUNTED_CELLS
}

/// Reports whether QEMU reads a table of more than half a MiB when it opens the image at the top.
pub(super) fn has_many_tables(image: &JudgedImage) -> bool {
    let tables = |disk: &JudgedDisk| disk.size_bytes >> image.table_span_bits.min(63);
    image.disk.as_ref().is_ok_and(|disk| tables(disk) > MAX_CHEAP_TABLES)
}

/// Reports whether one of `extents` begins below the lowest host offset at which a writer of its format may store a
/// block. If so, QEMU may read wrong bytes from the image.
pub(super) fn has_early_block(extents: &[Extent], chain: &Chain) -> bool {
    extents.iter().any(|extent| is_in(extent, chain, |misread| misread.start))
}

/// Reports whether QEMU may read wrong bytes of `extent`, if [`has_early_block`] is true for the image.
pub(super) fn is_misread(extent: &Extent, chain: &Chain) -> bool {
    is_in(extent, chain, |misread| misread.end)
}

/// Reports whether an extent begins below a bound of the format of its layer, see `ImageDrawer::misread_blocks`.
fn is_in(extent: &Extent, chain: &Chain, bound: fn(Range<HostOffset>) -> HostOffset) -> bool {
    let Mapping { depth, offset, .. } = extent.mapping;
    let layer = usize::try_from(depth).ok().and_then(|depth| chain.layers().get(depth));
    let misread = layer.and_then(|layer| drawer(layer.format).misread_blocks());
    misread.zip(offset).is_some_and(|(misread, offset)| offset < bound(misread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_classes() {
        let printed =
            "qemu-io: can't open: Could not open '/proc/1/fd/3': Invalid L1 table offset\n";
        let refused = refusal(printed).unwrap();
        assert_eq!(class(refused), SecondAnswer::RefusedTable);
        assert_eq!(class("x"), SecondAnswer::RefusedOtherwise);
        assert_eq!(refusal(""), None);
        let named =
            "qemu-io: can't open device json:{\"file\":{\"filename\":\"/proc/1/fd/3\"}}: No\n";
        assert_eq!(refusal(named), Some("No"));
        assert_eq!(without_paths("a '/proc/1': Input/output"), "a _ Input/output");
        assert_eq!(without_paths(r#"json:{"file":"/x"}: no"#), "_ no");
    }
}
