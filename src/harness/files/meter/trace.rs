//! The first accesses to the files of a chain, in their order.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::base::limits::MAX_LAYERS;
use crate::disk::offsets::HostOffset;
use crate::images::files::LayerFile;

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
    pub(super) fn end_read(&self, end: HostOffset) {
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
