//! Counts the reads of a chain's files and the writes that they refuse, makes a read fail, and keeps a trace of the
//! accesses, or prints them.

mod trace;

use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::disk::error::StorageError;
use crate::disk::observer::PrintAccesses;
use crate::disk::offsets::HostOffset;

use trace::AccessTrace;
pub(crate) use trace::{FileAccess, MAX_ACCESSES};

/// The error kind of a read that fails on purpose.
pub const INJECTED: ErrorKind = ErrorKind::Other;

/// A counter of reads and bytes that the files of a chain share. It makes one read fail.
///
/// Threads of an engine that read at the same time may lose counts, and two reads may then have the same number. Each
/// number is still met, because a count never grows by more than one.
#[derive(Debug)]
pub struct Meter {
    reads: AtomicU64,
    bytes: AtomicU64,
    fail_at: AtomicU64,
    is_traced: AtomicBool,
    traced_bytes: AtomicU64,
    refused_writes: AtomicU64,
    trace: OnceLock<Box<AccessTrace>>,
    printer: OnceLock<Arc<dyn PrintAccesses>>,
}

impl Meter {
    /// Replaces a meter on which an engine still counts, because it keeps files of an earlier image.
    pub fn renew(meter: &mut Arc<Self>) {
        if Arc::strong_count(meter) > 1 {
            *meter = Arc::default();
        }
    }

    /// Resets the counts to 0, and makes the read with the number `fail_at` fail. 0 is the next read.
    pub fn restart(&self, fail_at: u64) {
        self.reads.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.fail_at.store(fail_at, Relaxed);
    }

    /// Returns the number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Returns the number of bytes that the reads returned.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Counts a write to a file that is open for reading only, or another length of it.
    #[cold]
    pub(crate) fn count_refused_write(&self) {
        self.refused_writes.fetch_add(1, Relaxed);
    }

    /// Returns the number of such writes, and counts from 0 again.
    pub(crate) fn take_refused_writes(&self) -> u64 {
        self.refused_writes.swap(0, Relaxed)
    }

    /// Begins a trace of the accesses. Each is also printed when it occurs, if there is a `printer`. All traces of a
    /// meter have the same one.
    pub(crate) fn begin_trace(&self, printer: Option<Arc<dyn PrintAccesses>>) {
        if let Some(printer) = printer {
            let kept = self.printer.get_or_init(|| Arc::clone(&printer));
            debug_assert!(Arc::ptr_eq(kept, &printer), "a meter has one printer");
        }
        self.trace.get_or_init(|| Box::new(AccessTrace::new())).clear();
        self.traced_bytes.store(0, Relaxed);
        self.is_traced.store(true, Relaxed);
    }

    /// Interrupts the trace while others than the engine access the files. Returns true if there was one.
    pub(crate) fn interrupt_trace(&self) -> bool {
        self.is_traced.swap(false, Relaxed)
    }

    /// Goes on with a trace that [`Meter::interrupt_trace`] interrupted.
    pub(crate) fn resume_trace(&self, was_traced: bool) {
        self.is_traced.store(was_traced, Relaxed);
    }

    /// Ends the trace, and returns its accesses; none if no trace has begun, or if several threads made them.
    pub(crate) fn end_trace(&self) -> impl Iterator<Item = FileAccess> {
        let was_traced = self.interrupt_trace();
        let trace = self.trace.get().filter(|_| was_traced);
        trace.into_iter().flat_map(|trace| trace.accesses())
    }

    /// Returns the accesses of the last trace again; none if there was none, or if several threads made them.
    pub(crate) fn last_trace(&self) -> impl Iterator<Item = FileAccess> {
        self.trace.get().into_iter().flat_map(|trace| trace.accesses())
    }

    /// Reports whether several threads have made the accesses of the trace.
    pub(crate) fn traces_several_threads(&self) -> bool {
        self.trace.get().is_some_and(|trace| trace.has_several_threads())
    }

    /// Returns the number of bytes that the reads of the trace have returned.
    pub(crate) fn traced_bytes(&self) -> u64 {
        self.traced_bytes.load(Relaxed)
    }

    /// Adds an access to the trace, if one has begun, and prints it, if there is a printer.
    #[inline]
    pub(crate) fn trace(&self, access: FileAccess) {
        if self.is_traced.load(Relaxed) {
            self.printer.get().into_iter().for_each(|printer| printer.print(&access));
            self.trace.get().into_iter().for_each(|trace| trace.add(access));
        }
    }

    /// Counts a read, and fails if it is the one that must fail.
    #[inline]
    pub(crate) fn count_read(&self, access: FileAccess) -> Result<(), StorageError> {
        self.trace(access);
        let read = self.reads.load(Relaxed);
        // An exchange would cost more than the rest of most reads.
        self.reads.store(read.wrapping_add(1), Relaxed);
        match read == self.fail_at.load(Relaxed) {
            true => Err(StorageError { offset: access.offset, kind: INJECTED }),
            false => Ok(()),
        }
    }

    /// Counts bytes that a read returned, from `offset` on.
    #[inline]
    pub(crate) fn count_bytes(&self, offset: HostOffset, bytes: usize) {
        self.bytes.store(self.bytes().wrapping_add(bytes as u64), Relaxed);
        if self.is_traced.load(Relaxed) {
            self.traced_bytes.store(self.traced_bytes().wrapping_add(bytes as u64), Relaxed);
            let end = offset + bytes as u64;
            self.trace.get().into_iter().for_each(|trace| trace.end_read(end));
        }
    }
}

impl Default for Meter {
    /// Creates a meter that counts from 0 and lets no read fail.
    fn default() -> Self {
        Self {
            reads: AtomicU64::default(),
            bytes: AtomicU64::default(),
            fail_at: AtomicU64::new(u64::MAX),
            is_traced: AtomicBool::default(),
            traced_bytes: AtomicU64::default(),
            refused_writes: AtomicU64::default(),
            trace: OnceLock::default(),
            printer: OnceLock::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_the_bytes_of_its_reads() {
        let meter = Meter::default();
        meter.count_bytes(HostOffset::ZERO, 5);
        meter.begin_trace(None);
        assert_eq!(meter.traced_bytes(), 0);
        for bytes in [7, 30] {
            meter.count_bytes(HostOffset::ZERO, bytes);
            meter.restart(u64::MAX);
        }
        meter.count_bytes(HostOffset::ZERO, 200);
        let was_traced = meter.interrupt_trace();
        meter.count_bytes(HostOffset::ZERO, 1000);
        meter.resume_trace(was_traced);
        meter.count_bytes(HostOffset::ZERO, 4);
        assert_eq!((meter.bytes(), meter.traced_bytes()), (1204, 241));
    }
}
