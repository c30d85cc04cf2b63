//! The faults that tests plant in the small writer.

/// Defines [`WriterFault`] from the faults with their names.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident $name:literal,)+) => {
        /// A fault of the small writer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum WriterFault {
            $($(#[$doc])* $fault,)+
        }

        impl WriterFault {
            /// All faults.
            pub const ALL: &[Self] = &[$(Self::$fault),+];

            /// Returns the name of the fault.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)+
                }
            }
        }
    };
}

faults! {
    /// A write changes a cluster that a snapshot shares in place.
    CopiedIgnored "copied_ignored",
    /// A write away from the edges of a cluster that a snapshot shares changes it in place.
    SharedInside "shared_inside",
    /// A request changes an L2 table that a snapshot shares in place.
    SharedTable "shared_table",
    /// A new cluster gets no refcount.
    CountNotRaised "count_not_raised",
    /// A cluster without a reference keeps its refcount.
    CountNotLowered "count_not_lowered",
    /// A freed cluster is never used again.
    FreedNotUsed "freed_not_used",
    /// The entry of a new cluster is not marked as copied.
    CopiedNotSet "copied_not_set",
    /// The bytes before a write in a new cluster are lost.
    HeadLost "head_lost",
    /// The bytes behind a write in a new cluster are lost.
    TailLost "tail_lost",
    /// A new cluster lacks the bytes of the layers below.
    BelowLost "below_lost",
    /// A write goes over the compressed data of neighbours.
    CompressedNeighbour "compressed_neighbour",
    /// A range of zeros grows to whole clusters.
    ZerosPastEnd "zeros_past_end",
    /// A discard changes nothing.
    DiscardIgnored "discard_ignored",
    /// After a discard, the guest reads the layers below.
    DiscardShowsBelow "discard_shows_below",
    /// A write to a zero cluster keeps the zero flag.
    ZeroFlagStays "zero_flag_stays",
    /// The header keeps the old size of the disk.
    SizeNotStored "size_not_stored",
    /// The new part of a disk that has grown shows old bytes.
    GrownTail "grown_tail",
    /// An image that was written stays marked as dirty.
    DirtyStays "dirty_stays",
    /// An image is marked as dirty from the first write until it is closed.
    DirtyWhileOpen "dirty_while_open",
    /// An image that was written stays marked as corrupt.
    CorruptStays "corrupt_stays",
    /// Another size of the disk makes the header lose the bit for lazy refcounts.
    LazyBitLost "lazy_bit_lost",
    /// Opening for writing changes the header.
    OpenWrites "open_writes",
    /// All clusters of a write go behind the first one.
    AssumedNeighbours "assumed_neighbours",
    /// The byte in the middle of a write is another one.
    MiddleWrong "middle_wrong",
    /// The clusters of a long write between the first one and the last one are missing.
    MiddleMissing "middle_missing",
    /// The last bytes of a long write are missing.
    EndMissing "end_missing",
    /// The header keeps the place of a refcount table that has moved.
    TableNotStored "table_not_stored",
    /// A new refcount block does not count itself.
    BlockNotCounted "block_not_counted",
    /// In a power cut, an entry of a table can be newer than the cluster that it names.
    EntryBeforeData "entry_before_data",
    /// In a power cut, a cluster can be free although an entry names it.
    FreedEarly "freed_early",
    /// A new cluster gets its refcount when an entry names it already.
    CountedLate "counted_late",
    /// A flush does nothing.
    FlushIgnored "flush_ignored",
    /// A snapshot does not raise the counts of the clusters that it shares.
    SnapshotNotCounted "snapshot_not_counted",
    /// The entries of clusters that a snapshot shares stay marked as copied.
    SnapshotKeepsCopied "snapshot_keeps_copied",
    /// In a power cut, the header can name a snapshot table that is not there.
    SnapshotTableLate "snapshot_table_late",
    /// An applied snapshot shares its L1 table with the disk.
    AppliedTableShared "applied_table_shared",
    /// The disk keeps its size when a snapshot is applied.
    AppliedSizeIgnored "applied_size_ignored",
    /// In a power cut, the counts of a deleted snapshot can be lower although the table names it.
    DeletedEarly "deleted_early",
    /// The entries of clusters that a deleted snapshot has shared are not marked as copied.
    CopiedStaysCleared "copied_stays_cleared",
    /// A cluster of a new image gets no refcount.
    CreatedNotCounted "created_not_counted",
    /// A new disk has whole clusters.
    CreatedSizeRounded "created_size_rounded",
    /// While the image is closed, its L1 table moves, and the header names it before it is there.
    CloseTorn "close_torn",
    /// Zeros and discards set no bits of bitmaps.
    BitmapMissesZeros "bitmap_misses_zeros",
    /// A change sets only the bit of its first byte.
    BitmapMissesEnd "bitmap_misses_end",
    /// The bits of changes reach the file when the image is closed.
    BitmapLate "bitmap_late",
    /// A bitmap that is disabled records changes.
    BitmapAlwaysEnabled "bitmap_always_enabled",
    /// A bitmap that is cleared keeps its bits.
    BitmapNotCleared "bitmap_not_cleared",
    /// A bitmap keeps its length when the disk gets another size.
    BitmapNotResized "bitmap_not_resized",
    /// Closing an image drops its bitmaps.
    BitmapsDropped "bitmaps_dropped",
    /// New data lie at the end of the data file.
    DataFileAtEnd "data_file_at_end",
    /// A new cluster keeps old bytes of the data file around a write.
    DataFileNotCleared "data_file_not_cleared",
    /// A flush flushes the image, and not the data file.
    DataFileNotFlushed "data_file_not_flushed",
    /// Zeros are in the entry alone, and not in a raw data file.
    RawDataFileStale "raw_data_file_stale",
    /// A raw data file keeps its length when the size of the disk changes.
    RawDataFileNotResized "raw_data_file_not_resized",
    /// A write also stores the next cluster, as it reads already.
    NeighbourStored "neighbour_stored",
    /// A deleted snapshot stays in the table.
    SnapshotNotDeleted "snapshot_not_deleted",
    /// Another snapshot table changes the names of the snapshots in it.
    SnapshotRenamed "snapshot_renamed",
    /// Another size of the disk makes the header lose the format of the backing file.
    BackingFormatLost "backing_format_lost",
    /// A new image has refcounts of 16 bits.
    CreatedWidthIgnored "created_width_ignored",
    /// A new image has the newest version.
    CreatedVersionIgnored "created_version_ignored",
    /// A new image has clusters of 64 KiB.
    CreatedClusterIgnored "created_cluster_ignored",
    /// A new image has the bit for extended L2 entries.
    CreatedEntriesExtended "created_entries_extended",
    /// A new image has a backing file.
    CreatedBacked "created_backed",
    /// A new image has the older compression type.
    CreatedCompressionIgnored "created_compression_ignored",
    /// Opening for writing appends a byte to a data file.
    DataFileGrows "data_file_grows",
    /// A new bitmap is not added.
    BitmapNotAdded "bitmap_not_added",
    /// A new bitmap has bits for half of the bytes.
    BitmapTooFine "bitmap_too_fine",
    /// A new bitmap stays marked as in use.
    BitmapStaysInUse "bitmap_stays_in_use",
    /// A bitmap that is removed stays in the directory.
    BitmapNotRemoved "bitmap_not_removed",
    /// A bitmap that is enabled records no changes.
    BitmapStaysDisabled "bitmap_stays_disabled",
    /// A bitmap that is disabled loses its bits.
    BitmapForgets "bitmap_forgets",
    /// If the file does not take the data of a write, the write succeeds all the same (Incus, #2693: a full volume).
    WriteErrorIgnored "write_error_ignored",
    /// If a flush of the file fails, the flush of the disk succeeds all the same (acid-state, #175).
    FlushErrorIgnored "flush_error_ignored",
    /// If the rest of a shared cluster cannot be read, its copy has zeros there.
    CopyErrorIgnored "copy_error_ignored",
    /// After a write that has failed, the next write gets clusters that the first one has already given to entries
    /// (cloud-hypervisor, a5e145bde: an allocation that is handed out twice after an error).
    AllocatedTwice "allocated_twice",
    /// Opening for writing frees the clusters that a crash has leaked, and the cluster in use behind them.
    LeakFreedTooFar "leak_freed_too_far",
    /// A new cluster keeps old bytes of the device beside those that are written.
    OldBytesStay "old_bytes_stay",
    /// Writes in flight have no locks on the clusters of the guest that they write (openvstorage/volumedriver, #48:
    /// unaligned writes to one cluster lose each other's sectors).
    ClusterNotLocked "cluster_not_locked",
    /// Zeroes and discards in flight have no locks (cloud-hypervisor, #7660: several queues on one image).
    ZeroesNotLocked "zeroes_not_locked",
    /// A write in flight stores the entry of a new cluster before its content (cloud-hypervisor, #8621: a read of
    /// another queue meets a half-filled cluster over a backing file).
    EntryBeforeContent "entry_before_content",
    /// Two requests in flight get the same new cluster (cloud-hypervisor, commit a5e145bde).
    EndRaced "end_raced",
    /// A write in flight succeeds before its bytes are written. A flush does not wait for them (ceph, #43461: a flush
    /// goes past writes in a queue).
    AnsweredEarly "answered_early",
    /// Two requests in flight take locks on the same clusters in different orders, and wait for each other (the price
    /// of the finer locks that cloud-hypervisor's #7660 asks for).
    LocksCrossed "locks_crossed",
    /// A request that frees a cluster writes zeros over it later, when another request may have taken it
    /// (cloud-hypervisor, #8624: a stale punch-hole).
    StaleZeroes "stale_zeroes",
    /// A write to a cluster that it owns gives its lock back before the bytes are written: a discard frees the cluster,
    /// and another write takes it (QEMU 10.0.2, `engines/findings/qemu.toml`, discard_in_flight).
    WriteOverTaken "write_over_taken",
    /// A read looks up a cluster, and reads it when another request may have taken it (cloud-hypervisor, #7660).
    ReadOfTaken "read_of_taken",
    /// Two requests in flight each get the L2 table that is missing; the second one replaces the first
    /// (cloud-hypervisor, #7660).
    TableTwice "table_twice",
    /// Two requests in flight lower one count: both read it before one of them writes it (cloud-hypervisor, #7660).
    CountRaced "count_raced",
    /// A flush succeeds at once while another one is in flight, whose files may have been flushed before the last
    /// writes (koverstreet/bcachefs-tools, #856).
    FlushJoined "flush_joined",
    /// The first write that ends marks the image as clean, while the counts of another one are missing
    /// (cloud-hypervisor, commit 53ee9ebb7: the dirty bit is cleared too early).
    CleanTooEarly "clean_too_early",
    /// After a flush of the file that has failed, the next one does nothing, as if its bytes had been written
    /// (ned14/llfio, #17; wiredtiger, #4095: a flush that is tried again).
    FailedFlushForgotten "failed_flush_forgotten",
    /// If bytes cannot be read, the guest gets zeros.
    ReadErrorIgnored "read_error_ignored",
    /// If the entry of a new cluster cannot be written, the write succeeds all the same (oVirt vdsm, #371: a full
    /// volume).
    EntryErrorIgnored "entry_error_ignored",
    /// If a table cannot be copied whole, its copy is used all the same (tursodatabase/turso, #3042: a short write that
    /// is taken for a whole one).
    TableErrorIgnored "table_error_ignored",
}
