//! The features of a chain of images that an implementation may lack.

use std::fmt;
use std::str::FromStr;

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::{ImageFormat, for_each_format, for_each_other_format};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $text:expr,)+) => {
        /// A feature of a chain of images. A chain has it if one of its images has it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature {
            $($(#[$doc])* $name,)+
        }

        impl Feature {
            /// All features, in the order of their bits in a set.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            /// Returns the word of the feature in [`describe!`](crate::harness::prelude::describe).
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns the name for a person.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

/// Defines the features. Each format beside qcow2 and raw has one: raw files are images only below another one.
macro_rules! with_formats {
    ($($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident $facts:tt,)*) => {
        features! {
            /// Version 2, `compat=0.10`.
            Version2 = "version 2",
            /// Version 3, `compat=1.1`.
            Version3 = "version 3",
            /// Clusters of 512 bytes.
            Clusters512 = "clusters of 512 bytes",
            /// Clusters of 1 KiB.
            Clusters1K = "clusters of 1 KiB",
            /// Clusters of 2 KiB.
            Clusters2K = "clusters of 2 KiB",
            /// Clusters of 4 KiB.
            Clusters4K = "clusters of 4 KiB",
            /// Clusters of 8 KiB.
            Clusters8K = "clusters of 8 KiB",
            /// Clusters of 16 KiB.
            Clusters16K = "clusters of 16 KiB",
            /// Clusters of 32 KiB.
            Clusters32K = "clusters of 32 KiB",
            /// Clusters of 64 KiB, the default of QEMU.
            Clusters64K = "clusters of 64 KiB",
            /// Clusters of 128 KiB.
            Clusters128K = "clusters of 128 KiB",
            /// Clusters of 256 KiB.
            Clusters256K = "clusters of 256 KiB",
            /// Clusters of 512 KiB.
            Clusters512K = "clusters of 512 KiB",
            /// Clusters of 1 MiB.
            Clusters1M = "clusters of 1 MiB",
            /// Clusters of 2 MiB, the largest.
            Clusters2M = "clusters of 2 MiB",
            /// Refcounts of 1 bit.
            Refcounts1 = "refcounts of 1 bit",
            /// Refcounts of 2 bits.
            Refcounts2 = "refcounts of 2 bits",
            /// Refcounts of 4 bits.
            Refcounts4 = "refcounts of 4 bits",
            /// Refcounts of 8 bits.
            Refcounts8 = "refcounts of 8 bits",
            /// Refcounts of 16 bits, the default of QEMU and the only width of version 2.
            Refcounts16 = "refcounts of 16 bits",
            /// Refcounts of 32 bits.
            Refcounts32 = "refcounts of 32 bits",
            /// Refcounts of 64 bits.
            Refcounts64 = "refcounts of 64 bits",
            /// Extended L2 entries.
            ExtendedL2 = "extended L2 entries",
            /// A cluster that was written compressed, with either compression type.
            Compressed = "compressed clusters",
            /// The compression type is zstd, even if no cluster is compressed.
            Zstd = "compression type zstd",
            /// A backing file in the format qcow2.
            Qcow2Backing = "a qcow2 backing file",
            /// A backing file in the format raw.
            RawBacking = "a raw backing file",
            /// No extension names the format of the backing file, so that a reader must probe it.
            UnnamedFormat = "a backing file of unnamed format",
            /// An external data file.
            DataFile = "an external data file",
            /// An external data file that is a raw image of the disk.
            RawDataFile = "a raw external data file",
            /// An internal snapshot.
            Snapshots = "snapshots",
            /// A bitmap, or the traces that one left.
            Bitmaps = "bitmaps",
            /// The dirty bit.
            Dirty = "the dirty bit",
            /// Refcounts that are out of date, as lazy refcounts leave them. The dirty bit is set, too.
            OutOfDateRefcounts = "refcounts out of date",
            /// The corrupt bit, on an image that is sound.
            Corrupt = "the corrupt bit",
            /// The bit for lazy refcounts.
            LazyRefcounts = "lazy refcounts",
            /// A version 3 header of 104 bytes, without a compression type.
            ShortHeader = "a header of 104 bytes",
            /// A version 3 header of any length but 104 and 112 bytes.
            OddHeader = "a header of unusual length",
            /// Unknown bits among the compatible or the autoclear features, or the autoclear bit of bitmaps without
            /// bitmaps. The specification calls the latter an error. QEMU opens such an image, and takes its own writes
            /// for corruption.
            UnknownBits = "unknown feature bits",
            /// An L1 table with more entries than the disk needs.
            SpareL1 = "an L1 table longer than needed",
            /// An L1 table of more than 1 MiB.
            LargeL1 = "an L1 table of more than 1 MiB",
            /// A qcow2 backing file whose size is no whole number of sectors. Readers that round such a size in
            /// different ways read different bytes through the layers above. The length of a raw backing file needs no
            /// rounding.
            OddBackingSize = "a backing file of an odd size",
            /// An image in the format qcow2.
            Qcow2 = "qcow2 images",
            $(
                #[doc = concat!("An image in the format ", $name, ".")]
                $format = concat!($name, " images"),
            )*
            /// An image of another format than qcow2 and raw below a qcow2 image.
            OtherBacking = "a backing file of another format",
            /// A fixed VHD image: the guest data, then a footer.
            FixedVpc = "fixed vpc images",
            /// A dynamic VHD image, which has a table of blocks.
            DynamicVpc = "dynamic vpc images",
            /// A dynamic VHD image that has only the copy of the footer at its beginning.
            LostFooter = "vpc images without the footer at the end",
            /// VHD blocks of less than 4 KiB. The specification has a sector for the bitmap of each; QEMU reads none.
            BlocksBelow4K = "vpc blocks below 4 KiB",
            /// A fixed VHDX image, whose file has room for all blocks.
            FixedVhdx = "fixed vhdx images",
            /// A dynamic VHDX image.
            DynamicVhdx = "dynamic vhdx images",
            /// A VMDK image whose parent is another one.
            Parents = "parents of vmdk images",
            /// A VMDK image that is only a descriptor: its data lie in other files.
            Extents = "vmdk images in several files",
            /// A VMDK extent with tables (`KDMV`) that stores grains as they are.
            SparseVmdk = "sparse vmdk extents",
            /// A VMDK extent with tables that stores all grains compressed, as streamOptimized images do.
            CompressedVmdk = "compressed vmdk extents",
            /// Compressed grains without markers: the specification has a flag for each. No known program writes them.
            UnmarkedGrains = "compressed vmdk grains without markers",
            /// Compressed grains in an extent of a version before 3. QEMU before 2.5.1 wrote version 1.
            OldCompressed = "compressed vmdk extents of version 1 or 2",
            /// A second header at the end of an extent whose grains are not compressed. The specification describes it
            /// for compressed grains; QEMU reads it.
            PlainFooter = "footers of vmdk extents without compression",
            /// An extent of ESX that no descriptor names. QEMU reads it.
            LoneCowd = "COWD vmdk images without a descriptor",
            /// A descriptor that names extents of different kinds.
            MixedExtents = "vmdk extents of different kinds",
            /// A VMDK image that is larger or smaller than its parent. QEMU creates and reads such images.
            OtherParentSize = "parents of vmdk images of another size",
            /// A VMDK extent as ESX writes it (`COWD`).
            CowdVmdk = "COWD vmdk extents",
            /// A VMDK extent as ESX writes it since 2016.
            SeSparseVmdk = "seSparse vmdk extents",
            /// A VMDK extent without a table.
            FlatVmdk = "flat vmdk extents",
            /// A VMDK extent whose tables can state that a grain is zeros.
            ZeroGrains = "zero vmdk grains",
            /// Grains of 4 KiB or less. The specification demands more; QEMU reads them.
            SmallGrains = "vmdk grains of 4 KiB or less",
            /// Tables of fewer entries than 512. The specification demands 512; QEMU reads them.
            ShortTables = "vmdk tables of fewer than 512 entries",
            /// A static VDI image, which stores all blocks.
            StaticVdi = "static vdi images",
            /// A dynamic VDI image.
            DynamicVdi = "dynamic vdi images",
            /// A disk of less than a sector.
            EmptyDisk = "empty disks",
            /// A disk of less than a sector, in a format other than qcow2 and raw.
            EmptyOther = "empty disks of other formats",
            /// A disk, of any layer, of more than 2 GiB.
            Above2G = "disks above 2 GiB",
            /// A disk, of any layer, of more than 4 GiB.
            Above4G = "disks above 4 GiB",
            /// A disk, of any layer, of more than 2,040 GiB, the largest VHD disk.
            Above2040G = "disks above 2040 GiB",
            /// A disk, of any layer, of more than 64 TiB, the largest VHDX disk.
            Above64T = "disks above 64 TiB",
            /// The header names the backing file with a name of 0 bytes: there is none.
            EmptyBackingName = "an empty backing name",
            /// A raw backing file with holes. QEMU reports them as zeros with an offset.
            RawHoles = "holes of a raw backing file",
            /// QEMU's own limits, which no specification states: 32 MiB of an L1 table, say. An engine with this
            /// feature refuses the damaged images that QEMU refuses for them.
            QemuLimits = "limits of QEMU",
            /// A power cut, or a kill of the process, while the engine has the image open for writing. An engine
            /// without this feature promises nothing about the file afterwards.
            Cuts = "power cuts",
            /// Writes, reads, flushes or new lengths of a file that fail while the engine has the image open for
            /// writing; also at the end of a block device. An engine without this feature promises nothing after such
            /// an error.
            FileErrors = "failing file operations",
            /// Requests that are in flight together. An engine without this feature carries out one after the other.
            InFlight = "requests in flight",
        }
    };
}

for_each_other_format!(with_formats);

macro_rules! images_of {
    (
        $($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident [$($fact:ident),*],)*
    ) => {
        impl Feature {
            /// The feature of raw files, which are images only below another one.
            #[allow(non_upper_case_globals)]
            const Raw: Self = Self::RawBacking;

            /// Returns the feature of images of a format.
            pub(crate) const fn images_of(format: ImageFormat) -> Self {
                match format {
                    $(ImageFormat::$format => Self::$format,)*
                }
            }
        }
    };
}

for_each_format!(images_of);

/// The unit of the sizes of disks.
const SECTOR_BYTES: u64 = 512;

impl Feature {
    /// The features of large disks, and the size in bytes of the largest disk without each.
    pub(crate) const LARGE_DISKS: [(Self, u64); 4] = [
        (Self::Above2G, 2 << 30),
        (Self::Above4G, 4 << 30),
        (Self::Above2040G, 2040 << 30),
        (Self::Above64T, 64 << 40),
    ];

    /// Returns the feature of qcow2 clusters of this size: for larger ones, which qcow2 does not have, that of the
    /// largest.
    pub(crate) const fn clusters(size: ClusterSize) -> Self {
        let index = Self::Clusters512 as usize + (size.bits() - ClusterSize::MIN_BITS) as usize;
        match index > Self::Clusters2M as usize {
            true => Self::Clusters2M,
            false => Self::ALL[index],
        }
    }

    /// Returns the features of images with disks of `size_bytes`.
    pub(crate) fn of_disk(format: ImageFormat, size_bytes: u64) -> FeatureSet {
        let mut features = FeatureSet::EMPTY;
        let is_other = FeatureSet::of_other_formats().has(Self::images_of(format));
        features.add_if(size_bytes < SECTOR_BYTES, Self::EmptyDisk);
        features.add_if(size_bytes < SECTOR_BYTES && is_other, Self::EmptyOther);
        for (feature, largest) in Self::LARGE_DISKS {
            features.add_if(size_bytes > largest, feature);
        }
        features
    }

    /// Returns the feature of refcounts of `1 << order` bits; `order` is 0 to 6.
    pub(crate) const fn refcounts(order: u32) -> Self {
        Self::ALL[Self::Refcounts1 as usize + order as usize]
    }
}

/// Takes the name of a feature. The error names those that share a word with it, or else all of them.
impl FromStr for Feature {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if let Some(found) = Self::ALL.into_iter().find(|feature| feature.name() == name) {
            return Ok(found);
        }
        let names = Self::ALL.map(Self::name);
        // A word of the user's may be the singular of one of ours, or a part of it.
        let words = || name.split_whitespace().filter(|word| word.len() > 2);
        let is_similar = |feature: &&str| words().any(|word| feature.contains(word));
        let similar: Vec<&str> = names.into_iter().filter(is_similar).collect();
        let (these, listed) = match similar.is_empty() {
            true => ("the features are", names.join(", ")),
            false => ("similar", similar.join(", ")),
        };
        Err(format!("expected a feature, found '{name}'; {these}: {listed}"))
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet(u128);

const _: () = assert!(Feature::ALL.len() <= u128::BITS as usize, "each feature has a bit");

impl FeatureSet {
    /// No features.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of these features.
    pub const fn of(features: &[Feature]) -> Self {
        let (mut bits, mut rest) = (0, features);
        while let Some((first, behind)) = rest.split_first() {
            bits |= 1 << *first as u32;
            rest = behind;
        }
        Self(bits)
    }

    /// The features that no image has which QEMU has written, in any version (`block/qcow2.c`, `block/vpc.c`,
    /// `block/vmdk.c`: the functions that create images).
    #[cfg(feature = "fuzzer")]
    pub(crate) const NOT_OF_QEMU: Self = Self::of(&[
        Feature::OddHeader,
        Feature::UnknownBits,
        Feature::EmptyBackingName,
        Feature::LostFooter,
        Feature::BlocksBelow4K,
        Feature::UnmarkedGrains,
        Feature::PlainFooter,
        Feature::CowdVmdk,
        Feature::LoneCowd,
        Feature::SeSparseVmdk,
        Feature::MixedExtents,
        Feature::SmallGrains,
        Feature::ShortTables,
    ]);

    /// Returns the features of images of all formats but qcow2 and raw.
    pub const fn of_other_formats() -> Self {
        let (mut features, mut rest) = (Self::EMPTY, ImageFormat::ALL.as_slice());
        while let Some((format, behind)) = rest.split_first() {
            if !matches!(format, ImageFormat::Qcow2 | ImageFormat::Raw) {
                features = features.with(Self::of(&[Feature::images_of(*format)]));
            }
            rest = behind;
        }
        features
    }

    /// Returns the features of both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the features of this set that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the features that both sets have.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Adds a feature if `there` is true.
    pub fn add_if(&mut self, there: bool, feature: Feature) {
        self.0 |= u128::from(there) << feature as u32;
    }

    /// Reports whether a feature is in the set.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u32 & 1 != 0
    }

    /// Reports whether the sets have a feature in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Reports whether all of `other` are among these features.
    pub const fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the features, in the order of [`Feature::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }
}

/// Prints the names, separated by commas.
impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, feature) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", feature.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_widths_have_their_features() {
        let sizes = (9..=21).map(|bits| Feature::clusters(ClusterSize::from_bits(bits).unwrap()));
        let widths = (0..=6).map(Feature::refcounts);
        let all: Vec<_> = sizes.chain(widths).collect();
        let first = Feature::Clusters512 as usize;
        assert_eq!(all, Feature::ALL[first..first + 20]);
        assert_eq!(Feature::clusters(ClusterSize::from_bits(16).unwrap()), Feature::Clusters64K);
        assert_eq!(Feature::clusters(ClusterSize::from_bits(30).unwrap()), Feature::Clusters2M);
        assert_eq!(Feature::refcounts(4), Feature::Refcounts16);
    }

    #[test]
    fn a_set_has_what_was_added() {
        let mut set = FeatureSet::of(&[Feature::Zstd, Feature::Dirty]);
        set.add_if(true, Feature::Version2);
        set.add_if(false, Feature::Version3);
        assert_eq!(set.to_string(), "version 2, compression type zstd, the dirty bit");
        assert!(set.has(Feature::Dirty));
        let rest = set.without(FeatureSet::of(&[Feature::Dirty, Feature::Version2]));
        assert_eq!(rest, FeatureSet::of(&[Feature::Zstd]));
    }
}
