//! Requests in flight: the races that are planted in the small writer's asynchronous twin are found, and the schedule
//! of a program decides alone what happens.

use super::*;

/// The number of programs with requests in flight.
const PROGRAMS: u64 = 96;

/// Returns programs with requests in flight, each with another order of the file operations: writes, zeroes and a read
/// of one cluster that is new, and of one that a snapshot shares.
pub(super) fn programs() -> Vec<Program> {
    let program = |number: u64| {
        let order = order(number);
        let operations = format!(
            "write at=start+0 clusters=4\nsnapshot\nsync kind=flush choice=0\n\
             in_flight requests=6 at_once=3 order={order}\n\
             write_at at=start+6 inside=100 length=10<<5\nwrite_at at=start+6 inside=440 length=20<<5\n\
             zero_at at=start+6 inside=0 length=8<<7\nread_at at=start+6 length=8<<7\n\
             sync kind=flush choice=0\nwrite_at at=start+2 inside=9 length=9<<3\n\
             in_flight requests=3 at_once=3 order={order}\n\
             write_at at=start+1 inside=100 length=20<<4\nread_at at=start+1 length=12<<7\n\
             zero_at at=start+1 inside=0 length=8<<7\n\
             in_flight requests=2 at_once=2 order={order}\n\
             write_at at=start+0 inside=100 length=20<<4\nread_at at=start+0 length=4<<7\n\
             sync kind=cut choice={number}\n"
        );
        lines::program("cluster_bits=9 size=90<<9+0", &operations)
    };
    (0..PROGRAMS).map(program).collect()
}

/// Returns an order of file operations.
fn order(number: u64) -> String {
    let bits = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..16).map(|nth| char::from(b'0' + (bits >> (2 * nth + 9) & 3) as u8)).collect()
}

/// Returns the beginnings of the fingerprints by which a race is found; none for another fault.
pub(super) fn found_by(fault: WriterFault) -> &'static [&'static str] {
    use WriterFault::*;
    match fault {
        ClusterNotLocked => &["written: ", "refcounts: "],
        ZeroesNotLocked => &["written: ", "refcounts: "],
        EntryBeforeContent => &["written: a write, in flight, ", "written: the rest, in flight, "],
        EndRaced => &["written: ", "refcounts: "],
        AnsweredEarly => &["written: ", "power_cut: "],
        LocksCrossed => &["written: in flight, an answer → an error"],
        _ => &[],
    }
}

#[test]
fn requests_in_flight_without_a_race_pass() {
    let mut target = TargetKind::Writes.judging(WritingWalker::default());
    for program in programs() {
        assert_eq!(found_in(&mut target, &program), None, "{program}");
    }
}
