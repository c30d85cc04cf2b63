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
    (0..PROGRAMS).map(program).chain((0..PROGRAMS).flat_map(of_shared_clusters)).collect()
}

/// Returns programs with requests in flight for clusters that others free, for a missing table, for compressed clusters
/// that share a cluster of the file, and for an image with lazy refcounts; and flushes in flight.
fn of_shared_clusters(number: u64) -> Vec<Program> {
    let order = order(number);
    let [taken, read, stale] = ["0101", "000", "00"]
        .map(|first| format!("{first}{}", "1".repeat(6 + number as usize % 4)));
    let scenes = [
        // A discard frees the cluster that a write or a read has looked up, and another write takes it. The first read
        // lets the discard begin behind the look-up.
        format!(
            "write at=start+0 clusters=2\nin_flight requests=4 at_once=2 order={taken}\n\
             write_at at=start+0 inside=0 length=8<<5\nread_at at=start+1 length=16<<5\n\
             discard at=start+0 clusters=1\nwrite_at at=start+5 inside=0 length=16<<5\n"
        ),
        format!(
            "write at=start+0 clusters=2\nin_flight requests=3 at_once=3 order={read}\n\
             read_at at=start+0 length=16<<5\ndiscard at=start+0 clusters=1\n\
             write_at at=start+5 inside=0 length=16<<5\n"
        ),
        format!(
            "write at=start+0 clusters=2\nin_flight requests=2 at_once=2 order={stale}\n\
             discard at=start+0 clusters=1\nwrite_at at=start+5 inside=0 length=16<<5\n"
        ),
        // Both need the second table.
        format!(
            "in_flight requests=2 at_once=2 order={order}\nwrite at=start+64 clusters=1\n\
             write at=start+65 clusters=1\n"
        ),
        format!(
            "compress at=start+0 clusters=4 shape=text skew=packed\n\
             in_flight requests=2 at_once=2 order={order}\nwrite at=start+0 clusters=1\n\
             write at=start+1 clusters=1\n"
        ),
        // The second flush begins behind the write, while the first one is in flight.
        format!(
            "write at=start+0 clusters=4\nin_flight requests=3 at_once=2 order=0011\n\
             sync kind=flush choice=0\nwrite_at at=start+1 inside=0 length=8<<5\nsync kind=flush choice=0\n\
             sync kind=cut choice={number}\n"
        ),
    ];
    let program = |operations: String| lines::program("cluster_bits=9 size=90<<9+0", &operations);
    let mut programs: Vec<_> = scenes.map(program).into();
    let lazy = format!(
        "in_flight requests=2 at_once=2 order={order}\nwrite_at at=start+6 inside=0 length=8<<5\n\
         write_at at=start+7 inside=0 length=8<<5\nsync kind=kill choice={number}\n"
    );
    programs.push(lines::program("cluster_bits=9 features=lazy_refcounts size=90<<9+0", &lazy));
    programs
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
        StaleZeroes => &["written: ", "refcounts: "],
        WriteOverTaken | ReadOfTaken => &["written: a write, in flight, ", "written: "],
        TableTwice | CountRaced => &["refcounts: ", "written: "],
        FlushJoined | CleanTooEarly => &["power_cut: ", "killed: "],
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
