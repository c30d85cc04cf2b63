//! The classic harness, for comparison: the crate opens a file of any content and reads it. Only panics, aborts, hangs
//! and memory show a bug: no oracle judges the answers. `scripts/campaign` measures it beside the other targets.
#![no_main]

use qcowfuzz::disk::image_format::ImageFormat;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{self, PanicHookInfo};

use libfuzzer_sys::fuzz_target;
use qcowfuzz::internal::findings::panics::PanicNote;
use qcowfuzz::internal::images::files::Images;
use qcowfuzz::prelude::*;
use qcowfuzz_engines_fuzz::UnderTest;

/// The number of bytes of a read.
const READ_BYTES: u64 = 64 << 10;
/// The largest number of bytes that a run reads: a file of some bytes can describe a disk of exabytes.
const MAX_READ_BYTES: u64 = 4 << 20;

thread_local! {
    /// The places of the panics so far.
    static PLACES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

fuzz_target!(init: panic::set_hook(Box::new(print_once)), |file: &[u8]| {
    // A panic ends its run and not the process, as a known finding does in the other targets.
    let _ = panic::catch_unwind(|| read_everything(file));
});

/// Prints the fingerprint of a panic, once for each place in the source.
fn print_once(info: &PanicHookInfo) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    if PLACES.with_borrow_mut(|places| places.insert(place)) {
        eprintln!("finding: {}", PanicNote::of(info).fingerprint());
    }
}

/// Opens a file, and reads the disk up to a bound. Any answer is right.
fn read_everything(file: &[u8]) {
    let mut images = Images::default();
    images.become_file(ImageFormat::Qcow2, file, 0);
    let chain = Chain::new(&images);
    let mut engine = UnderTest::default();
    let Ok(mut disk) = engine.open(&chain) else { return };
    let size = disk.virtual_size_bytes().min(MAX_READ_BYTES);
    let mut buffer = vec![0; READ_BYTES as usize];
    for start in (0..size).step_by(READ_BYTES as usize) {
        let length = READ_BYTES.min(size - start) as usize;
        let _ = disk.read(GuestOffset::new(start), &mut buffer[..length]);
    }
}
