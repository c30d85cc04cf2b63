//! A disk that an engine has written has the right bytes: each is that of the last request that covered it, or that of
//! the image before. Snapshots stay as they were, and new ones have the bytes of their moment. A new image has the
//! properties that the harness has asked for, and only zeros. Clusters that no request has changed stay where they are,
//! and the image stores all writes. The names in the header and the snapshots from before stay as they were. Opening,
//! reading and closing an image without a request changes nothing in its file and in its data file, except that a
//! writer may write the header again without the bit for a raw data file. The engine does not try to write to files
//! that are open for reading.
//!
//! Does not check: all bytes in each run. Those within 512 bytes of the edges of requests and of parts of the image
//! before are read in each. A disk of at most 1 MiB is compared whole in some runs, and some windows of every disk are
//! read: the input decides ([`BeyondEdges`]). Only our walker reads compressed clusters of more than 16 KiB
//! (`limits::MAX_INFLATED_BYTES`) that no request has changed, and only their first 16 KiB; a disk that is compared
//! whole is the exception. Nor does it check the bytes in the range of a request that failed with a known error, where
//! the engine places new data, whether it stores zeros, and the names, ids and dates of new snapshots.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no offset near it saturates at 2^64; one that saturates at 0 is its beginning.

use std::ops::{ControlFlow, Range};

use crate::base::limits::MAX_INFLATED_BYTES;
use crate::disk::error::StorageError;
use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Data, Storage, each_data};
use crate::harness::engine::ErrorKind;
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::model::Model;
use crate::images::content::entropy::Entropy;

use super::data::{GuestRead, InCompressed};
use super::extents::model;
use super::{OracleResult, POISON, SetAside, Violation, disagreement, unexpected_error, violation};

const ORACLE: &str = "written";

/// The largest disk that is compared whole, in bytes.
const MAX_WHOLE_BYTES: u64 = 1 << 20;
/// In some comparisons, which the input selects, a small disk is compared whole: on average, at most this number of
/// bytes per comparison.
const WHOLE_MEAN_BYTES: u64 = 32 << 10;
/// The bytes on each side of an edge that are compared.
const EDGE_BYTES: u64 = 512;
/// The number of other windows of a disk that are compared.
const OTHER_WINDOWS: u32 = 2;
/// The bytes that are read at once.
const WRITTEN_PIECE_BYTES: u64 = 64 << 10;

/// The moment at which a disk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The engine reads the disk that it is writing.
    Open,
    /// The engine has read it for a request that was in flight with others, or right after such requests.
    InFlight,
    /// The image is closed, and our walker reads it.
    Closed,
    /// The engine has opened the image again.
    Reopened,
    /// The power was cut or the engine's process killed, and our walker reads the image.
    Cut,
    /// The same, and the engine has opened the image.
    CutReopened,
}

/// The last change of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// No request has changed it.
    None,
    /// A request has written it.
    Written,
    /// A request has zeroed or discarded it, or it is new.
    Zeroed,
}

impl Moment {
    /// Returns the field of a violation at a byte.
    fn field(self, change: LastChange) -> &'static str {
        match (self, change) {
            (Self::Open, LastChange::None) => "the rest",
            (Self::Open, LastChange::Written) => "a write",
            (Self::Open, LastChange::Zeroed) => "zeros",
            (Self::InFlight, LastChange::None) => "the rest, in flight",
            (Self::InFlight, LastChange::Written) => "a write, in flight",
            (Self::InFlight, LastChange::Zeroed) => "zeros, in flight",
            (Self::Closed, LastChange::None) => "the rest in the file",
            (Self::Closed, LastChange::Written) => "a write in the file",
            (Self::Closed, LastChange::Zeroed) => "zeros in the file",
            (Self::Reopened, LastChange::None) => "the rest, opened again",
            (Self::Reopened, LastChange::Written) => "a write, opened again",
            (Self::Reopened, LastChange::Zeroed) => "zeros, opened again",
            (Self::Cut, LastChange::None) => "the rest",
            (Self::Cut, LastChange::Written) => "a flushed write",
            (Self::Cut, LastChange::Zeroed) => "flushed zeros",
            (Self::CutReopened, LastChange::None) => "the rest, opened again",
            (Self::CutReopened, LastChange::Written) => "a flushed write, opened again",
            (Self::CutReopened, LastChange::Zeroed) => "flushed zeros, opened again",
        }
    }
}

/// A disk as a guest must see it.
pub trait ExpectedDisk {
    /// Returns the size in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns the last change of a byte, and the offset at which bytes with another change begin.
    fn last_change(&self, guest: u64) -> (LastChange, u64);

    /// Adds the offsets at which other contents begin to `edges`, in any order. Some may lie past the end of the disk.
    fn add_edges(&self, edges: &mut Vec<u64>);

    /// Returns the place of a byte in its cluster, if that is compressed and no request has changed it.
    fn in_compressed(&self, guest: u64) -> Option<InCompressed>;

    /// Fills `expected` with the bytes from `start` on. The guest has read `actual`.
    fn expect(&self, start: GuestOffset, actual: &[u8], expected: &mut [u8]);
}

/// The bytes that are compared in addition to those around the edges of a disk ([`ExpectedDisk::add_edges`]).
#[derive(Debug)]
pub enum BeyondEdges<'e> {
    /// The stream decides: the whole disk if it is small, or some windows.
    Drawn(&'e mut Entropy),
    /// None.
    Nothing,
}

/// The buffers of the oracle, reused from disk to disk.
#[derive(Debug, Default)]
pub struct WrittenBuffers {
    expected: Vec<u8>,
    actual: Vec<u8>,
    edges: Vec<u64>,
    before: Vec<Extent>,
    clipped: [Vec<Extent>; 2],
}

/// Reads a disk at some moment, and compares its bytes with the expected ones.
pub struct DiskReader<'r, 'f, D> {
    /// Reads the disk.
    pub read: &'r mut GuestRead<'f>,
    /// The expected disk.
    pub disk: &'r D,
    /// The moment.
    pub moment: Moment,
    /// The buffers.
    pub buffers: &'r mut WrittenBuffers,
}

impl<D: ExpectedDisk> DiskReader<'_, '_, D> {
    /// Reads the disk around its edges, and more.
    ///
    /// # Errors
    /// The first violation that is not set aside; or the engine has no answer to reads.
    pub fn check(&mut self, beyond: BeyondEdges, set_aside: &mut SetAside) -> OracleResult {
        let size = self.disk.size_bytes();
        if size <= EDGE_BYTES {
            return self.check_range(0..size, set_aside);
        }
        let mut edges = std::mem::take(&mut self.buffers.edges);
        edges.clear();
        self.disk.add_edges(&mut edges);
        edges.extend([0, size]);
        edges.sort_unstable();
        let judged = self.check_edges(&edges, set_aside);
        self.buffers.edges = edges;
        judged?;
        match beyond {
            BeyondEdges::Drawn(entropy) => {
                let set_aside = &mut |found: Box<Violation>| set_aside(found.into_drawn());
                self.check_drawn(entropy, set_aside)
            }
            BeyondEdges::Nothing => Ok(()),
        }
    }

    /// Reads the whole disk or some windows of it, as the stream decides.
    fn check_drawn(&mut self, entropy: &mut Entropy, set_aside: &mut SetAside) -> OracleResult {
        let size = self.disk.size_bytes();
        if size <= MAX_WHOLE_BYTES && entropy.below(size.div_ceil(WHOLE_MEAN_BYTES)) == 0 {
            return self.check_range(0..size, set_aside);
        }
        (0..OTHER_WINDOWS).try_for_each(|_| self.check_edges(&[entropy.below(size)], set_aside))
    }

    /// Reads the disk around some offsets, in order. Windows side by side are one read.
    pub fn check_edges(&mut self, edges: &[u64], set_aside: &mut SetAside) -> OracleResult {
        let (disk, moment) = (self.disk, self.moment);
        let mut windows = edge_windows(disk, edges, moment).peekable();
        while let Some(mut all) = windows.next() {
            while let Some(next) = windows.next_if(|next| next.start == all.end) {
                all.end = next.end;
            }
            let Err(found) = self.check_range(all.clone(), &mut Err) else { continue };
            // The field of a read that fails depends on where the read begins.
            let near = &edges[edges.partition_point(|edge| *edge < all.start)..];
            let near = &near[..near.partition_point(|edge| *edge <= all.end)];
            let mut has_same = false;
            for window in edge_windows(disk, near, moment) {
                let set_aside = &mut |alone: Box<Violation>| {
                    // Both are errors, or have the same words.
                    has_same |= alone.words() == found.words();
                    set_aside(alone)
                };
                self.check_range(window.start.max(all.start)..window.end, set_aside)?;
            }
            if !has_same {
                go_on_reading(Err(found), set_aside)?;
            }
        }
        Ok(())
    }

    /// Reads a range.
    ///
    /// # Errors
    /// As for [`DiskReader::check`].
    pub fn check_range(&mut self, range: Range<u64>, set_aside: &mut SetAside) -> OracleResult {
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at.saturating_add(WRITTEN_PIECE_BYTES));
            at = piece.end;
            let read = self.read_piece(&piece);
            let has_read = read.is_ok();
            go_on_reading(read, set_aside)?;
            if has_read {
                self.compare_piece(&piece, set_aside)?;
            }
        }
        Ok(())
    }

    /// Reads at most [`WRITTEN_PIECE_BYTES`].
    fn read_piece(&mut self, piece: &Range<u64>) -> OracleResult {
        let Self { read, disk, moment, buffers } = self;
        let WrittenBuffers { expected, actual, .. } = &mut **buffers;
        let start = GuestOffset::new(piece.start);
        let length = piece.end.saturating_sub(piece.start) as usize;
        expected.resize(expected.len().max(length), 0);
        // The disk fills all of it.
        let expected = &mut expected[..length];
        actual.clear();
        actual.resize(length, POISON);
        if let Err(error) = read(start, actual) {
            let field = moment.field(disk.last_change(piece.start).0);
            return Err(unexpected_error(ORACLE, field, &error));
        }
        disk.expect(start, actual, expected);
        Ok(())
    }

    /// Compares the bytes of a piece that was read. Bytes with the same last change have one violation.
    fn compare_piece(&self, piece: &Range<u64>, set_aside: &mut SetAside) -> OracleResult {
        let WrittenBuffers { expected, actual, .. } = &*self.buffers;
        let mut at = 0;
        // To compare slices is faster than to search.
        while at < actual.len() && expected[at..actual.len()] != actual[at..] {
            let mut pairs = expected[at..].iter().zip(&actual[at..]);
            at += pairs.position(|(wanted, found)| wanted != found).unwrap_or(0);
            let (wanted, found) = (expected[at], actual[at]);
            let guest = piece.start.saturating_add(at as u64);
            let (change, next) = self.disk.last_change(guest);
            let kinds =
                ("the bytes of the guest", if found == 0 { "zeros" } else { "other bytes" });
            let detail = format!("expected {wanted:#04x}, actual {found:#04x}");
            let found = disagreement(ORACLE, self.moment.field(change), kinds, detail);
            set_aside(found.at(GuestOffset::new(guest)))?;
            at =
                next.clamp(guest.saturating_add(1), piece.end).saturating_sub(piece.start) as usize;
        }
        Ok(())
    }
}

/// Returns the ranges of a disk around some offsets, in order. None overlaps another.
fn edge_windows(
    disk: &impl ExpectedDisk,
    edges: &[u64],
    moment: Moment,
) -> impl Iterator<Item = Range<u64>> {
    let (size, mut done) = (disk.size_bytes(), 0);
    edges.iter().filter_map(move |edge| {
        let mut start = edge.saturating_sub(EDGE_BYTES).max(done);
        let mut end = edge.saturating_add(EDGE_BYTES).min(size);
        if start < *edge && is_costly(disk, edge - 1, moment) {
            start = *edge;
        }
        if *edge < end && is_costly(disk, end - 1, moment) {
            end = *edge;
        }
        let window = (start < end).then_some(start..end)?;
        done = end;
        Some(window)
    })
}

/// Reports whether a read that ends with this byte inflates more of a compressed cluster than the loop can afford. The
/// first block of a zstd frame, up to 128 KiB, is inflated for any byte of it. So only our walker, which reads what the
/// engine has left, reads the beginning of large clusters.
fn is_costly(disk: &impl ExpectedDisk, guest: u64, moment: Moment) -> bool {
    let is_too_much = |place: InCompressed| match moment {
        Moment::Closed | Moment::Cut => place.is_too_deep(),
        Moment::Open | Moment::InFlight | Moment::Reopened | Moment::CutReopened => {
            place.cluster_bytes > MAX_INFLATED_BYTES
        }
    };
    disk.in_compressed(guest).is_some_and(is_too_much)
}

/// Passes a violation to `set_aside`. Returns it if the engine has no answer to reads, because further reads have none
/// either.
fn go_on_reading(judged: OracleResult, set_aside: &mut SetAside) -> OracleResult {
    judged.or_else(|found| match found.error_kind() {
        Some(ErrorKind::NoAnswer) => Err(found),
        _ => set_aside(found),
    })
}

/// Compares the extents of a file outside of the clusters that requests have `touched`, with those of the disk before.
pub fn check_outside(
    before: &Model,
    touched: impl Iterator<Item = Range<u64>>,
    after: &[Extent],
    buffers: &mut WrittenBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    before.extents(&mut buffers.before);
    let set_aside = &mut |found: Box<Violation>| set_aside(found.attributed_to(ORACLE));
    model::check_outside(touched, &buffers.before, after, &mut buffers.clipped, set_aside)
}

/// Checks that the image itself stores the bytes of a write, without those behind the end of the disk.
pub fn check_stored(write: &Range<u64>, extents: &[Extent]) -> OracleResult {
    let is_before = |extent: &Extent| extent.end().is_some_and(|end| end.get() <= write.start);
    let of_write = extents[extents.partition_point(is_before)..].iter();
    let mut of_write = of_write.take_while(|extent| extent.start.get() < write.end);
    let is_elsewhere = |extent: &&Extent| {
        let Mapping { depth, zero, data, .. } = extent.mapping;
        (depth, zero, data) != (0, false, true)
    };
    match of_write.find(is_elsewhere) {
        None => Ok(()),
        Some(extent) => {
            let kinds = ("data of the image", extent.mapping.kind());
            violation(ORACLE, "extent of a write", kinds, || {
                format!("a write of {write:?}: found {extent}")
            })
        }
    }
}

/// Returns a violation that was found in a snapshot. Requests take and delete snapshots, and change none.
pub fn in_snapshot(found: Box<Violation>) -> Box<Violation> {
    let mut found = found.attributed_to(ORACLE);
    found.field = "a snapshot";
    found
}

/// Returns the violation of a file that has another number of snapshots than the requests have left.
pub fn wrong_snapshot_count(expected: usize, actual: usize) -> OracleResult {
    let found = if actual < expected { "fewer" } else { "more" };
    violation(ORACLE, "snapshots", ("those of the requests", found), || {
        format!("expected {expected} snapshots, actual {actual}")
    })
}

/// Checks a field of a new image, which the harness has chosen.
pub fn check_new_image(field: &'static str, expected: u64, actual: u64) -> OracleResult {
    match expected == actual {
        true => Ok(()),
        false => violation(ORACLE, field, ("as asked", "otherwise"), || {
            format!("expected {expected}, actual {actual}")
        }),
    }
}

/// Checks that a closed file is no longer than it may be.
pub fn check_length(actual_bytes: u64, most_bytes: u64) -> OracleResult {
    match actual_bytes <= most_bytes {
        true => Ok(()),
        false => violation(ORACLE, "length of the file", ("bounded", "longer"), || {
            format!("expected at most {most_bytes} bytes, actual {actual_bytes}")
        }),
    }
}

/// Checks that an engine has not tried to write to files that are open for reading only. `files` names them. Such a
/// write fails, and an engine that ignores the error would change the files of its users.
pub fn check_read_only(files: &'static str, writes: u64) -> OracleResult {
    match writes {
        0 => Ok(()),
        _ => violation(ORACLE, files, ("unchanged", "a write"), || format!("{writes} writes")),
    }
}

/// Returns a violation that was found in the file that an engine has left. An engine that may refuse images may not
/// leave a file that cannot be read.
pub fn in_file(mut found: Box<Violation>) -> Box<Violation> {
    if let Some(error) = &mut found.error {
        error.kind = None;
    }
    found
}

/// Compares the files of an image before and after an engine had it open for writing, without a request: the image from
/// an offset on, and its data file.
pub fn check_unchanged(before: &Chain, after: &Chain, from: HostOffset) -> OracleResult {
    check_same(before.image(), after.image(), from, "file without a request")?;
    match (before.data_file(), after.data_file()) {
        (Some(before), Some(after)) => {
            check_same(before, after, HostOffset::ZERO, "data file without a request")
        }
        _ => Ok(()),
    }
}

/// Compares a file from an offset on with the same file at a later time.
fn check_same(
    before: &ChainFile,
    after: &ChainFile,
    from: HostOffset,
    field: &'static str,
) -> OracleResult {
    let (one, other) = (before.length_bytes(), after.length_bytes());
    // Data on one side may be zeros on the other.
    let differs = first_not_in(before, after, from).or(first_not_in(after, before, from));
    match (one == other, differs) {
        (true, None) => Ok(()),
        _ => violation(ORACLE, field, ("unchanged", "changed"), || {
            format!("{one} bytes before, {other} after; change at {differs:?}")
        }),
    }
}

/// Returns the offset of the first piece of data of `file`, from an offset on, that `other` does not have.
fn first_not_in(file: &ChainFile, other: &ChainFile, from: HostOffset) -> Option<HostOffset> {
    let (mut scratch, mut there) = ([0; 4096], [0; 4096]);
    let (mut found, end) = (None, HostOffset::new(file.length_bytes()));
    let compare = |data: Data<'_>| -> Result<ControlFlow<()>, StorageError> {
        let mut at = data.offset;
        for piece in data.bytes.chunks(there.len()) {
            let there = &mut there[..piece.len()];
            other.read_at(at, there)?;
            if there != piece {
                found = Some(at);
                return Ok(ControlFlow::Break(()));
            }
            at += piece.len() as u64;
        }
        Ok(ControlFlow::Continue(()))
    };
    // Reads from memory do not fail.
    let _ = each_data(file, from.min(end)..end, &mut scratch, compare);
    found
}
