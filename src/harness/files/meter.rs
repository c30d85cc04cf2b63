//! Counts the reads of a chain's files and the writes that they refuse, makes a read fail, and keeps a trace of the
//! first accesses in their order, or prints them.

use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use crate::base::limits::MAX_LAYERS;
use crate::disk::error::StorageError;
use crate::disk::observer::PrintAccesses;
use crate::disk::offsets::HostOffset;
use crate::images::files::LayerFile;

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

/// The number of accesses that a trace keeps.
pub const MAX_ACCESSES: usize = 1024;

/// An access to a file of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The layer, counted from the top.
    pub depth: usize,
    /// The file of the layer.
    pub file: LayerFile,
    /// The first byte. Only the low 56 bits count: no file of a program is longer.
    pub offset: HostOffset,
    /// The number of bytes; 0 if the read failed, or asked only whether bytes are stored.
    pub length_bytes: u64,
    /// The engine writes the bytes.
    pub is_write: bool,
}

/// A trace. Threads of an engine may add accesses at the same time: their order is then no property of the image.
#[derive(Debug)]
pub(super) struct AccessTrace {
    length: AtomicUsize,
    /// The thread of the accesses: 0 before the first.
    thread: AtomicU64,
    accesses: [AtomicU64; MAX_ACCESSES],
    /// The length of each access in bytes.
    lengths: [AtomicU64; MAX_ACCESSES],
}

/// The mark of several threads.
const SEVERAL: u64 = u64::MAX;

impl AccessTrace {
    pub(super) fn new() -> Self {
        let [accesses, lengths] = [const { [const { AtomicU64::new(0) }; MAX_ACCESSES] }; 2];
        Self { length: AtomicUsize::new(0), thread: AtomicU64::new(0), accesses, lengths }
    }

    /// Forgets all accesses.
    pub(super) fn clear(&self) {
        self.length.store(0, Relaxed);
        self.thread.store(0, Relaxed);
    }

    /// Adds an access, if there is room. Several threads are noticed in any case.
    pub(super) fn add(&self, access: FileAccess) {
        match self.thread.load(Relaxed) {
            0 => self.thread.store(this_thread(), Relaxed),
            thread if thread == this_thread() => {}
            _ => self.thread.store(SEVERAL, Relaxed),
        }
        let at = self.length.load(Relaxed);
        let (Some(place), Some(length)) = (self.accesses.get(at), self.lengths.get(at)) else {
            // Later reads are not the last one of the trace.
            self.length.store(MAX_ACCESSES + 1, Relaxed);
            return;
        };
        place.store(access.encode(), Relaxed);
        length.store(access.length_bytes, Relaxed);
        self.length.store(at + 1, Relaxed);
    }

    /// Notes that the last access, a read, has returned the bytes up to `end`.
    fn end_read(&self, end: HostOffset) {
        let last = self.length.load(Relaxed).checked_sub(1);
        let places = last.and_then(|at| Some((self.accesses.get(at)?, self.lengths.get(at)?)));
        let Some((access, length)) = places else { return };
        let start = FileAccess::decode(access.load(Relaxed), 0).offset;
        length.store(end.distance_from(start).unwrap_or(0), Relaxed);
    }

    /// Reports whether several threads have made the accesses.
    pub(super) fn has_several_threads(&self) -> bool {
        self.thread.load(Relaxed) == SEVERAL
    }

    /// Returns the accesses in their order; none if they were made by several threads.
    pub(super) fn accesses(&self) -> impl Iterator<Item = FileAccess> {
        let length = if self.has_several_threads() { 0 } else { self.length.load(Relaxed) };
        let all = self.accesses.iter().zip(&self.lengths).take(length);
        all.map(|(it, length)| FileAccess::decode(it.load(Relaxed), length.load(Relaxed)))
    }
}

/// Returns a number of this thread that no other has while this one lives.
fn this_thread() -> u64 {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr() as u64)
}

const OFFSET_BITS: u32 = 56;
const FILE_BITS: u32 = 3;
const WRITE_BIT: u32 = 63;
const _: () = assert!(MAX_LAYERS <= 16, "four bits hold a depth");

impl FileAccess {
    fn encode(self) -> u64 {
        let file = match self.file {
            LayerFile::Image => 0,
            LayerFile::DataFile => 1,
            LayerFile::Extent(index) => 2 + index as u64,
        };
        self.offset.get() & ((1 << OFFSET_BITS) - 1)
            | file << OFFSET_BITS
            | (self.depth as u64) << (OFFSET_BITS + FILE_BITS)
            | u64::from(self.is_write) << WRITE_BIT
    }

    fn decode(access: u64, length_bytes: u64) -> Self {
        let file = match access >> OFFSET_BITS & ((1 << FILE_BITS) - 1) {
            0 => LayerFile::Image,
            1 => LayerFile::DataFile,
            extent => LayerFile::Extent(extent as usize - 2),
        };
        Self {
            depth: (access >> (OFFSET_BITS + FILE_BITS) & 15) as usize,
            file,
            offset: HostOffset::new(access & ((1 << OFFSET_BITS) - 1)),
            length_bytes,
            is_write: access >> WRITE_BIT != 0,
        }
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
    fn accesses_come_back_in_their_order() {
        let trace = AccessTrace::new();
        let all = [
            access(0, LayerFile::Image, 0, false),
            access(3, LayerFile::DataFile, (1 << OFFSET_BITS) - 1, true),
            access(MAX_LAYERS - 1, LayerFile::Extent(3), 512, false),
        ];
        all.iter().for_each(|access| trace.add(*access));
        assert!(trace.accesses().eq(all));
        (0..2 * MAX_ACCESSES).for_each(|_| trace.add(all[0]));
        assert_eq!(trace.accesses().count(), MAX_ACCESSES);
        trace.clear();
        assert_eq!(trace.accesses().count(), 0);
    }

    #[test]
    fn a_read_has_the_bytes_that_it_has_returned() {
        let trace = AccessTrace::new();
        let lengths = || trace.accesses().map(|it| it.length_bytes).collect::<Vec<_>>();
        trace.end_read(HostOffset::new(9));
        trace.add(access(0, LayerFile::Image, 512, false));
        trace.end_read(HostOffset::new(520));
        trace.add(access(1, LayerFile::Extent(1), 512, false));
        trace.add(FileAccess { length_bytes: 7, ..access(0, LayerFile::Image, 512, true) });
        assert_eq!(lengths(), [8, 0, 7]);
        (0..2 * MAX_ACCESSES).for_each(|_| trace.add(access(0, LayerFile::Image, 0, false)));
        trace.end_read(HostOffset::new(1));
        assert!(lengths()[3..].iter().all(|length| *length == 0), "the last read is not kept");
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

    #[test]
    fn accesses_of_several_threads_have_no_order() {
        for earlier in [1, MAX_ACCESSES] {
            let trace = AccessTrace::new();
            let add = || trace.add(access(0, LayerFile::Image, 0, false));
            (0..earlier).for_each(|_| add());
            assert_eq!(trace.accesses().count(), earlier);
            std::thread::scope(|scope| scope.spawn(add).join()).unwrap();
            assert_eq!(trace.accesses().count(), 0);
        }
    }
}
