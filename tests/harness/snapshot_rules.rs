//! The rules of snapshots: operations that would break a rule have no effect, and leave the image unchanged.

use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::internal::images::qcow2::Names;
use qcowfuzz::internal::programs::interpreter::{Effect, Vm};
use test_support::prelude::*;

/// Runs a program, which must violate nothing after any operation. Operations of `text` that begin
/// with an exclamation mark must have no effect and change no byte of the image; all others must have
/// an effect.
fn assert_rules(prologue: &str, text: &str) {
    let head = format!(
        "image {prologue} rng_seed=0 blocks=append table=append tolerance=0\n{}",
        text.replace('!', "")
    );
    let program = assemble(&head).unwrap();
    let run = Harness::new(Walker::default()).run(&program.encode(), Checks::AfterEach);
    run.unwrap_or_else(|failure| panic!("{text}\n{}", failure.violation));
    let mut vm = Vm::new();
    vm.begin(&program.prologue, Limits::WALKED);
    let bytes = |vm: &Vm| {
        let mut files = LayerFiles::default();
        vm.builder().build(&Names::default(), &mut Default::default(), &mut files, &());
        files.image.written().map(|data| (data.offset, data.bytes.to_vec())).collect::<Vec<_>>()
    };
    for (line, operation) in text.lines().zip(&program.operations) {
        let before = bytes(&vm);
        let effect = vm.step(*operation);
        let forbidden = line.starts_with('!');
        assert_eq!(effect, if forbidden { Effect::None } else { Effect::Changed }, "{line}");
        assert!(!forbidden || bytes(&vm) == before, "{line} changed the image");
    }
}

const V3: &str = "version=3 cluster_bits=16 features=none size=50<<20+0";

#[test]
fn one_bit_counts_share_nothing() {
    assert_rules(
        &format!("{V3} refcount_order=0"),
        "snapshot_with extra=16 vm=3 spread=0 id=1 name=1\n\
         !apply_snapshot index=0\n\
         write at=start+0 clusters=1\n\
         !snapshot\n\
         !snapshot_with extra=16 vm=1 spread=0 id=1 name=1\n\
         delete_snapshot index=0",
    );
}

#[test]
fn a_count_at_its_maximum_is_not_passed() {
    assert_rules(
        &format!("{V3} refcount_order=1"),
        "write at=start+0 clusters=2\n\
         snapshot\n\
         apply_snapshot index=0\n\
         snapshot\n\
         !snapshot\n\
         !snapshot_with extra=20 vm=2 spread=3 id=1 name=1\n\
         !apply_snapshot index=1\n\
         delete_snapshot index=0\n\
         apply_snapshot index=0",
    );
}

#[test]
fn a_disk_keeps_its_size_while_a_snapshot_does_not_store_its_own() {
    assert_rules(
        "version=2 cluster_bits=16 features=none size=50<<20+0 refcount_order=4",
        "snapshot\n\
         resize size=60<<20+0\n\
         snapshot_with extra=15 vm=0 spread=0 id=1 name=1\n\
         !resize size=70<<20+0\n\
         !apply_snapshot index=0\n\
         apply_snapshot index=1\n\
         delete_snapshot index=1\n\
         apply_snapshot index=0\n\
         snapshot_with extra=16 vm=0 spread=0 id=1 name=1\n\
         resize size=70<<20+0",
    );
    // Version 3 always stores it.
    assert_rules(
        &format!("{V3} refcount_order=4"),
        "snapshot_with extra=0 vm=0 spread=0 id=0 name=0\nresize size=70<<20+0",
    );
}

#[test]
fn operations_on_missing_snapshots_have_no_effect() {
    assert_rules(
        &format!("{V3} refcount_order=4"),
        "!apply_snapshot index=0\n\
         !delete_snapshot index=0\n\
         snapshot\n\
         apply_snapshot index=15\n\
         delete_snapshot index=7\n\
         !apply_snapshot index=0",
    );
}

/// Otherwise the VM state would become a part of the larger disk.
#[test]
fn vm_state_of_the_active_disk_ends_where_the_disk_grows() {
    assert_rules(
        "version=3 cluster_bits=9 features=none size=64<<9+0 refcount_order=4",
        "snapshot_with extra=24 vm=9 spread=4 id=1 name=1\n\
         apply_snapshot index=0\n\
         resize size=500<<9+0\n\
         write at=end-0 clusters=1\n\
         apply_snapshot index=0\n\
         snapshot\n\
         resize size=10<<9+0\n\
         apply_snapshot index=1",
    );
}
