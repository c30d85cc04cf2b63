//! The table of operations. Each entry states the opcode, the name in the text, the operands, the [class](Class), and the
//! plainer operations that the minimizer tries in its place, the plainest first. The operations up to `read` have slots in
//! the alias table, which is frozen: operations to come have their canonical opcode only.

use crate::disk::observer::Event;
use crate::formats::qcow2::anatomy::Part;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::Shape;
use crate::images::damage::Transform;
use crate::images::qcow2::payload::Coding;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::{FileEnd, Fill, HeaderFlags, HeaderLength, Leaving};
use crate::programs::operand::{
    AnyShape, At, BitmapFlags, Change, ClusterBits, Count, DataIn, Extra, Features, Few, Gap,
    Hidden, Inside, Keep, Length, Magnitude, NameLength, Number, RefcountOrder, Relative, Size,
    Skew,
};

use super::class::Class::{Arranges, Asks, Attacks, Builds, Checkpoints, Overlays};
use super::definition::operations;

const fn zeros(keep: Keep) -> Event {
    match keep {
        Keep::No => Event::ZeroPlain,
        Keep::Yes => Event::ZeroAllocated,
    }
}

operations! {
    /// Writes whole clusters.
    0 "write" Write {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    } is Builds(Event::Normal), plainer [], slots 9;
    /// Writes whole clusters compressed.
    1 "compress" Compress {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
        /// What they hold.
        shape: Shape,
        /// Where the payloads go.
        skew: Skew,
    } is Builds(Event::Compressed), plainer [Self::Write { at, clusters }], slots 3;
    /// Makes whole clusters read as zeros.
    2 "zero" Zero {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
        /// Whether their allocation is kept.
        keep: Keep,
    } is Builds(zeros(keep)), plainer [Self::Write { at, clusters }], slots 3;
    /// Makes whole clusters unallocated.
    3 "discard" Discard {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    } is Builds(Event::Unallocated), plainer [Self::Write { at, clusters }], slots 2;
    /// Changes subclusters of one cluster, under extended L2.
    4 "subclusters" Subclusters {
        /// The cluster.
        at: At,
        /// What becomes of them.
        change: Change,
        /// The first.
        first: Few<0, 31>,
        /// How many.
        count: Few<1, 32>,
        /// The distance from one to the next.
        stride: Few<1, 8>,
    } is Builds(Event::Subclusters), plainer [Self::Write { at, clusters: Count::ONE }], slots 4;
    /// Decides where host clusters go from now on.
    5 "place" Place {
        /// Where.
        policy: Policy,
    } is Arranges, plainer [], slots 2;
    /// Leaves a gap at the end of the file.
    6 "reserve" Reserve {
        /// How many clusters.
        gap: Gap,
    } is Arranges, plainer [], slots 2;
    /// Takes a snapshot.
    7 "snapshot" Snapshot {} is Builds(Event::Snapshot), plainer [], slots 1;
    /// Deletes a snapshot.
    8 "delete_snapshot" DeleteSnapshot {
        /// Which of those that there are.
        index: Few<0, 15>,
    } is Builds(Event::SnapshotDeleted), plainer [], slots 1;
    /// Changes the size of the disk.
    9 "resize" Resize {
        /// The new size.
        size: Size,
    } is Builds(Event::Resized), plainer [], slots 1;
    /// Asks for the extents of a window.
    10 "walk" Walk {
        /// The cluster in which it begins.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// How many bytes.
        length: Magnitude,
    } is Asks(Event::Walk), plainer [], slots 2;
    /// Asks for the mapping of one byte.
    11 "lookup" Lookup {
        /// The cluster.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
    } is Asks(Event::Lookup), plainer [], slots 1;
    /// Asks for data.
    12 "read" Read {
        /// The cluster in which they begin.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// How many bytes.
        length: Length,
    } is Asks(Event::Read), plainer [], slots 1;
    /// Builds and verifies what there is so far.
    13 "checkpoint" Checkpoint {} is Checkpoints, plainer [];
    /// Lays an empty image on top of what there is, which becomes its backing file. From now on
    /// everything is about the new one.
    14 "overlay" Overlay {
        /// The version of the format.
        version: Version,
        /// The cluster size.
        cluster_bits: ClusterBits,
        /// The refcount width.
        refcount_order: RefcountOrder,
        /// Features.
        features: Features,
        /// Where its data lie.
        data_in: DataIn,
        /// The size of the disk.
        size: Relative,
    } is Overlays, plainer [];
    /// Decides how the header is written.
    15 "header" Header {
        /// How long its fixed part is.
        length: HeaderLength,
        /// The number of a permutation of the extensions.
        order: u8,
        /// How many extensions nobody knows.
        unknown: Number<0, 7>,
        /// How long the first of them is.
        bytes: u8,
        /// Everything that is there or not.
        flags: HeaderFlags,
    } is Arranges, plainer [];
    /// Adds a persistent dirty bitmap.
    16 "bitmap" Bitmap {
        /// log2 of how many guest bytes one bit stands for.
        granularity: Number<9, 31>,
        /// Whether it is in use, and automatic.
        flags: BitmapFlags,
        /// The length of its name.
        name: NameLength,
    } is Builds(Event::Bitmap), plainer [];
    /// Changes entries of a bitmap's table.
    17 "fill_bitmap" FillBitmap {
        /// Which of the bitmaps that there are.
        index: Few<0, 15>,
        /// The first entry, counted round the table.
        entry: u16,
        /// How many.
        entries: Number<1, 32>,
        /// What becomes of them.
        fill: Fill,
    } is Builds(Event::Bitmap), plainer [];
    /// Deletes a bitmap, or all of them with something left.
    18 "delete_bitmap" DeleteBitmap {
        /// Which of the bitmaps that there are.
        index: Few<0, 15>,
        /// What is left.
        leaving: Leaving,
    } is Builds(Event::Bitmap), plainer [];
    /// Makes the disk what it was when a snapshot was taken.
    19 "apply_snapshot" ApplySnapshot {
        /// Which of those that there are.
        index: Few<0, 15>,
    } is Builds(Event::SnapshotApplied), plainer [];
    /// Takes a snapshot that says and holds more.
    20 "snapshot_with" SnapshotWith {
        /// How many bytes of extra data.
        extra: Extra,
        /// How many clusters of VM state.
        vm: Number<0, 15>,
        /// log2 of the distance from one of them to the next.
        spread: Number<0, 31>,
        /// How long the id is.
        id: Number<0, 254>,
        /// How long the name is.
        name: Length,
    } is Builds(Event::Snapshot), plainer [Self::Snapshot {}];
    /// Writes a whole cluster compressed, in a coding of its own.
    21 "compress_as" CompressAs {
        /// The cluster.
        at: At,
        /// What it holds.
        shape: AnyShape,
        /// How it is coded.
        coding: Coding,
        /// Where the payload goes.
        skew: Skew,
    } is Builds(Event::Compressed), plainer [
        Self::Write { at, clusters: Count::ONE },
        Self::Compress { at, clusters: Count::ONE, shape: Shape::Text, skew },
    ];
    /// Decides how the file ends.
    22 "end_file" EndFile {
        /// Where.
        end: FileEnd,
        /// How many bytes lie behind its last cluster, where there are any.
        tail: Gap,
    } is Arranges, plainer [];
    /// Makes tables longer than they must be.
    23 "spare" Spare {
        /// How many clusters more the refcount table has.
        table: Number<0, 15>,
        /// How many entries more the L1 table has.
        l1: Gap,
    } is Arranges, plainer [];
    /// Allocates whole clusters without writing to them.
    25 "preallocate" Preallocate {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    } is Builds(Event::Normal), plainer [Self::Write { at, clusters }];
    /// Puts whole clusters past the end of the disk.
    26 "beyond" Beyond {
        /// In which L2 table: the last that the disk needs, or one behind it.
        table: Number<0, 15>,
        /// How far from the start of its part past the end.
        distance: u16,
        /// How many clusters.
        clusters: Count,
        /// What is put there.
        kind: Hidden,
    } is Builds(Event::PastEnd), plainer [];
    /// Changes a field or an entry of what was built.
    27 "patch" Patch {
        /// What it belongs to.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// Which element of the part.
        nth: u16,
        /// How it is changed.
        transform: Transform,
        /// With what.
        value: u16,
    } is Attacks, plainer [];
    /// Changes a field or an entry when it has been read.
    28 "trap" Trap {
        /// What it belongs to.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// Which element of the part.
        nth: u16,
        /// How it is changed.
        transform: Transform,
        /// With what.
        value: u8,
        /// How many reads see it as it was.
        reads: u8,
    } is Attacks, plainer [Self::Patch { part, depth, nth, transform, value: value.into() }];
    /// Makes a read of a part fail.
    29 "fail_read" FailRead {
        /// Which part.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// How many reads of it go well before.
        reads: u8,
    } is Attacks, plainer [];
    /// Cuts bytes off the end of the file.
    30 "truncate" Truncate {
        /// How many layers down.
        depth: Number<0, 3>,
        /// How many.
        cut: Gap,
    } is Attacks, plainer [];
}
