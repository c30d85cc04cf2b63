//! The fields of structures: the part of an image that they belong to, their declaration, and their values in words.

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
    /// Fields of headers and footers, of the entries of a log, and of markers before data.
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
    /// Entries of the tables that name blocks or grains.
    Table,
    /// The bytes before the data of a block: its bitmap, or its marker and the head of its stream.
    BlockFront,
    /// Entries of the tables that name other structures or tables.
    Directory,
    /// The description of the disk beside the header.
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

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The highest byte comes first, as in qcow2.
    BigEndian,
    /// The lowest byte comes first.
    LittleEndian,
}

impl ByteOrder {
    /// Reverses the lowest `width_bytes` of a number, from 1 to 8, if its lowest byte comes first. This turns a number
    /// that was read as a big-endian one into its value, and a value into the big-endian number to write.
    pub fn in_order(self, number: u64, width_bytes: u8) -> u64 {
        match self {
            Self::BigEndian => number,
            Self::LittleEndian => {
                number.swap_bytes() >> (64 - 8 * u32::from(width_bytes.clamp(1, 8)))
            }
        }
    }
}

/// The declaration of a field of a structure: the only place that knows its offset. Decoding, anatomy, the build and
/// the rules use it, each with code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureField {
    /// The name in the specification.
    pub name: &'static str,
    /// The offset in the structure, in bytes.
    pub at: usize,
    /// The number of bytes: 1 to 8.
    pub width_bytes: usize,
    /// The mapping of the disk depends on the field.
    pub maps: bool,
}

impl StructureField {
    /// Returns the bytes of the field in a structure; none if the structure ends before it.
    fn bytes_of(self, structure: &[u8]) -> &[u8] {
        structure.get(self.at..self.at.saturating_add(self.width_bytes)).unwrap_or_default()
    }

    /// Returns the little-endian number in a structure; 0 if the structure ends before it.
    pub fn little(self, structure: &[u8]) -> u64 {
        self.bytes_of(structure).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns the big-endian number in a structure; 0 if the structure ends before it.
    #[inline]
    pub fn big(self, structure: &[u8]) -> u64 {
        self.bytes_of(structure).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns the big-endian number of a field of up to 4 bytes.
    #[inline]
    pub fn big_32(self, structure: &[u8]) -> u32 {
        u32::try_from(self.big(structure)).unwrap_or(u32::MAX)
    }

    /// Returns the big-endian number of a field of up to 2 bytes.
    #[inline]
    pub fn big_16(self, structure: &[u8]) -> u16 {
        u16::try_from(self.big(structure)).unwrap_or(u16::MAX)
    }

    /// Returns the offset of the first byte behind the field, in bytes.
    pub const fn end(self) -> usize {
        self.at + self.width_bytes
    }

    /// Returns the little-endian number of a field of up to 4 bytes.
    pub fn little_32(self, structure: &[u8]) -> u32 {
        u32::try_from(self.little(structure)).unwrap_or(u32::MAX)
    }
}

/// Declares the fields of a structure, each as a constant, and those that belong to the anatomy in order as `FIELDS`.
/// The mapping depends on a field with the word `maps`. Fields behind `@unread` are no part of the anatomy.
macro_rules! fields {
    (
        $($constant:ident = $name:literal at $at:literal, $width:literal bytes $(, $maps:ident)?;)*
        $(@unread
            $($other:ident = $other_name:literal at $other_at:literal, $other_width:literal bytes;)*
        )?
    ) => {
        $(
            #[doc = concat!("The field `", $name, "`.")]
            pub const $constant: $crate::formats::anatomy::StructureField =
                $crate::formats::anatomy::StructureField {
                    name: $name,
                    at: $at,
                    width_bytes: $width,
                    maps: !stringify!($($maps)?).is_empty(),
                };
        )*
        $($(
            #[doc = concat!("The field `", $other_name, "`.")]
            pub const $other: $crate::formats::anatomy::StructureField =
                $crate::formats::anatomy::StructureField {
                    name: $other_name,
                    at: $other_at,
                    width_bytes: $other_width,
                    maps: false,
                };
        )*)?
        /// The fields that belong to the anatomy, in order.
        pub const FIELDS: &[$crate::formats::anatomy::StructureField] = &[$($constant),*];
    };
}
pub(in crate::formats) use fields;

/// Returns the meaning of an entry, with its reserved bits if any is set.
pub fn with_reserved(entry: String, reserved: u64) -> String {
    if reserved == 0 { entry } else { format!("{entry}; reserved bits {reserved:#x}") }
}

/// Returns the names of the bits that are set. `names` begins with that of bit 0.
pub fn feature_names(value: u64, names: &[&str]) -> String {
    if value == 0 {
        return "none".to_string();
    }
    let set = (0..64).filter(|bit| value & 1 << bit != 0);
    let name =
        |bit: usize| names.get(bit).map_or_else(|| format!("bit {bit}"), |it| it.to_string());
    set.map(name).collect::<Vec<_>>().join(", ")
}

/// Returns the value of a field; the name decides how it is written.
pub(in crate::formats) fn field_in_words(name: &str, value: u64, order: ByteOrder) -> String {
    let names = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if names(&["signature", "magic", "cookie", "creator"]) {
        text_in_words(value, order)
    } else if names(&["offset", "guid", "checksum", "_id", "page_83", "lba", "zlib", "deflate"]) {
        format!("{value:#x}")
    } else {
        value.to_string()
    }
}

/// Returns the bytes of a field as text, without zeros.
pub(in crate::formats) fn text_in_words(value: u64, order: ByteOrder) -> String {
    let bytes = match order {
        ByteOrder::BigEndian => value.to_be_bytes(),
        ByteOrder::LittleEndian => value.to_le_bytes(),
    };
    let there: Vec<u8> = bytes.into_iter().filter(|byte| *byte != 0).collect();
    format!("\"{}\"", there.escape_ascii())
}
