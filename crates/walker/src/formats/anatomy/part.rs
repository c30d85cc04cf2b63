//! The parts of images.

/// The part of an image that a field or an entry belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Entries of the active disk's L2 tables.
    #[default]
    L2,
    /// Subcluster bitmaps of these entries, under extended L2.
    Bitmap,
    /// Entries of the active L1 table.
    L1,
    /// Fields of headers and footers, of VHDX's log entry, and of the markers in VMDK files.
    Header,
    /// Header extensions: types, lengths and contents. Also the first byte of the backing file's name.
    Extension,
    /// Entries of the refcount table.
    RefcountTable,
    /// Refcounts. If these have less than eight bits, bytes of refcounts.
    RefcountBlock,
    /// Fields of the snapshot table.
    Snapshot,
    /// Entries of L2 tables that only snapshots use.
    SnapshotTable,
    /// Fields of the bitmap directory.
    BitmapDirectory,
    /// Entries of bitmap tables.
    BitmapTable,
    /// First bytes of compressed clusters.
    Payload,
    /// Entries of the tables that name blocks: the block allocation tables of VHD and VHDX, the grain tables of VMDK.
    Table,
    /// The bytes before the data of a block: the bitmap of VHD, the marker and the stream's head of VMDK.
    BlockFront,
    /// Entries of the tables that name other structures: the region tables of VHDX, the grain directories of VMDK.
    Directory,
    /// The description of the disk beside the header: the metadata of VHDX, the descriptor of VMDK.
    Metadata,
}

// A part is the index of its elements.
const _: () = {
    let mut index = 0;
    while index < Part::ALL.len() {
        assert!(Part::ALL[index].index() == index);
        index += 1;
    }
    assert!(Part::Metadata.index() + 1 == Part::ALL.len());
};

impl Part {
    /// The number of parts that a qcow2 image has. They are the first ones.
    pub const OF_QCOW2: usize = 12;

    /// All parts, in order.
    pub const ALL: [Self; 16] = [
        Self::L2,
        Self::Bitmap,
        Self::L1,
        Self::Header,
        Self::Extension,
        Self::RefcountTable,
        Self::RefcountBlock,
        Self::Snapshot,
        Self::SnapshotTable,
        Self::BitmapDirectory,
        Self::BitmapTable,
        Self::Payload,
        Self::Table,
        Self::BlockFront,
        Self::Directory,
        Self::Metadata,
    ];

    /// Returns the place of the part in [`Part::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "L2 table",
            Self::Bitmap => "subcluster bitmap",
            Self::L1 => "L1 table",
            Self::Header => "header",
            Self::Extension => "header extension",
            Self::RefcountTable => "refcount table",
            Self::RefcountBlock => "refcount block",
            Self::Snapshot => "snapshot",
            Self::SnapshotTable => "table of a snapshot",
            Self::BitmapDirectory => "bitmap directory",
            Self::BitmapTable => "bitmap table",
            Self::Payload => "payload",
            Self::Table => "block table",
            Self::BlockFront => "front of a block",
            Self::Directory => "directory",
            Self::Metadata => "metadata",
        }
    }
}
