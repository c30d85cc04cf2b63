//! An exported image: its map and its data, by the walker, the model and qemu.

use std::cell::RefCell;
use test_support::prelude::*;

use qcowfuzz::disk::extent::MappingStatus;
use qcowfuzz::disk::observer::{Observer, Rare};
use qcowfuzz::internal::harness::model::{Model, PieceState, Visible};
use qcowfuzz::internal::harness::oracles::data::{admit_inner_stamps, expect};
use qcowfuzz::internal::programs::interpreter::{Effect, Vm};

use super::files::{MAX_FILE_BYTES, check_layers, export_to, is_checkable, too_long};
use super::seeds_of;
use test_support::qemu::WHOLE_DISK_BYTES;

/// The highest number of steps of qemu-img for which the test requests the map of a whole disk. qemu-img steps from L2
/// table to L2 table, including missing ones, and by less than 4 GiB, which takes minutes for the largest disks.
const WHOLE_MAP_STEPS: u64 = 1 << 13;

/// An image in memory and in a file, and the expectation.
pub struct Exported<'a> {
    pub path: &'a Path,
    pub on_disk: &'a [Layer<'a>],
    pub in_memory: &'a [Layer<'a>],
    pub model: &'a Model,
    pub l2_span_bytes: u64,
    /// A layer is a VHDX image. QEMU does not report its blocks, so that all of it is data in the compared maps.
    pub has_vhdx: bool,
    /// A raw layer has holes that may be smaller than a block of the file system, which stores whole blocks.
    pub has_small_holes: bool,
    /// The number of windows whose maps are compared.
    pub windows: usize,
}

impl Exported<'_> {
    /// Compares the map of the whole disk if that is possible, otherwise of every part outside large holes, and of
    /// random windows. Our walk of the files must equal that of qemu-img, with their holes; without them, it must equal
    /// our walk of the images in memory, whose holes are those of raw layers alone.
    pub fn compare_maps(&self, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        if self.has_vhdx {
            tally.add("maps on VHDX", 1);
        }
        let mut expected: Vec<Extent> = Vec::new();
        self.model.extents(&mut expected);
        let ours = compare::walk(self.on_disk, Window::ALL).described()?;
        if ours != expected && !self.has_small_holes {
            return Err("the model expects other extents".to_string());
        }
        tally.add("extents", ours.len() as u64);
        let most = WHOLE_MAP_STEPS * self.l2_span_bytes.min(1 << 31);
        let mut windows = vec![Window::ALL];
        if self.model.virtual_size_bytes() > most {
            windows = busy_windows(&ours, most / 16);
            tally.add("maps in parts", 1);
        }
        windows.extend(compare::windows(entropy, &ours, most, self.windows));
        for window in windows {
            let theirs = compare::maps(self.path, self.on_disk, window)?;
            if !self.has_small_holes {
                let walk = compare::walk(self.on_disk, window).described()?;
                compare::same_extents(window, compare::walk(self.in_memory, window), &walk)?;
            }
            let in_raw_holes = |it: &&Extent| it.mapping.zero && it.mapping.offset.is_some();
            let count =
                theirs.iter().filter(in_raw_holes).filter(|it| it.mapping.depth > 0).count();
            tally.add("extents in zeros with an offset below", count as u64);
            let in_host_holes = |it: &&Extent| it.mapping.status() == MappingStatus::HostHole;
            let count = theirs.iter().filter(in_host_holes).count();
            tally.add("extents in host holes", count as u64);
            tally.add("windows", 1);
        }
        Ok(())
    }

    /// Compares the content of the whole disk, or of windows if the disk is large.
    pub fn compare_data(&self, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        let Self { path, on_disk, model, .. } = self;
        let size = model.virtual_size_bytes();
        let expected = |window: &Window, theirs: &[u8]| {
            let mut bytes = vec![0; window.length_bytes as usize];
            expect(model, window.start, &mut bytes);
            admit_inner_stamps(model, window.start, &mut bytes, theirs);
            bytes
        };
        if size <= WHOLE_DISK_BYTES {
            let theirs = qemu::convert(path, &path.with_extension("raw"))?;
            let window = Window { start: GuestOffset::ZERO, length_bytes: size };
            tally.add("whole disks", 1);
            compare::same_bytes("the model's disk", 0, &expected(&window, &theirs), &theirs)?;
            return compare::same_bytes("our read", 0, &compare::read(on_disk, window)?, &theirs);
        }
        let windows = read_windows(model, entropy);
        for (window, theirs) in windows.iter().zip(qemu::read(path, &windows)?) {
            let start = window.start.get();
            compare::same_bytes("the model's data", start, &expected(window, &theirs), &theirs)?;
            compare::same_bytes("our read", start, &compare::read(on_disk, *window)?, &theirs)?;
            tally.add("windows that are read", 1);
        }
        Ok(())
    }
}

/// Returns windows over the whole disk, except the inside of holes that are longer than `most` bytes.
fn busy_windows(extents: &[Extent], most: u64) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut start = 0;
    for extent in extents {
        // A hole of a chain has the depth of the lowest layer that it reaches.
        let hole = !extent.mapping.present && extent.length_bytes > most;
        let end = extent.start.get() + extent.length_bytes;
        if hole {
            let until = extent.start.get() + most / 2;
            windows.push((start, until));
            start = end - most / 2;
        }
    }
    windows.push((start, u64::MAX >> 1));
    let window = |(start, end): (u64, u64)| Window {
        start: GuestOffset::new(start),
        length_bytes: end - start,
    };
    windows.into_iter().map(window).collect()
}

/// Returns windows around both edges of pieces of the disk, beginning with pieces that are not holes.
fn read_windows(model: &Model, entropy: &mut Entropy) -> Vec<Window> {
    let size = model.virtual_size_bytes();
    let mut pieces: Vec<Visible> = model.visible().to_vec();
    pieces.sort_by_cached_key(|it| (it.piece.state == PieceState::Unallocated, entropy.next_u64()));
    pieces.truncate(24);
    let around = |at: u64| {
        let start = at.saturating_sub(40).min(size - 1);
        let length_bytes = 200.min(size - start);
        Window { start: GuestOffset::new(start), length_bytes }
    };
    pieces.iter().flat_map(|it| [around(it.start), around(it.end)]).collect()
}

/// The rare events of the allocator.
const EVENTS: [Rare; 8] = [
    Rare::ManyRounds,
    Rare::BlockCountsItself,
    Rare::TableNeedsBlock,
    Rare::LongTable,
    Rare::TableExtended,
    Rare::TableMoved,
    Rare::TableTrimmed,
    Rare::NoHole,
];

/// The rare events of the builds of one image.
#[derive(Default)]
struct Fired(RefCell<BTreeSet<&'static str>>);

impl Observer for Fired {
    fn rare(&self, rare: Rare) {
        if EVENTS.contains(&rare) {
            self.0.borrow_mut().insert(rare.name());
        }
    }
}

#[test]
fn qemu_checks_an_image_for_each_rare_event_of_the_allocator() {
    let Some(()) = qemu::tools() else { return };
    let seeds = seeds_of("refcounts");
    let count = seeds.len() as u64;
    let bench = || (Vm::new(), Images::default(), tempfile::tempdir().unwrap());
    let tally: Tally = qemu::judge_all(&seeds, bench, |(vm, images, dir), case| {
        let program = Program::decode(&case.input);
        let (mut tally, mut entropy) = (Tally::default(), Entropy::new(count));
        images.resize(0);
        vm.begin(&program.prologue, Limits::ALLOCATED);
        for operation in program.operations.iter().copied().map(Some).chain([None]) {
            if operation.is_none_or(|one| vm.step(one) == Effect::Checkpoint) {
                tally += judge_image(vm, images, dir.path(), &mut entropy)?;
            }
        }
        Ok(tally)
    });
    let bounds = EVENTS.map(|event| (event.name(), 1));
    let of_images = [("images that qemu-img checks", count), (TOO_LONG, 0)];
    tally.assert_at_least(&[bounds.as_slice(), &of_images].concat());
}

/// Images whose check would take minutes.
const TOO_LONG: &str = "images with too many clusters";

/// Builds the image of the program so far, and checks it with qemu-img. Counts the rare events of the build.
fn judge_image(
    vm: &mut Vm,
    images: &mut Images,
    directory: &Path,
    entropy: &mut Entropy,
) -> Checked<Tally> {
    let (mut tally, fired) = (Tally::default(), Fired::default());
    vm.build(&FileNames::default(), images, &fired);
    if too_long(images, MAX_FILE_BYTES).is_some() || !is_checkable(images)? {
        tally.add(TOO_LONG, 1);
        return Ok(tally);
    }
    export_to(&directory.join("layer.qcow2"), images, entropy)?;
    check_layers(directory, images)?;
    tally.add("images that qemu-img checks", 1);
    fired.0.into_inner().into_iter().for_each(|name| tally.add(name, 1));
    Ok(tally)
}
