//! Counts the reads of a chain's files and the writes that they refuse, makes a read fail, and keeps a trace of the
//! first accesses in their order, or prints them. Has the accesses of requests in flight wait for their turn.

use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::disk::error::StorageError;
use crate::disk::observer::PrintAccesses;
use crate::disk::offsets::HostOffset;
use crate::images::files::LayerFile;

use super::turns::Turns;

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
    refused_writes: AtomicU64,
    trace: Mutex<AccessTrace>,
    printer: OnceLock<Arc<dyn PrintAccesses>>,
    /// The turns of the accesses, while requests are in flight.
    pub(crate) turns: Turns,
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
        self.trace().clear();
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
    pub(crate) fn end_trace(&self) -> Vec<FileAccess> {
        match self.interrupt_trace() {
            true => self.last_trace(),
            false => Vec::new(),
        }
    }

    /// Returns the accesses of the last trace again; none if there was none, or if several threads made them.
    pub(crate) fn last_trace(&self) -> Vec<FileAccess> {
        self.trace().accesses()
    }

    /// Reports whether several threads have made the accesses of the trace.
    pub(crate) fn traces_several_threads(&self) -> bool {
        self.trace().has_several_threads
    }

    /// Returns the number of bytes that the reads of the trace have returned.
    pub(crate) fn traced_bytes(&self) -> u64 {
        self.trace().bytes
    }

    /// Adds an access to the trace, if one has begun, and prints it, if there is a printer.
    #[inline]
    pub(crate) fn note_access(&self, access: FileAccess) {
        if self.is_traced.load(Relaxed) {
            self.printer.get().into_iter().for_each(|printer| printer.print(&access));
            self.trace().add(access);
        }
    }

    fn trace(&self) -> MutexGuard<'_, AccessTrace> {
        // Nothing panics while it holds the lock.
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a read, and fails if it is the one that must fail.
    #[inline]
    pub(crate) fn count_read(&self, access: FileAccess) -> Result<(), StorageError> {
        self.note_access(access);
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
            self.trace().end_read(offset, bytes as u64);
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
            refused_writes: AtomicU64::default(),
            trace: Mutex::default(),
            printer: OnceLock::default(),
            turns: Turns::default(),
        }
    }
}

/// The number of accesses that a trace keeps.
pub const MAX_ACCESSES: usize = 1024;

/// An access to a file of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The layer, counted from the top.
    pub depth: usize,
    /// The file of the layer.
    pub file: LayerFile,
    /// The first byte.
    pub offset: HostOffset,
    /// The number of bytes; 0 if the read failed, or asked only whether bytes are stored.
    pub length_bytes: u64,
    /// The engine writes the bytes.
    pub is_write: bool,
}

/// The accesses of an engine. If several threads make them at the same time, their order does not follow from the
/// image.
#[derive(Debug, Default)]
struct AccessTrace {
    accesses: Vec<FileAccess>,
    /// The trace was full, so the last access was not added.
    is_full: bool,
    /// The thread of the first access.
    thread: Option<ThreadId>,
    has_several_threads: bool,
    /// The bytes that the reads have returned.
    bytes: u64,
}

impl AccessTrace {
    /// Forgets all accesses, and keeps the buffer.
    fn clear(&mut self) {
        self.accesses.clear();
        *self = Self { accesses: std::mem::take(&mut self.accesses), ..Self::default() };
    }

    /// Adds an access, if there is room. In any case, records whether several threads make accesses.
    fn add(&mut self, access: FileAccess) {
        let here = thread::current().id();
        self.has_several_threads |= *self.thread.get_or_insert(here) != here;
        match self.accesses.len() < MAX_ACCESSES {
            true => self.accesses.push(access),
            false => self.is_full = true,
        }
    }

    /// Records that the last access, a read, has returned `bytes` bytes from `offset` on.
    fn end_read(&mut self, offset: HostOffset, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(last) = self.accesses.last_mut().filter(|_| !self.is_full) {
            last.length_bytes = (offset + bytes).distance_from(last.offset).unwrap_or(0);
        }
    }

    /// Returns the accesses in their order; none if they were made by several threads.
    fn accesses(&self) -> Vec<FileAccess> {
        if self.has_several_threads { Vec::new() } else { self.accesses.clone() }
    }
}

/// For example `read 0x0 of the data file in layer 1`.
impl fmt::Display for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { depth, file, offset, is_write, .. } = self;
        write!(f, "{} {:#x}", if *is_write { "write" } else { "read" }, offset.get())?;
        match file {
            LayerFile::Image => {}
            LayerFile::DataFile => f.write_str(" of the data file")?,
            LayerFile::Extent(index) => write!(f, " of extent {index}")?,
        }
        match depth {
            0 => Ok(()),
            depth => write!(f, " in layer {depth}"),
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

    fn access(depth: usize, file: LayerFile, offset: u64, is_write: bool) -> FileAccess {
        FileAccess { depth, file, offset: HostOffset::new(offset), length_bytes: 0, is_write }
    }

    #[test]
    fn a_read_has_the_bytes_that_it_has_returned() {
        let mut trace = AccessTrace::default();
        trace.end_read(HostOffset::ZERO, 9);
        trace.add(access(0, LayerFile::Image, 512, false));
        trace.end_read(HostOffset::new(512), 8);
        trace.add(access(1, LayerFile::Extent(1), 512, false));
        trace.add(FileAccess { length_bytes: 7, ..access(0, LayerFile::Image, 512, true) });
        (0..2 * MAX_ACCESSES).for_each(|_| trace.add(access(0, LayerFile::Image, 0, false)));
        trace.end_read(HostOffset::ZERO, 1);
        let lengths: Vec<_> = trace.accesses().iter().map(|it| it.length_bytes).collect();
        assert_eq!((lengths.len(), &lengths[..3]), (MAX_ACCESSES, &[8, 0, 7][..]));
        assert!(lengths[3..].iter().all(|length| *length == 0), "the last read is not kept");
    }

    #[test]
    fn an_access_is_printed_with_its_place() {
        for (access, text) in [
            (access(0, LayerFile::Image, 0x1234, false), "read 0x1234"),
            (access(2, LayerFile::DataFile, 0, true), "write 0x0 of the data file in layer 2"),
            (access(0, LayerFile::Extent(1), 512, false), "read 0x200 of extent 1"),
        ] {
            assert_eq!(access.to_string(), text);
        }
    }
}
