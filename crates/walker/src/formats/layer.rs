//! The interface between a format's drawer and the walk of the chain. A drawer implements [`FormatLayer`]. The list of
//! formats, `for_each_format` in `disk::image_format`, makes it known.

use std::fmt::{self, Debug};
use std::ops::{ControlFlow, Range};

use crate::disk::extent::Mapping;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Observer, Rare, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, PIECE_BYTES, Storage};
use crate::formats::Tables as GrainTables;
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::error::{Flow, MapError};

/// The number of bytes of a table that an open reads at once. Its buffer is new at each open, so that it is smaller
/// than those of a walk.
pub(crate) const OPEN_PIECE_BYTES: usize = 8 << 10;

/// The bytes that probing reads (QEMU `include/block/block_int-common.h`, `BLOCK_PROBE_BUF_SIZE`).
pub(crate) type ProbedBytes = [u8; 512];

/// The reference of a layer to the one below: `None` without a backing file, `Some(None)` if the layer does not state
/// the backing file's format.
pub(crate) type Named = Option<Option<ImageFormat>>;

/// An open layer of one format. Each method of a format without the feature keeps its default.
pub(crate) trait FormatLayer<'s, S: Storage + ?Sized>: Sized {
    /// The buffers for reads of data, which can be reused from read to read.
    type Buffers: ReadBuffers;

    /// The states in which the walker reads the layer.
    const STATES: WalkStates;

    /// The parts that images can have.
    const PARTS: &'static [Part];

    /// The rare events that happen only in images of the format.
    const RARE_EVENTS: &'static [Rare] = &[];

    /// Reports whether a file with these first bytes is an image of the format, as QEMU probes it.
    fn is_probed(first_bytes: &ProbedBytes) -> bool {
        let _ = first_bytes;
        false
    }

    /// Opens the layer with the checks that QEMU makes. Returns its reference to the layer below, too.
    ///
    /// # Errors
    /// QEMU refuses the image, `layer` lacks a file that the image names, or a read failed.
    fn open(layer: &Layer<'s, S>, observer: &impl Observer) -> Result<(Self, Named), MapError>;

    /// Reads the declarations of the image of `layer`, without opening any other file.
    ///
    /// # Errors
    /// QEMU refuses the image, or a read failed.
    fn declared(layer: &Layer<'s, S>) -> Result<Declared, MapError> {
        let _ = layer;
        Ok(Declared::default())
    }

    /// Reports whether the image has a parent that no reader of the format here reads, as QEMU does not.
    ///
    /// # Errors
    /// The header is malformed, or a read failed.
    fn has_unread_parent(image: &S) -> Result<bool, MapError> {
        let _ = image;
        Ok(false)
    }

    /// Takes the image apart.
    ///
    /// # Errors
    /// A structure that names others is malformed, or a read failed.
    fn take_apart(anatomy: &mut Anatomy, image: &S) -> Result<(), MapError> {
        let _ = (anatomy, image);
        Ok(())
    }

    /// Returns the meaning of a field or an entry in words. `tables` are the tables of an extent: the meaning of its
    /// entries depends on them.
    fn spelled(part: Part, name: &str, value: u64, tables: Option<&GrainTables>) -> String {
        let _ = (part, name, tables);
        value.to_string()
    }

    /// Checks the image as `qemu-img check` does, and calls `report` with each fault that does not end the check.
    /// Returns `None` if QEMU has no check for the format. The check of qcow2 is not here, because its result has
    /// another type.
    ///
    /// # Errors
    /// A fault ends the check, QEMU refuses the image, or a read failed.
    fn check(
        layer: &Layer<'s, S>,
        report: &mut dyn FnMut(&dyn fmt::Display),
    ) -> Option<Result<(), MapError>> {
        let _ = (layer, report);
        None
    }

    /// Returns the name of a file that the image names and that is not available.
    fn missing_file(&self) -> Option<&'static str> {
        None
    }

    /// Returns the size of the disk in bytes, a multiple of 512.
    fn size_bytes(&self) -> u64;

    /// Returns the unit in which the layer stores data, in bytes. `None` if every byte lies at its guest offset, or if
    /// there are several units.
    fn block_bytes(&self) -> Option<u64>;

    /// Reports whether the disk, which ends at `end`, ends inside a block or a grain.
    fn is_cut_at(&self, end: GuestOffset) -> bool {
        self.block_bytes().is_some_and(|block| !end.get().is_multiple_of(block))
    }

    /// Walks the window. `pieces` hold parts of tables.
    fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow;

    /// Returns the mapping of a byte before the end of the layer.
    ///
    /// # Errors
    /// An entry on the way is malformed, or a read failed.
    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError>;

    /// Returns the number of bytes from `guest` on that [`Self::read_piece`] can read at once; at least 1.
    fn piece_bytes(&self, guest: GuestOffset) -> u64;

    /// Reads a part of one piece. Returns false and leaves `into` unchanged if the layer has no data there.
    ///
    /// # Errors
    /// An entry is malformed, data do not inflate, or a read failed.
    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        buffers: &mut Self::Buffers,
    ) -> Result<bool, MapError>;

    /// Checks that the layer below, which has the same format, has the content on which this one is based.
    ///
    /// # Errors
    /// It has another content.
    fn check_parent(&self, parent: &Self) -> Result<(), MapError> {
        let _ = parent;
        Ok(())
    }

    /// Prepares the answers of [`Self::file_with_holes`].
    fn decide_host_holes(&mut self) {}

    /// Returns the file that QEMU asks for holes under a guest byte whose data have a place in it.
    fn file_with_holes(&self, guest: GuestOffset) -> Option<&'s S> {
        let _ = guest;
        None
    }

    /// Makes walks and look-ups report the layer as QEMU's driver does, if that reports less than the image states.
    fn report_as_qemu(&mut self) {}

    /// Returns the number of the extent that holds a guest byte, counted from 0.
    fn extent_index(&self, guest: GuestOffset) -> Option<usize> {
        let _ = guest;
        None
    }

    /// Changes to the disk as it was when the snapshot at `index` of the snapshot table was taken.
    ///
    /// # Errors
    /// The snapshot does not exist, it is malformed, or a read failed.
    fn go_to_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        Err(MapError::Snapshot { index, what: NO_SNAPSHOTS })
    }

    /// Changes to the clusters of the snapshot at `index`, and keeps the size of the disk.
    ///
    /// # Errors
    /// As for [`Self::go_to_snapshot`].
    fn use_table_of_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        Err(MapError::Snapshot { index, what: NO_SNAPSHOTS })
    }
}

/// The fault if a snapshot is requested and the format has no snapshots.
const NO_SNAPSHOTS: &str = "the format has no snapshots";

/// The declarations of an image beside its disk: the names of other files, and the numbers of snapshots and bitmaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The name of the image below it; empty if there is none.
    pub backing_name: Vec<u8>,
    /// The name of the external data file; empty if there is none.
    pub data_file_name: Vec<u8>,
    /// The number of snapshots.
    pub snapshots: usize,
    /// The number of persistent bitmaps.
    pub bitmaps: usize,
}

/// The buffers of a format for reads of data.
pub(crate) trait ReadBuffers: Default + Debug {
    /// Forgets all content that was read.
    fn forget(&mut self) {}
}

/// The buffers of a format that needs none.
impl ReadBuffers for () {}

/// The states in which the walker reads a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkStates {
    /// The state while it reads the table that names other tables; in a format with one table, that table.
    pub(crate) outer: State,
    /// The state while it reads the entries that name data.
    pub(crate) inner: State,
}

impl WalkStates {
    /// Calls `report` with each state once.
    pub(crate) fn each(self, mut report: impl FnMut(State)) {
        report(self.outer);
        if self.inner != self.outer {
            report(self.inner);
        }
    }
}

/// Pieces of the tables of one layer, of one at the first level and one at the second, each of [`PIECE_BYTES`].
#[derive(Debug)]
pub(crate) struct TablePieces {
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
}

impl Default for TablePieces {
    fn default() -> Self {
        Self { first: vec![0; PIECE_BYTES], second: vec![0; PIECE_BYTES] }
    }
}

/// Returns from the walk if a receiver has ended it. Otherwise, the value is that of the step.
macro_rules! go_on {
    ($flow:expr) => {
        match $flow {
            ::std::ops::ControlFlow::Continue(value) => value,
            ::std::ops::ControlFlow::Break(()) => return Ok(::std::ops::ControlFlow::Break(())),
        }
    };
}
pub(crate) use go_on;

/// One of the files that hold the data of a layer. Data of two files are never one extent, even if their host offsets
/// are consecutive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldingFile(usize);

impl HoldingFile {
    /// Returns the identity of an open file.
    pub(crate) fn of<S: ?Sized>(file: &S) -> Self {
        Self(std::ptr::from_ref(file).addr())
    }
}

/// The receiver of a layer's walk. It covers the guest bytes of a window, front to back, with mappings. Where the layer
/// has nothing, it goes on in the layer below.
pub(crate) trait Cover {
    /// The observer of the walk.
    type Observer: Observer;

    /// Returns the observer.
    fn observer(&self) -> &Self::Observer;

    /// Returns the first guest byte that is not covered.
    fn position(&self) -> GuestOffset;

    /// Returns the end of the window, at most the end of the layer.
    fn end(&self) -> GuestOffset;

    /// Reports one step to the visitor.
    fn step(&mut self) -> ControlFlow<()>;

    /// Covers the part of `start..end` that lies in the window and is not covered. `mapping` is the mapping of `start`,
    /// which is not past the position.
    fn cover(&mut self, start: GuestOffset, end: GuestOffset, mapping: Mapping) -> Flow;

    /// Covers the guest bytes from the position to `end`, which this layer allocates, and which lies in the window.
    /// `mapping` is the mapping of the position.
    fn put(&mut self, end: GuestOffset, mapping: Mapping) -> ControlFlow<()>;

    /// Sets the file that holds the data of this layer from the position on. Without a call, all data lie in one file.
    fn set_file(&mut self, file: HoldingFile);

    /// Covers the guest bytes up to `until` as a hole, if they are not covered.
    #[inline]
    fn hole_until(&mut self, until: GuestOffset) -> Flow {
        if until <= self.position() {
            return Ok(ControlFlow::Continue(()));
        }
        self.cover(self.position(), until, Mapping::HOLE)
    }
}

/// Returns the indices of the entries of a table that map the bytes from `start` to `end`, both counted from the first
/// byte that the table maps. Each entry maps `1 << span_bits` bytes.
pub(crate) fn entries_of(start: u64, end: u64, span_bits: u32) -> Range<u64> {
    // Neither is past 2^63, so that the sum fits.
    start >> span_bits..(end + ((1 << span_bits) - 1)) >> span_bits
}

/// Returns the mapping with its depth set.
#[inline]
pub(crate) fn at_depth(mapping: Mapping, depth: usize) -> Mapping {
    Mapping { depth: u32::try_from(depth).unwrap_or(u32::MAX), ..mapping }
}

/// Returns the host offset of a guest byte that lies at the same offset of a file.
pub(crate) fn in_place(guest: GuestOffset) -> HostOffset {
    HostOffset::new(guest.get())
}

/// Returns the length of a file as QEMU sees it: whole sectors.
pub(crate) fn whole_sectors(length_bytes: u64) -> u64 {
    length_bytes.checked_next_multiple_of(512).unwrap_or(!511)
}
