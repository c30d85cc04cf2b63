//! Guest data. Each piece of data has stamps at its edges: sixteen bytes with its guest offset and the write that made
//! it. So data that an engine reads through a mapping prove the mapping. The bytes between them are the [`fill`]. There
//! are three exceptions: a [`Look`] replaces one stamp, a large cluster has stamps inside, too, or the data have no
//! stamps at all ([`unstamped`]). This module also defines the shapes of data after the stamp of a compressed cluster.

pub mod entropy;
pub mod fill;
pub mod unstamped;

use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use bytes::BufMut;
use crc32fast::Hasher;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::GuestOffset;

use entropy::Entropy;

/// The length of a stamp in bytes.
pub const STAMP_BYTES: usize = 16;

/// The number of a write in a program, from 1; 0 is no write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteNumber(pub u32);

impl WriteNumber {
    /// No write: allocated clusters without a write read as zeros.
    pub const NONE: Self = Self(0);

    /// The lowest of the four bits that hold the form of the content: 0 for stamps and fill, the index of a look
    /// plus 1, or one of the two highest numbers. Programs make fewer than 2^28 writes (`limits`).
    const FORM_AT: u32 = 28;
    /// The form of deep data.
    pub(crate) const DEEP: u32 = 14;
    /// The form of data without stamps. The bits below it are their index in the journal, not a number of a write.
    const UNSTAMPED: u32 = 15;

    /// Returns the same write, if its clusters have this look.
    pub fn with_look(self, look: Look) -> Self {
        self.with_form(u32::from(look.0) + 1)
    }

    /// Returns the same write, if its clusters have stamps inside, too.
    pub fn deep(self) -> Self {
        self.with_form(Self::DEEP)
    }

    /// Returns the write of the unstamped data with this index, which is below 2^28 (`limits`).
    pub fn of_unstamped(index: u32) -> Self {
        Self(index).with_form(Self::UNSTAMPED)
    }

    fn with_form(self, form: u32) -> Self {
        Self(self.0 | form << Self::FORM_AT)
    }

    /// Returns the content of the write's clusters.
    #[inline]
    pub fn content(self) -> WriteContent {
        match self.0 >> Self::FORM_AT {
            0 => WriteContent::Stamped,
            Self::DEEP => WriteContent::Deep,
            Self::UNSTAMPED => WriteContent::Unstamped(self.0 & ((1 << Self::FORM_AT) - 1)),
            look => WriteContent::Look(Look(look as u8 - 1)),
        }
    }
}

/// The length of a look in bytes.
pub const LOOK_BYTES: usize = 512;

/// The thing that the first or the last sector of a cluster looks like, by its number in the encoding: the beginning or
/// the end of a file, such as a partition table or the header of an image. A reader that guesses a format from the
/// bytes of a raw file, of a data file or of a fixed disk takes it for structures, although it is only data.
/// `images::format::looks` has all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look(pub u8);

/// The declaration of a look.
#[derive(Clone, Copy, Debug)]
pub struct LookForm {
    /// The number in the encoding.
    pub look: Look,
    /// The word in the text of programs.
    pub word: &'static str,
    /// The sector is the last one of a cluster, and not the first.
    pub is_at_end: bool,
    /// The sector looks like a footer. If a fixed disk begins with it, readers take the disk for a dynamic one.
    pub is_footer: bool,
    /// Writes the bytes of the sector, which are zeros before.
    pub write: fn(&mut [u8; LOOK_BYTES]),
}

impl LookForm {
    /// Returns the declaration of a first sector.
    pub const fn first(number: u8, word: &'static str, write: fn(&mut [u8; LOOK_BYTES])) -> Self {
        Self { look: Look(number), word, is_at_end: false, is_footer: false, write }
    }
}

/// The content of the clusters of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteContent {
    /// Stamps at the edges, and the fill between them.
    Stamped,
    /// A [`Look`] in place of the stamp at one edge.
    Look(Look),
    /// Stamps and fill also behind the first 64 KiB.
    Deep,
    /// The unstamped data with this index.
    Unstamped(u32),
}

/// The start of every checksum. A new hasher inspects the processor each time; a copy does not, and stamps are short.
static CHECKSUM_START: LazyLock<Hasher> = LazyLock::new(Hasher::new);

/// Returns the stamp of write `write` at `guest`: the guest offset, the write number, and the crc32 of both.
#[inline]
pub fn stamp(guest: GuestOffset, write: WriteNumber) -> [u8; STAMP_BYTES] {
    let mut bytes = [0; STAMP_BYTES];
    let mut out = bytes.as_mut_slice();
    out.put_u64(guest.get());
    out.put_u32(write.0);
    let mut checksum = CHECKSUM_START.clone();
    checksum.update(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.finalize().to_be_bytes());
    bytes
}

/// The bytes of a whole cluster that a write with a look puts at its edges.
#[derive(Clone, Copy, Debug)]
pub struct LookOfCluster {
    /// The offset in the cluster of the sector of the look.
    pub sector_at: u64,
    /// The offset in the cluster of a stamp at the other edge. A cluster of one sector has no room for it.
    pub stamp_at: Option<u64>,
}

impl LookOfCluster {
    /// Returns the edges of a cluster whose last or first sector has a look.
    pub fn new(is_at_end: bool, cluster_size: ClusterSize) -> Self {
        let last_sector = cluster_size.bytes() - LOOK_BYTES as u64;
        let last_stamp = cluster_size.bytes() - STAMP_BYTES as u64;
        let (sector_at, stamp_at) = if is_at_end { (last_sector, 0) } else { (0, last_stamp) };
        Self { sector_at, stamp_at: (last_sector > 0).then_some(stamp_at) }
    }

    /// Returns the offsets in the cluster that the fill covers: those between the look and the other edge.
    pub fn between(&self, cluster_size: ClusterSize) -> Range<usize> {
        match self.stamp_at {
            None => 0..0,
            Some(0) => STAMP_BYTES..self.sector_at as usize,
            Some(_) => LOOK_BYTES..cluster_size.bytes_usize() - STAMP_BYTES,
        }
    }
}

/// The number of bytes of a compressed cluster that most shapes fill; zeros follow. Data that cannot be compressed
/// cost time in every run.
pub const SHAPED_BYTES: usize = 8 << 10;

/// The number of bytes that the shapes fill which cannot be compressed at all: whole clusters of up to 64 KiB, QEMU's
/// default.
pub const NOISE_BYTES: usize = 64 << 10;

/// The largest distance of a deflate match (RFC 1951 §2).
pub const MAX_DISTANCE: usize = 32 << 10;

/// The number of bytes that [`Shape::Far`] repeats.
const REPEATED_BYTES: usize = 256;

/// The content of a compressed cluster after its stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Zeros: the smallest payload.
    #[default]
    Zeros,
    /// A repeated line of text, then zeros.
    Text,
    /// 32 bytes of noise, then zeros.
    Speck,
    /// Noise in the first eighth, then zeros.
    Eighth,
    /// Noise in the first half, then zeros.
    Half,
    /// Noise in three quarters: the payload is longer than half the cluster.
    Most,
    /// Bytes of two values in random order: a dynamic code of one bit each.
    Coins,
    /// Text with noise strewn in.
    Mixed,
    /// Noise only: the payload is a little longer than the cluster.
    Noise,
    /// Noise except in the last eighth: the payload is nearly as long as the cluster.
    Nearly,
    /// A piece of noise at the start, and again at the largest distance of deflate.
    Far,
}

impl Shape {
    /// Every shape, in the order of the encoding.
    pub const ALL: [Self; 11] = [
        Self::Zeros,
        Self::Text,
        Self::Speck,
        Self::Eighth,
        Self::Half,
        Self::Most,
        Self::Coins,
        Self::Mixed,
        Self::Noise,
        Self::Nearly,
        Self::Far,
    ];

    /// Returns the bytes after the stamp of a cluster of this shape, without the zeros that fill the rest. The
    /// process makes them once: at most 64 KiB for each shape and cluster size.
    pub fn behind_stamp(self, cluster_size: ClusterSize) -> &'static [u8] {
        // No shape fills more than a cluster of 64 KiB.
        const SIZES: usize = (NOISE_BYTES.ilog2() + 1 - ClusterSize::MIN_BITS + 1) as usize;
        static MADE: [[OnceLock<Box<[u8]>>; SIZES]; Shape::ALL.len()] =
            [const { [const { OnceLock::new() }; SIZES] }; Shape::ALL.len()];
        let size = (cluster_size.bits() - ClusterSize::MIN_BITS) as usize;
        let size = size.min(SIZES - 1);
        MADE[self as usize][size].get_or_init(|| {
            let behind = cluster_size.bytes_usize() - STAMP_BYTES;
            self.filling(self.filled_bytes(behind)).into()
        })
    }

    /// Returns the number of bytes of `length` that the shape fills; zeros follow.
    fn filled_bytes(self, length: usize) -> usize {
        length.min(match self {
            Self::Noise | Self::Nearly => NOISE_BYTES,
            Self::Far => MAX_DISTANCE + REPEATED_BYTES,
            _ => SHAPED_BYTES,
        })
    }

    /// Returns the bytes that fill `length` bytes.
    fn filling(self, length: usize) -> Vec<u8> {
        const LINE: &[u8] = b"a line of text that repeats and repeats; ";
        let mut entropy = Entropy::new(self as u64);
        let mut content = vec![0; length];
        let noisy = match self {
            Self::Zeros | Self::Text | Self::Coins | Self::Mixed => 0,
            Self::Speck => 32.min(length),
            Self::Eighth => length / 8,
            Self::Half => length / 2,
            Self::Most => length / 4 * 3,
            Self::Noise => length,
            Self::Nearly => length / 8 * 7,
            Self::Far => REPEATED_BYTES.min(length / 2),
        };
        for piece in content[..noisy].chunks_mut(8) {
            piece.copy_from_slice(&entropy.next_u64().to_le_bytes()[..piece.len()]);
        }
        if matches!(self, Self::Text | Self::Mixed) {
            content.iter_mut().zip(LINE.iter().cycle()).for_each(|(to, from)| *to = *from);
        }
        if self == Self::Mixed {
            content.iter_mut().step_by(61).for_each(|byte| *byte = entropy.next_u64() as u8);
        }
        if self == Self::Far {
            content.copy_within(..noisy, length - noisy);
        }
        if self == Self::Coins {
            content.fill_with(|| b'a' + entropy.below(2) as u8);
        }
        content
    }
}

/// The content of a compressed cluster after its stamp: a shape, or the bytes of a program. Zeros follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressedContent {
    /// A shape.
    Shape(Shape),
    /// A range of the bytes that the journal of the layer keeps.
    Given {
        /// The first byte.
        start: u32,
        /// The number of bytes.
        length_bytes: u32,
    },
}

/// The change of a subcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubclusterChange {
    /// The write fills them with data.
    Write(WriteNumber),
    /// They read as zeros.
    Zero,
    /// They are unallocated.
    Unallocate,
}
