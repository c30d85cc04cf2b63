//! Programs that `Arbitrary` makes of random bytes reach more than programs that the same bytes encode.

#[path = "../../benches/reach/mod.rs"]
mod reach;

use reach::{MEANINGS, Reach, found_bugs, planted_bugs, strings};

/// The length of each byte string, which stands for about 60 operations with both meanings.
const BYTES: usize = 512;

#[test]
fn programs_of_arbitrary_reach_more_than_raw_bytes() {
    let [raw, made] = MEANINGS.map(|(_, meaning)| {
        let strings = strings(BYTES).take(200);
        Reach::of(strings.map(|bytes| meaning(&bytes)))
    });
    let figures = format!("{raw:?}, {made:?}");
    assert!(made.effective_share() > 0.98 && raw.effective_share() < 0.85, "{figures}");
    assert!(made.images * 10 > raw.images * 13, "{figures}");
    assert!(made.counters * 20 > raw.counters * 21, "{figures}");
}

#[test]
fn twenty_programs_of_arbitrary_find_nearly_all_planted_bugs() {
    let [_, (_, meaning)] = MEANINGS;
    let inputs: Vec<_> = strings(BYTES).take(20).map(|bytes| meaning(&bytes)).collect();
    let (found, all) = (found_bugs(&inputs), planted_bugs().count());
    assert!(found * 100 >= all * 90, "{found} of {all}");
}
