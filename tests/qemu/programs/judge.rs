//! Judges one program with qemu: exports its images, and opens, checks, maps and reads them.

use test_support::prelude::*;

use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use qcowfuzz::formats::qcow2::entry::Layout;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::internal::harness::model::Model;
use qcowfuzz::internal::harness::oracles::data::{admit_inner_stamps, expect};
use qcowfuzz::internal::images::content::CompressedContent;
use qcowfuzz::internal::programs::interpreter::Vm;
use qcowfuzz::internal::programs::journal::JournalRecord;
use qcowfuzz::walkers::chain::FileChain;

use crate::programs::Case;
use crate::programs::exported::Exported;
use crate::programs::files::{
    MAX_FILE_BYTES, are_mappable, check_layers, export_to, is_checkable, too_long, write_to,
};
use crate::programs::snapshots::{self, Listed};
use test_support::qemu::WHOLE_DISK_BYTES;

/// The state of a thread.
pub struct Bench {
    pub harness: Harness,
    model: Model,
    pub dir: tempfile::TempDir,
    /// The length of the longest file that the folder can hold.
    most_file_bytes: u64,
}

impl Bench {
    pub fn new() -> Self {
        Self::writing_to(&std::env::temp_dir(), MAX_FILE_BYTES)
    }

    /// Creates a state whose files lie in `folder`, and have at most `most_file_bytes`.
    pub fn writing_to(folder: &Path, most_file_bytes: u64) -> Self {
        Self {
            harness: Harness::new(Walker::default()),
            model: Model::new(),
            dir: tempfile::tempdir_in(folder).unwrap(),
            most_file_bytes,
        }
    }
}
/// Judges the program of `case`.
pub fn judge(bench: &mut Bench, case: &Case) -> Checked<Tally> {
    let Bench { harness, dir, most_file_bytes, .. } = bench;
    let mut entropy = Entropy::new(u64::from(crc32fast::hash(&case.input)));
    harness.build(&case.input);
    let images = harness.images();
    let mut tally = Tally::default();
    if images.top().format != ImageFormat::Qcow2 {
        // tests/qemu/formats/mod.rs judges them.
        tally.add("programs in other formats", 1);
        return Ok(tally);
    }
    if let Some((length, most)) = too_long(images, *most_file_bytes) {
        skipped(format_args!("{}: a file of {length} bytes, expected at most {most}", case.name));
        tally.add("programs with a file that is too long to be written", 1);
        return Ok(tally);
    }
    tally.add("programs with given bytes", u64::from(has_given_bytes(harness.vm(), images)));
    let path = dir.path().join("layer.qcow2");
    let holes = export_to(&path, images, &mut entropy)?;
    let files = FileChain::open(&path, Some(ImageFormat::Qcow2)).described()?;
    let checkable = is_checkable(images)?;
    if checkable {
        check_layers(dir.path(), images)?;
    } else {
        tally.add("programs with too many clusters to be checked", 1);
    }
    if !are_mappable(dir.path(), images)? {
        skipped(format_args!("{}: qemu-img would take minutes to map its files", case.name));
        tally.add("programs with too many clusters to be mapped", 1);
        return remove_files(bench).map(|()| tally);
    }
    compare_disk(bench, &files, WINDOWS, &mut entropy, &mut tally)?;
    let Bench { harness, model, .. } = bench;
    tally.add("raw data files", compare_raw_data_file(harness.images(), model)?);
    compare_snapshots(bench, (holes, checkable), &mut entropy, &mut tally)?;
    remove_files(bench).map(|()| tally)
}

/// Judges only the map and the data of the program of `case`, an image on a raw file with holes.
pub fn judge_disk(bench: &mut Bench, case: &Case) -> Checked<Tally> {
    let mut entropy = Entropy::new(u64::from(crc32fast::hash(&case.input)));
    bench.harness.build(&case.input);
    let path = bench.dir.path().join("layer.qcow2");
    export_to(&path, bench.harness.images(), &mut entropy)?;
    let files = FileChain::open(&path, Some(ImageFormat::Qcow2)).described()?;
    let mut tally = Tally::default();
    compare_disk(bench, &files, 1, &mut entropy, &mut tally)?;
    remove_files(bench).map(|()| tally)
}

/// The number of windows in which the maps of most programs are compared.
const WINDOWS: usize = 3;

/// Compares the map and the data of the exported program.
fn compare_disk(
    bench: &mut Bench,
    files: &FileChain,
    windows: usize,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    let Bench { harness, model, dir, .. } = bench;
    let (images, path) = (harness.images(), dir.path().join("layer.qcow2"));
    model.replay(harness.vm().journals());
    let in_memory: Vec<_> = images.layers().map(|files| files.layer()).collect();
    with_erased(&files.layers(), |on_disk| {
        with_erased(&in_memory, |in_memory| {
            let exported = Exported {
                path: &path,
                on_disk,
                in_memory,
                model,
                l2_span_bytes: l2_span_bytes(harness.vm()),
                has_vhdx: has_vhdx(images),
                has_small_holes: has_small_holes(harness.vm()),
                windows,
            };
            tally.add("programs", 1);
            tally.add("programs on small holes", u64::from(exported.has_small_holes));
            tally.add("chains", u64::from(on_disk.len() > 1));
            exported.compare_maps(entropy, tally)?;
            exported.compare_data(entropy, tally)
        })
    })
}

/// Calls `judge` with the layers behind `dyn Storage`.
fn with_erased<S: Storage, T>(layers: &[Layer<S>], judge: impl FnOnce(&[Layer]) -> T) -> T {
    let extents: Vec<_> = layers.iter().map(Layer::erased_extents).collect();
    let erased: Vec<Layer> =
        layers.iter().zip(&extents).map(|(layer, extents)| layer.erased(extents)).collect();
    judge(&erased)
}

/// Removes the files of the program.
fn remove_files(bench: &Bench) -> Checked<()> {
    let path = bench.dir.path().join("layer.qcow2");
    for (name, _) in bench.harness.images().files(&FileNames::default()) {
        let path = name.map_or(path.clone(), |name| path.with_file_name(name));
        fs::remove_file(&path).described()?;
    }
    Ok(())
}

/// Compares each raw data file with the disk, byte for byte. Returns the number of such files.
fn compare_raw_data_file(images: &Images, model: &Model) -> Checked<u64> {
    let top = images.top();
    let head = Head::read(&top.image).described()?;
    let size = model.virtual_size_bytes();
    if head.header.autoclear & AUTOCLEAR_RAW_DATA_FILE == 0 || size > WHOLE_DISK_BYTES {
        return Ok(0);
    }
    let mut disk = vec![0; size as usize];
    expect(model, GuestOffset::ZERO, &mut disk);
    let mut file = vec![0; top.data_file.length_bytes() as usize];
    top.data_file.read_at(HostOffset::ZERO, &mut file).described()?;
    compare::same_bytes("the raw data file", 0, &file, &disk)?;
    Ok(1)
}

/// Compares the snapshots of the exported top image with qemu's: their table, and the content of each, by itself or
/// applied.
fn compare_snapshots(
    bench: &mut Bench,
    (holes, checkable): (Holes, bool),
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    let Bench { harness, model, dir, .. } = bench;
    let images = harness.images();
    let (path, copy) = (dir.path().join("layer.qcow2"), dir.path().join("applied.qcow2"));
    let version = harness.vm().builder().plan().geometry.version;
    let active_bytes = model.virtual_size_bytes();
    // qemu-img repairs a dirty image first, refuses to write to a corrupt one, and applies no snapshot
    // while there are bitmaps.
    let head = Head::read(&images.top().image).described()?;
    let unclean = INCOMPATIBLE_DIRTY | INCOMPATIBLE_CORRUPT;
    let Header { incompatible, autoclear, .. } = head.header;
    let writable = incompatible & unclean == 0 && autoclear & AUTOCLEAR_BITMAPS == 0;
    let all = snapshots::list(&FileStorage::open(&path).described()?)?;
    snapshots::compare_lists(&path, &all)?;
    for (index, snapshot) in all.iter().enumerate() {
        let described = |error| format!("snapshot {index}, {snapshot:?}: {error}");
        model.become_snapshot(index);
        tally.add("snapshots", 1);
        let largest = model.virtual_size_bytes().max(active_bytes);
        // Every process takes milliseconds, so the test does only one of the two if both are possible.
        if largest <= WHOLE_DISK_BYTES && entropy.one_in(2) {
            compare_converted(&path, snapshot, model, active_bytes).map_err(described)?;
            tally.add("snapshots that are converted", 1);
            continue;
        }
        // qemu-img takes minutes to resize a large disk.
        let usable = writable && checkable;
        if !usable || model.virtual_size_bytes() != active_bytes && largest > WHOLE_DISK_BYTES {
            continue;
        }
        write_to(&copy, &images.top().image, holes)?;
        if snapshots::apply(&copy, snapshot, version, active_bytes)? {
            // Leaks in tables that QEMU wrote are no fault of ours.
            let (findings, said) = qemu::check(&copy)?;
            if (findings.corruptions, findings.check_errors) != (0, 0) {
                return Err(described(format!("applied by qemu-img: {findings:?}\n{said}")));
            }
            let files = FileChain::open(&copy, Some(ImageFormat::Qcow2)).described()?;
            let layers = files.layers();
            let extents: Vec<_> = layers.iter().map(Layer::erased_extents).collect();
            let on_disk = layers.iter().zip(&extents);
            let on_disk: Vec<Layer> =
                on_disk.map(|(layer, extents)| layer.erased(extents)).collect();
            let applied = Exported {
                path: &copy,
                on_disk: &on_disk,
                in_memory: &on_disk,
                model,
                l2_span_bytes: l2_span_bytes(harness.vm()),
                has_vhdx: has_vhdx(harness.images()),
                has_small_holes: has_small_holes(harness.vm()),
                windows: WINDOWS,
            };
            applied.compare_maps(entropy, tally).map_err(described)?;
            applied.compare_data(entropy, tally).map_err(described)?;
            tally.add("snapshots that are applied", 1);
        }
        fs::remove_file(&copy).described()?;
    }
    Ok(())
}

/// Compares the output of `qemu-img convert -l` with `model`, the snapshot, up to the end of the shorter disk.
fn compare_converted(
    path: &Path,
    snapshot: &Listed,
    model: &Model,
    active_bytes: u64,
) -> Checked<()> {
    let size = model.virtual_size_bytes();
    let Some(theirs) = snapshots::convert(path, &path.with_extension("raw"), snapshot)? else {
        return Ok(());
    };
    let common = size.min(active_bytes) as usize;
    let theirs = &theirs[..common];
    let start = GuestOffset::ZERO;
    let mut ours = vec![0; size as usize];
    expect(model, start, &mut ours);
    let ours = &mut ours[..common];
    admit_inner_stamps(model, start, ours, theirs);
    compare::same_bytes("the model's snapshot", 0, ours, theirs)
}

/// Reports whether a layer has a payload or a string that the program gives.
fn has_given_bytes(vm: &Vm, images: &Images) -> bool {
    let is_given = |record: &JournalRecord| {
        let JournalRecord::Compressed { content, .. } = record else { return false };
        matches!(content, CompressedContent::Given { .. })
    };
    vm.journals().any(|journal| journal.records.iter().any(is_given))
        || images.layers().any(|files| files.declarations.strings.iter().next().is_some())
}

/// Reports whether a layer is a VHDX image.
fn has_vhdx(images: &Images) -> bool {
    images.layers().any(|files| files.format == ImageFormat::Vhdx)
}

/// The length of a block of most file systems, which store nothing smaller.
const FILE_BLOCK_BYTES: u64 = 4096;

/// Reports whether a raw layer may have holes that are smaller than a block of the file system.
fn has_small_holes(vm: &Vm) -> bool {
    vm.builders().zip(vm.journals()).any(|(builder, journal)| {
        journal.has_holes && builder.plan().geometry.cell_bytes() < FILE_BLOCK_BYTES
    })
}

/// Returns the smallest number of bytes that an L2 table maps in any layer.
fn l2_span_bytes(vm: &Vm) -> u64 {
    vm.builders().map(|builder| builder.plan().geometry.l2_span_bytes()).min().unwrap()
}
