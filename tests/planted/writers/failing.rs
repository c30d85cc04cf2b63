//! Programs in which operations on files fail, an image lies on a device, or the engine crashes.

use super::*;

/// Returns a program in which an operation on a file fails while a shared cluster is copied, a long write allocates, or
/// the disk is flushed. Another write and a cut follow.
pub(super) fn with_file_error(number: u64) -> Program {
    let (nth, of) = (number / 3, ["write", "read", "flush"][(number % 3) as usize]);
    // A later flush would keep what the one that has failed should have kept.
    let failures = if of == "flush" { "all" } else { "one" };
    let operations = format!(
        "write at=start+0 clusters=9\nsnapshot\nsync kind=flush choice=0\n\
         fail_file of={of} before={nth} error=io failures={failures}\n\
         write_at at=start+2 inside=100 length=20<<7\nsync kind=flush choice=0\n\
         write_at at=start+20 inside=0 length=20<<7\nsync kind=cut choice={number}\n"
    );
    lines::program("cluster_bits=9 size=90<<9+0", &operations)
}

/// Returns a program in which one flush fails, and the next one succeeds. A cut follows.
pub(super) fn flushed_again(number: u64) -> Program {
    let operations = format!(
        "write at=start+0 clusters=4\nfail_file of=flush before=0 error=io failures=one\n\
         write_at at=start+1 inside=0 length=16<<5\nsync kind=flush choice=0\nsync kind=flush choice=0\n\
         sync kind=cut choice={number}\n"
    );
    lines::program("cluster_bits=9 size=9<<9+0", &operations)
}

/// Returns a program whose image lies on a device, with room for some of its writes.
pub(super) fn on_device(number: u64) -> Program {
    let old = ["data", "entries", "counts"][(number % 3) as usize];
    let operations = format!(
        "write at=start+0 clusters=9\ndevice spare={} old={old}\n\
         write_at at=start+2 inside=100 length=20<<2\nwrite_at at=start+70 inside=9 length=9<<2\n\
         resize size=99<<10+0\nwrite_at at=start+20 inside=0 length=20<<7\n",
        4 + number
    );
    lines::program("cluster_bits=9 size=90<<9+0", &operations)
}

/// Returns a program that goes on after its engine has crashed in a write to a new part of the disk.
pub(super) fn with_crash(number: u64) -> Program {
    let operations = format!(
        "write_at at=start+0 inside=0 length=20<<7\ncrash kind=process choice={number}\n\
         write_at at=start+3 inside=0 length=20<<7\ncheckpoint\n"
    );
    lines::program("cluster_bits=9 size=9<<9+0", &operations)
}

/// Returns a program in which a read of the file fails while the guest reads.
pub(super) fn with_failing_read(number: u64) -> Program {
    let operations = format!(
        "write at=start+0 clusters=4\nfail_file of=read before={number} error=io failures=one\n\
         read_at at=start+1 length=16<<5\n"
    );
    lines::program("cluster_bits=9 size=9<<9+0", &operations)
}

/// Returns a program in which a write to the file fails while a shared table is copied for zeros.
pub(super) fn with_shared_table(number: u64) -> Program {
    let operations = format!(
        "write at=start+0 clusters=9\nsnapshot\nsync kind=flush choice=0\n\
         fail_file of=write before={number} error=full failures=one\nzero_at at=start+2 inside=0 length=16<<5\n"
    );
    lines::program("cluster_bits=9 size=90<<9+0", &operations)
}

/// Returns the beginnings of the fingerprints by which a fault of the handling of errors is found.
pub(super) fn found_by(fault: WriterFault) -> &'static [&'static str] {
    use WriterFault::*;
    match fault {
        WriteErrorIgnored | AllocatedTwice | EntryErrorIgnored | TableErrorIgnored => {
            &["file_error: "]
        }
        ReadErrorIgnored => &["file_error: "],
        FailedFlushForgotten => &["power_cut: ", "killed: "],
        CopyErrorIgnored => &["file_error: the rest", "file_error: a snapshot"],
        // Only the file of a cut shows it.
        FlushErrorIgnored => &["power_cut: ", "killed: "],
        _ => in_flight::found_by(fault),
    }
}
