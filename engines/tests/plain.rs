//! Plain images distinguish the mistakes of an adapter from the bugs of a crate: every engine answers correctly about
//! them.

use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::{Checks, Harness};
use qcowfuzz::programs::text::assemble;
use qcowfuzz_engines::fstool::Fstool;
use qcowfuzz_engines::imago::Imago;
use qcowfuzz_engines::qcow2_core::Qcow2Core;
use qcowfuzz_engines::qcow2_rs::Qcow2Rs;
use qcowfuzz_engines::rust_img_qcow2::RustImgQcow2;

/// The first image: data, a compressed cluster and a zero cluster.
fn image(more: &str) -> String {
    format!(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 blocks=append \
         table=append tolerance=0 {more}\n\
         write at=start+4 clusters=3\n"
    )
}

const COMPRESSED: &str = "compress at=start+9 clusters=1 shape=half skew=packed\n";
const ZERO: &str = "zero at=start+5 clusters=1 keep=yes\n";

/// A larger image on top of it, with a cluster of its own.
const OVERLAY: &str = "overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=+4<<16\n\
                       write at=start+6 clusters=1\n";

/// Runs a program. The engine must judge it as it is, and must not refuse it.
fn judge<E: Engine + Default>(program: &str) {
    let input = assemble(program).unwrap().encode();
    let mut harness = Harness::new(E::default());
    let outcome = harness.run(&input, Checks::AfterEach);
    let outcome = outcome.unwrap_or_else(|failure| panic!("{program}\n{}", failure.violation));
    assert!(!outcome.folded && !outcome.unsupported && outcome.refused == 0, "{program}");
}

#[test]
fn every_engine_reads_plain_images() {
    let plain = image("") + COMPRESSED + ZERO;
    judge::<Imago>(&plain);
    judge::<Qcow2Core>(&plain);
    judge::<Qcow2Rs>(&plain);
    judge::<RustImgQcow2>(&plain);
    judge::<Fstool>(&plain);
}

#[test]
fn engines_with_chains_read_the_layers_below() {
    let same_size = OVERLAY.replace("+4<<16", "same");
    let chain = image("") + COMPRESSED + &same_size + ZERO + &same_size;
    judge::<Imago>(&chain);
    judge::<Qcow2Rs>(&chain);
    judge::<RustImgQcow2>(&chain);
    judge::<Fstool>(&chain);
    // qcow2-rs does not fill the bytes past the end of a smaller backing file.
    let larger = image("") + OVERLAY;
    judge::<Imago>(&larger);
    judge::<RustImgQcow2>(&larger);
    judge::<Fstool>(&larger);
}

#[test]
fn raw_backing_files_and_data_files_are_attached() {
    let raw = image("base=raw") + &OVERLAY.replace("+4<<16", "same");
    judge::<Imago>(&raw);
    judge::<Fstool>(&raw);
    judge::<Imago>(&(image("data_in=file") + ZERO));
}
