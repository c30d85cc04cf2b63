//! The allocator of refcounts, judged by qemu-img: the seeds of the target `refcounts` under the limits of that target,
//! and each rare event of the allocator in an image that qemu-img has checked.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use qcowfuzz::disk::observer::{Observer, Rare};
use qcowfuzz::images::{FileNames, Images, Limits};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::interpreter::{Effect, Vm};
use qcowfuzz::programs::Program;

use crate::files::{MAX_FILE_BYTES, check_layers, export_to, is_checkable, too_long};
use crate::qemu::{self, Checked};
use crate::seeds_of;
use crate::tally::Tally;

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
    if !qemu::tools_are_there("qemu_checks_an_image_for_each_rare_event_of_the_allocator") {
        return;
    }
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
