//! The table of operations, which defines decoding, encoding, text, class and plainer forms. Opcodes are append-only:
//! an opcode never changes its meaning or its operands.
//!
//! Each entry states the opcode, the name in the text, the operands, the [class](Class), and the plainer operations
//! that the minimizer tries in its place, the plainest first. The operations up to `read` have slots in the alias
//! table, which is frozen: later operations have only their canonical opcode.

mod definition;

pub use definition::{Class, OPERATION_BYTES};

use crate::disk::observer::Event;
use crate::formats::anatomy::Part;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::Look;
use crate::images::content::Shape;
use crate::images::damage::Transform;
use crate::images::format::file_plan::ExtentForm;
use crate::images::qcow2::payload::Coding;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::{FileEnd, Fill, HeaderFlags, HeaderLength, Leaving};

use super::operand::{
    AnyShape, At, BitmapFlags, BytesKind, Change, ClusterBits, Count, CutKind, DataContent, DataIn,
    DeviceError, Extra, Failures, FarGap, Few, FileOperation, Gap, Hidden, ImageFeatures,
    ImageForm, Inside, Keep, Length, Magnitude, NameLength, Number, OldBytes, RefcountOrder,
    Relative, Size, Skew, SyncKind, TurnOrder,
};
use definition::Class::{Arranges, Asks, Attacks, Builds, Checkpoints, Overlays, Requests};
use definition::operations;

const fn zeros(keep: Keep) -> Event {
    match keep {
        Keep::No => Event::ZeroPlain,
        Keep::Yes => Event::ZeroAllocated,
    }
}

const fn synced(kind: SyncKind) -> Event {
    match kind {
        SyncKind::Flush => Event::Checkpoint,
        SyncKind::Cut | SyncKind::Kill => Event::Attacked,
    }
}

operations! {
    /// Writes whole clusters.
    0 "write" Write {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
    } is Builds(Event::Normal), plainer [], slots 9;
    /// Writes whole compressed clusters.
    1 "compress" Compress {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
        /// The shape of their content.
        shape: Shape,
        /// The placement of the payloads.
        skew: Skew,
    } is Builds(Event::Compressed), plainer [Self::Write { at, clusters }], slots 3;
    /// Makes whole clusters read as zeros.
    2 "zero" Zero {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
        /// The treatment of their allocation.
        keep: Keep,
    } is Builds(zeros(keep)), plainer [Self::Write { at, clusters }], slots 3;
    /// Makes whole clusters unallocated.
    3 "discard" Discard {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
    } is Builds(Event::Unallocated), plainer [Self::Write { at, clusters }], slots 2;
    /// Changes subclusters of one cluster, if the image has extended L2 entries.
    4 "subclusters" Subclusters {
        /// The cluster.
        at: At,
        /// The change.
        change: Change,
        /// The first subcluster.
        first: Few<0, 31>,
        /// The number of subclusters.
        count: Few<1, 32>,
        /// The distance from one subcluster to the next.
        stride: Few<1, 8>,
    } is Builds(Event::Subclusters), plainer [Self::Write { at, clusters: Count::ONE }], slots 4;
    /// Sets the placement of host clusters from now on.
    5 "place" Place {
        /// The placement.
        policy: Policy,
    } is Arranges, plainer [], slots 2;
    /// Leaves a gap at the end of the file.
    6 "reserve" Reserve {
        /// The number of clusters.
        gap: Gap,
    } is Arranges, plainer [], slots 2;
    /// Takes a snapshot.
    7 "snapshot" Snapshot {} is Builds(Event::Snapshot), plainer [], slots 1;
    /// Deletes a snapshot.
    8 "delete_snapshot" DeleteSnapshot {
        /// The existing snapshot to delete.
        index: Few<0, 15>,
    } is Builds(Event::SnapshotDeleted), plainer [], slots 1;
    /// Changes the size of the disk.
    9 "resize" Resize {
        /// The new size.
        size: Size,
    } is Builds(Event::Resized), plainer [], slots 1;
    /// Asks for the extents of a window.
    10 "walk" Walk {
        /// The cluster of the window's first byte.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// The length of the window in bytes.
        length: Magnitude,
    } is Asks(Event::Walk), plainer [], slots 2;
    /// Asks for the mapping of one byte.
    11 "lookup" Lookup {
        /// The cluster of the byte.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
    } is Asks(Event::Lookup), plainer [], slots 1;
    /// Asks for the data of a range.
    12 "read" Read {
        /// The cluster of the first byte.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// The number of bytes.
        length: Length,
    } is Asks(Event::Read), plainer [], slots 1;
    /// Builds and verifies the current image.
    13 "checkpoint" Checkpoint {} is Checkpoints, plainer [];
    /// Lays an empty image on top of the current one, which becomes its backing file. Later operations change the new
    /// image.
    14 "overlay" Overlay {
        /// The version of the format.
        version: Version,
        /// The cluster size.
        cluster_bits: ClusterBits,
        /// The refcount width.
        refcount_order: RefcountOrder,
        /// The features of the image.
        features: ImageFeatures,
        /// The location of the guest data.
        data_in: DataIn,
        /// The size of the disk.
        size: Relative,
    } is Overlays, plainer [];
    /// Sets the options of the header.
    15 "header" Header {
        /// The length of the fixed part.
        length: HeaderLength,
        /// The number of a permutation of the extensions.
        order: u8,
        /// The number of extensions of unknown types.
        unknown: Number<0, 7>,
        /// The length of the first of them in bytes.
        bytes: u8,
        /// The optional parts and bits.
        flags: HeaderFlags,
    } is Arranges, plainer [];
    /// Adds a persistent dirty bitmap.
    16 "bitmap" Bitmap {
        /// log2 of the guest bytes that one bit represents.
        granularity: Number<9, 31>,
        /// The flags `in_use` and `auto`.
        flags: BitmapFlags,
        /// The length of its name.
        name: NameLength,
    } is Builds(Event::Bitmap), plainer [];
    /// Changes entries of a bitmap's table.
    17 "fill_bitmap" FillBitmap {
        /// The existing bitmap to change.
        index: Few<0, 15>,
        /// The first entry, modulo the length of the table.
        entry: u16,
        /// The number of entries.
        entries: Number<1, 32>,
        /// The new content of the entries.
        fill: Fill,
    } is Builds(Event::Bitmap), plainer [];
    /// Deletes a bitmap, or deletes all bitmaps and leaves some of their structures behind.
    18 "delete_bitmap" DeleteBitmap {
        /// The existing bitmap to delete.
        index: Few<0, 15>,
        /// The structures to leave behind.
        leaving: Leaving,
    } is Builds(Event::Bitmap), plainer [];
    /// Restores the disk to the state that it had when a snapshot was taken.
    19 "apply_snapshot" ApplySnapshot {
        /// The existing snapshot to apply.
        index: Few<0, 15>,
    } is Builds(Event::SnapshotApplied), plainer [];
    /// Takes a snapshot with extra data, VM state, an id and a name.
    20 "snapshot_with" SnapshotWith {
        /// The length of the extra data in bytes.
        extra: Extra,
        /// The number of clusters of VM state.
        vm: Number<0, 15>,
        /// log2 of the distance from one of these clusters to the next.
        spread: Number<0, 31>,
        /// The length of the id in bytes.
        id: Number<0, 254>,
        /// The length of the name in bytes.
        name: Length,
    } is Builds(Event::Snapshot), plainer [Self::Snapshot {}];
    /// Writes one whole compressed cluster, in a given coding.
    21 "compress_as" CompressAs {
        /// The cluster.
        at: At,
        /// The shape of its content.
        shape: AnyShape,
        /// The coding of its payload.
        coding: Coding,
        /// The placement of the payload.
        skew: Skew,
    } is Builds(Event::Compressed), plainer [
        Self::Write { at, clusters: Count::ONE },
        Self::Compress { at, clusters: Count::ONE, shape: Shape::Text, skew },
    ];
    /// Sets the end of the file.
    22 "end_file" EndFile {
        /// The point at which the file ends.
        end: FileEnd,
        /// The number of bytes behind the last cluster, if the kind of end has any.
        tail: Gap,
    } is Arranges, plainer [];
    /// Makes tables longer than necessary.
    23 "spare" Spare {
        /// The number of additional clusters of the refcount table.
        table: Number<0, 15>,
        /// The number of additional entries of the L1 table.
        l1: Gap,
    } is Arranges, plainer [];
    /// Lays an empty image in the same format on top of the current one, which becomes its parent. No effect if the
    /// format has no parents of its own. Later operations change the new image.
    24 "overlay_vmdk" OverlayInFormat {
        /// The size of a grain.
        cluster_bits: ClusterBits,
        /// The variety of the image.
        form: ImageForm,
        /// The size of the disk.
        size: Relative,
    } is Overlays, plainer [];
    /// Allocates whole clusters without writing to them.
    25 "preallocate" Preallocate {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
    } is Builds(Event::Normal), plainer [Self::Write { at, clusters }];
    /// Puts whole clusters past the end of the disk.
    26 "beyond" Beyond {
        /// The L2 table: the last one that the disk needs, or one behind it.
        table: Number<0, 15>,
        /// The distance in clusters from the first cluster that the table maps past the end of the disk.
        distance: u16,
        /// The number of clusters.
        clusters: Count,
        /// The kind of the clusters.
        kind: Hidden,
    } is Builds(Event::PastEnd), plainer [];
    /// Changes a field or an entry of the built files.
    27 "patch" Patch {
        /// The part of the file that the element belongs to.
        part: Part,
        /// The depth of the layer, 0 for the top.
        depth: Number<0, 3>,
        /// The index of the element in the part.
        nth: u16,
        /// The transform of the element.
        transform: Transform,
        /// The operand of the transform.
        value: u16,
    } is Attacks, plainer [];
    /// Changes a field or an entry after a number of reads.
    28 "trap" Trap {
        /// The part of the file that the element belongs to.
        part: Part,
        /// The depth of the layer, 0 for the top.
        depth: Number<0, 3>,
        /// The index of the element in the part.
        nth: u16,
        /// The transform of the element.
        transform: Transform,
        /// The operand of the transform.
        value: u8,
        /// The number of reads that see the original value.
        reads: u8,
    } is Attacks, plainer [Self::Patch { part, depth, nth, transform, value: value.into() }];
    /// Makes a read of a part fail.
    29 "fail_read" FailRead {
        /// The part.
        part: Part,
        /// The depth of the layer, 0 for the top.
        depth: Number<0, 3>,
        /// The number of reads that succeed before.
        reads: u8,
    } is Attacks, plainer [];
    /// Cuts bytes off the end of the file.
    30 "truncate" Truncate {
        /// The depth of the layer, 0 for the top.
        depth: Number<0, 3>,
        /// The number of bytes to cut off.
        cut: Gap,
    } is Attacks, plainer [];
    /// Leaves a gap at the end of the file, and lets the file grow to the longest that the format allows.
    31 "reserve_far" ReserveFar {
        /// The number of clusters.
        gap: FarGap,
    } is Arranges, plainer [Self::Reserve { gap: gap.shortened() }];
    /// Begins the current image again, with one more file beside it, if its format has extents. No effect after an
    /// operation that changed the disk.
    32 "extent" Extent {
        /// The kind of the file.
        kind: ExtentForm,
        /// The number of clusters in it, unless it is the last one.
        length: Gap,
        /// The number of unused sectors before flat data.
        lead: u8,
    } is Arranges, plainer [];
    /// Asks the engine to write bytes.
    34 "write_at" WriteAt {
        /// The cluster of the first byte.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// The number of bytes.
        length: Gap,
    } is Requests(Event::Normal), plainer [];
    /// Asks the engine to make bytes read as zeros.
    35 "zero_at" ZeroAt {
        /// The cluster of the first byte.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// The number of bytes.
        length: Gap,
    } is Requests(Event::ZeroPlain), plainer [];
    /// Asks the engine to flush the disk, or keeps a file that a power cut or the end of its process could have left.
    36 "sync" Sync {
        /// A flush, or the kind of a cut.
        kind: SyncKind,
        /// Selects the moment of the cut, and the writes that it loses.
        choice: u16,
    } is Requests(synced(kind)), plainer [];
    /// Passes bytes to the next operation that has a use for them. They follow in the next records, eight in each; the
    /// last one ends with zeros.
    37 "bytes" Bytes {
        /// The use.
        kind: BytesKind,
        /// The number of bytes.
        length: Length,
    } is Arranges, plainer [];
    /// Writes whole clusters that look like the beginning or the end of a file in another format.
    38 "write_as" WriteAs {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
        /// The thing that each cluster looks like.
        look: Look,
    } is Builds(Event::Normal), plainer [Self::Write { at, clusters }];
    /// Adds refcount blocks that count nothing.
    39 "spare_blocks" SpareBlocks {
        /// The number of blocks.
        blocks: Count,
        /// The number of entries of the refcount table without a block that come before the first of them.
        distance: u16,
    } is Arranges, plainer [];
    // The second table.
    /// Allocates a run of whole clusters without writing to them.
    256 "preallocate_run" PreallocateRun {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        length: Gap,
    } is Builds(Event::Normal), plainer [Self::Preallocate { at, clusters: Count::ONE }];
    /// Writes whole clusters with a given content.
    257 "write_data" WriteData {
        /// The first cluster.
        at: At,
        /// The number of clusters.
        clusters: Count,
        /// The content.
        content: DataContent,
        /// The byte, the count or the first cluster that the content names, if no bytes of the program wait.
        value: u8,
    } is Builds(Event::Normal), plainer [Self::Write { at, clusters }];
    /// Asks the engine to write bytes with a given content.
    258 "write_data_at" WriteDataAt {
        /// The cluster of the first byte, whose first byte it is.
        at: At,
        /// The number of bytes.
        length: Gap,
        /// The content.
        content: DataContent,
    } is Requests(Event::Normal), plainer [
        Self::WriteAt { at, inside: Inside::default(), length },
    ];
    /// Lets operations of the engine on its files fail. A later one takes the place of an earlier one.
    259 "fail_file" FailFile {
        /// The kind of the operations.
        of: FileOperation,
        /// The number of operations of that kind that succeed first.
        before: u8,
        /// How they fail.
        error: DeviceError,
        /// The number of operations that fail.
        failures: Failures,
    } is Requests(Event::Attacked), plainer [];
    /// Ends the engine in a cut. The program goes on with the file that the cut has left.
    260 "crash" Crash {
        /// The cause.
        kind: CutKind,
        /// Selects the moment of the cut, and the writes that it loses.
        choice: u16,
    } is Requests(Event::Attacked), plainer [];
    /// Lays the image on a block device: a file of a fixed size.
    261 "device" Device {
        /// The clusters behind the image.
        spare: Few<0, 63>,
        /// The bytes that lie there.
        old: OldBytes,
    } is Requests(Event::Attacked), plainer [];
    /// Has the next requests in flight together.
    262 "in_flight" InFlight {
        /// The number of requests.
        requests: Few<2, 9>,
        /// The most of them that are in flight at the same time.
        at_once: Few<2, 4>,
        /// The order of the operations on files.
        order: TurnOrder,
    } is Requests(Event::Attacked), plainer [];
    /// Asks the engine to read bytes.
    263 "read_at" ReadAt {
        /// The cluster of the first byte, whose first byte it is.
        at: At,
        /// The number of bytes.
        length: Gap,
    } is Requests(Event::Normal), plainer [];
}
