//! Programs with far gaps: their host offsets reach the end of the format, and their images cost what is written in
//! them, however long the file is.

use std::convert::Infallible;
use test_support::prelude::*;

use qcowfuzz::findings::minimizer::{MinimizeProgress, MinimizeSettings, minimize};
use qcowfuzz::formats::qcow2::constants::MAX_REFCOUNT_TABLE_BYTES;
use qcowfuzz::harness::cases::target::Inputs;
use qcowfuzz::internal::images::qcow2::Sizes;
use qcowfuzz::programs::text;

/// The first host offset that an entry of a table cannot hold.
const FORMAT_END: u64 = 1 << 56;

/// Returns a program that writes before and after `gap`, with refcount structures in places of `policy`.
fn around(gap: &str, (cluster_bits, order): (u32, u32), policy: &str) -> Program {
    let program = format!(
        "image version=3 cluster_bits={cluster_bits} refcount_order={order} features=none size=4000<<{cluster_bits}+0 \
         rng_seed=9 blocks={policy} table={policy} tolerance=2\n\
         compress at=start+0 clusters=3 shape=half skew=packed\n\
         {gap}\nplace policy={policy}\n\
         write at=start+9 clusters=16\nwrite at=end-8 clusters=8\n\
         compress at=start+40 clusters=4 shape=half skew=fresh+32767\nplace policy=random\n\
         write at=start+60 clusters=16\ncompress at=start+80 clusters=4 shape=half skew=packed\nplace policy=append\n\
         write at=start+90 clusters=2\n"
    );
    text::assemble(&program).unwrap()
}

/// Runs a program with all oracles, and returns its image.
fn image_of<'h>(harness: &'h mut Harness, program: &Program) -> &'h Image {
    if let Err(failure) = harness.run(&program.encode(), Checks::AtCheckpoints) {
        panic!("{}\n{program}", failure.violation);
    }
    harness.image()
}

fn written_bytes(image: &Image) -> u64 {
    image.written().map(|data| data.bytes.len() as u64).sum()
}

/// All cluster sizes, refcount widths and policies.
fn each_geometry(mut take: impl FnMut((u32, u32), &str)) {
    for geometry in (9..=21).flat_map(|bits| (0..=6).map(move |order| (bits, order))) {
        for policy in ["append", "first", "random", "mixed"] {
            take(geometry, policy);
        }
    }
}

#[test]
fn the_longest_gap_reaches_the_end_of_the_format_in_every_geometry() {
    let mut harness = Harness::new(Walker::default());
    let mut farthest = 0;
    each_geometry(|geometry, policy| {
        let image = image_of(&mut harness, &around("reserve_far gap=255<<47", geometry, policy));
        let header = Head::read(image).unwrap().header;
        let cluster_size = header.geometry.cluster_size;
        // A file ends where its table or its entries do, but for an eighth and for the room that is kept.
        let counted = MAX_REFCOUNT_TABLE_BYTES / 8 * header.geometry.refcounts_per_block();
        let end = FORMAT_END.min(cluster_size.saturating_bytes(counted));
        let length = image.length_bytes();
        assert!(length <= end && length > end / 2, "{geometry:?}, {policy}: {length} of {end}");
        let table = cluster_size.saturating_bytes(u64::from(header.refcount_table_clusters));
        assert!(table <= MAX_REFCOUNT_TABLE_BYTES, "{geometry:?}, {policy}: {table}");
        farthest = farthest.max(length);
    });
    assert!(farthest > FORMAT_END / 8 * 7, "{farthest}");
}

/// The bytes by which a far gap makes an image longer to write: the counts of a refcount table of 8 MiB in the smallest
/// clusters, and the entries that name the blocks of these counts.
const MORE_BYTES: u64 = 512 << 10;

#[test]
fn a_far_gap_costs_what_is_written_and_not_the_length_of_the_file() {
    let mut harness = Harness::new(Walker::default());
    each_geometry(|geometry, policy| {
        let near =
            written_bytes(image_of(&mut harness, &around("reserve gap=9<<0", geometry, policy)));
        let far = around("reserve_far gap=255<<47", geometry, policy);
        let far = written_bytes(image_of(&mut harness, &far));
        assert!(far <= near + MORE_BYTES, "{geometry:?}, {policy}: {far} bytes, {near} without");
    });
}

#[test]
fn compressed_clusters_lie_where_a_descriptor_reaches() {
    // In clusters of 2 MiB, a descriptor has 49 bits for an offset: a gap of 2^28 clusters ends past that.
    let run = |program: &str| {
        let image = "image version=3 cluster_bits=21 refcount_order=4 features=none size=1<<30+0 rng_seed=0 \
                     blocks=append table=append tolerance=0\n";
        let mut harness = Harness::new(Walker::default());
        let program = text::assemble(&format!("{image}{program}")).unwrap();
        let ran = harness.run(&program.encode(), Checks::AtCheckpoints);
        let outcome = ran.unwrap_or_else(|failure| panic!("{}", failure.violation));
        (outcome.effective, outcome.operations)
    };
    let compress = "compress at=start+5 clusters=1 shape=half skew=fresh+9\n";
    // The gap itself is a hole that a descriptor reaches.
    assert_eq!(run(&format!("reserve_far gap=1<<28\n{compress}")), (2, 2));
    let full = "write at=start+0 clusters=1\n";
    assert_eq!(run(&format!("reserve_far gap=1<<28\n{full}{compress}")), (3, 3));
}

#[test]
fn few_generated_programs_have_a_far_gap() {
    let is_far = |operation: &Operation| matches!(operation, Operation::ReserveFar { .. });
    let programs = (0..1600).map(|rng_seed| generate_any(rng_seed, 24));
    let far = programs.filter(|program| program.operations.iter().any(is_far)).count();
    assert!((60..=150).contains(&far), "{far} of 1600 programs");
}

#[test]
fn the_minimizer_shrinks_the_gap() {
    let program = around("reserve_far gap=173<<41", (16, 4), "mixed");
    let mut harness = Harness::new(Walker::default());
    let mut shows = |input: &[u8]| -> Result<bool, Infallible> {
        Ok(harness.build(input).length_bytes() > 1 << 45)
    };
    let (inputs, limits) = (Inputs::Programs, Limits::WALKED);
    let settings = MinimizeSettings { inputs, limits, tries: 10_000, rerolls: 0, runs_here: true };
    let go_on = &mut |_: &MinimizeProgress| ControlFlow::Continue(());
    let Ok(minimized) = minimize(&program.encode(), settings, &mut shows, go_on);
    let operations = Program::decode(&minimized.input).operations;
    // The refcount structures lie behind the gap.
    let [Operation::ReserveFar { gap }] = operations[..] else { panic!("{operations:?}") };
    assert!(gap.units().is_power_of_two() && gap.units() <= 1 << 34, "{}", gap.units());
}
