//! The prologue: the options that a program fixes before its first operation, and the plan of an image that follows
//! from them. As with operations, one table defines decoding, encoding and text.

use std::fmt;

use crate::disk::clusters::ClusterSize;
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::images::format::file_plan::FilePlan;
use crate::images::format::list::drawer;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::refcounts::RefcountPlacement;
use crate::images::qcow2::{
    BackingPlan, DataFilePlan, HeaderOptions, ImagePlan, MAX_SIZE_BYTES, NamesFormat,
};

use super::operand::{
    Base, ClusterBits, DataIn, ImageFeatures, ImageForm, Number, Operand, OperandPlace,
    RefcountOrder, Relative, Size, TextError, TextOperands, print_operand,
};

/// The length of a prologue in bytes.
pub const PROLOGUE_BYTES: usize = 20;

macro_rules! prologue {
    (
        $($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)+
        ; $($(#[$more_doc:meta])* $more:ident: $more_kind:ty = $more_default:expr,)+
    ) => {
        /// The options that a program fixes before its first operation.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Prologue {
            $($(#[$doc])* pub $field: $kind,)+
            $($(#[$more_doc])* pub $more: $more_kind,)+
        }

        impl Prologue {
            /// The places of the fields in an encoded program.
            pub const PLACES: &'static [OperandPlace] = &OperandPlace::in_a_row(1, [
                $((<$kind>::KIND, <$kind>::BYTES),)+
                $((<$more_kind>::KIND, <$more_kind>::BYTES),)+
            ]);

            /// Decodes the bytes behind the encoding's version, which may have any values. The caller fills missing
            /// bytes with zeros.
            pub fn decode(bytes: &[u8; PROLOGUE_BYTES - 1]) -> Self {
                const _: () =
                    assert!(0 $(+ <$kind>::BYTES)+ $(+ <$more_kind>::BYTES)+ < PROLOGUE_BYTES);
                let mut bytes = bytes.as_slice();
                Self {
                    $($field: Operand::decode(&mut bytes),)+
                    $($more: Operand::decode(&mut bytes),)+
                }
            }

            /// Returns the canonical bytes behind the encoding's version.
            pub fn encode(&self) -> [u8; PROLOGUE_BYTES - 1] {
                let mut bytes = [0; PROLOGUE_BYTES - 1];
                let mut out = bytes.as_mut_slice();
                $(Operand::encode(self.$field, &mut out);)+
                $(Operand::encode(self.$more, &mut out);)+
                let _ = out;
                bytes
            }

            pub(super) fn parse(mut operands: TextOperands) -> Result<Self, TextError> {
                let prologue = Self {
                    $($field: operands.take(stringify!($field))?,)+
                    $($more: operands.take_or(stringify!($more), $more_default)?,)+
                };
                operands.finish()?;
                Ok(prologue)
            }
        }

        impl Default for Prologue {
            fn default() -> Self {
                Self { $($field: $default,)+ $($more: $more_default,)+ }
            }
        }

        impl fmt::Display for Prologue {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("image")?;
                $(print_operand(f, stringify!($field), self.$field)?;)+
                $(if self.$more != $more_default {
                    print_operand(f, stringify!($more), self.$more)?;
                })+
                Ok(())
            }
        }
    };
}

prologue! {
    /// The version of the format.
    version: Version = Version::V3,
    /// The cluster size.
    cluster_bits: ClusterBits = Number::LOWEST,
    /// The refcount width; a version 2 image always has order 4.
    refcount_order: RefcountOrder = Number::LOWEST,
    /// Features; a version 2 image has none, and extended L2 needs 16 KiB clusters.
    features: ImageFeatures = ImageFeatures::default(),
    /// The size of the disk.
    size: Size = Size::default(),
    /// The seed of all placement by entropy.
    rng_seed: u16 = 0,
    /// The placement of refcount blocks.
    blocks: Policy = Policy::Append,
    /// The placement of the refcount table.
    table: Policy = Policy::Append,
    /// The number of free clusters that the refcount table needs behind it.
    tolerance: Number<0, 3> = Number::LOWEST,
    ;
    // The text may omit the fields from here on.
    /// The location of the guest data: by default and in a version 2 image, the image itself.
    data_in: DataIn = DataIn::Image,
    /// The format of the lowest image of a chain.
    base: Base = Base::Qcow2,
    /// The variety of that image, if its format is neither qcow2 nor raw.
    form: ImageForm = ImageForm(0),
}

impl Prologue {
    /// Returns the plan of the image, without the features that the version or the cluster size forbids.
    pub fn plan(&self) -> ImagePlan {
        let Self { version, cluster_bits, refcount_order, features, data_in, .. } = *self;
        let image = ImageOperands { version, cluster_bits, refcount_order, features, data_in };
        let image = if self.is_qcow2() { image } else { image.without_features() };
        let mut plan = image.plan(self.size.bytes(MAX_SIZE_BYTES), None);
        let block = drawer(self.base.format()).block_size(u32::from(cluster_bits.get()));
        plan.geometry.cluster_size = block;
        ImagePlan {
            file: self.file(plan.geometry.cluster_size),
            refcounts: RefcountPlacement {
                blocks: self.blocks,
                table: self.table,
                tolerance: u64::from(self.tolerance.get()),
                ..RefcountPlacement::default()
            },
            rng_seed: u64::from(self.rng_seed),
            ..plan
        }
    }

    /// Reports whether the lowest image is built as a qcow2 image. A raw file comes from one.
    pub(crate) fn is_qcow2(&self) -> bool {
        self.base.is_qcow2()
    }

    /// Returns the plan of the lowest file.
    fn file(&self, cluster_size: ClusterSize) -> FilePlan {
        drawer(self.base.format()).plan(self.form.0, self.base.reach(), cluster_size)
    }
}

/// Returns the plan of an image in the format of `below`, which is its parent.
pub(super) fn plan_over_in_format(
    below: &ImagePlan,
    (cluster_bits, form): (ClusterBits, ImageForm),
    size: Relative,
) -> ImagePlan {
    let image = ImageOperands {
        version: Version::V3,
        cluster_bits,
        refcount_order: Number::LOWEST,
        features: ImageFeatures::default(),
        data_in: DataIn::Image,
    };
    let names_format = NamesFormat::Always;
    let backing = BackingPlan { format: below.file.format, names_format };
    let plan = image.plan_over(below, backing, size);
    // The disk may be as large as that of the parent.
    let (format, block) = (below.file.format, plan.geometry.cluster_size);
    let file = drawer(format).plan(form.0, below.file.reach, block);
    ImagePlan { file, ..plan }
}

/// The operands that describe an image: the prologue has them for the first image, an overlay operation for each
/// further one.
pub(super) struct ImageOperands {
    pub(super) version: Version,
    pub(super) cluster_bits: ClusterBits,
    pub(super) refcount_order: RefcountOrder,
    pub(super) features: ImageFeatures,
    pub(super) data_in: DataIn,
}

impl ImageOperands {
    /// Returns the same operands without the features of qcow2. Images of other formats need version 3 for zero
    /// clusters.
    fn without_features(self) -> Self {
        let (features, data_in) = Default::default();
        Self { version: Version::V3, features, data_in, ..self }
    }

    /// Returns the plan of an overlay on the image of `below`, with the same placement of refcount structures.
    pub(super) fn plan_over(
        &self,
        below: &ImagePlan,
        backing: BackingPlan,
        size: Relative,
    ) -> ImagePlan {
        let size_bytes = size.bytes(below.size_bytes).min(MAX_SIZE_BYTES);
        ImagePlan {
            refcounts: below.refcounts,
            rng_seed: below.rng_seed.wrapping_add(1),
            ..self.plan(size_bytes, Some(backing))
        }
    }

    /// Returns the plan of an image. A raw data file conflicts with backing files (specification, "Autoclear
    /// features"), so an image with a backing file has a data file that is not raw.
    fn plan(&self, size_bytes: u64, backing: Option<BackingPlan>) -> ImagePlan {
        let geometry = self.geometry();
        let raw = self.data_in == DataIn::RawFile && backing.is_none();
        ImagePlan {
            header: self.header_options(),
            backing,
            data_file: geometry.data_file.then_some(DataFilePlan { raw }),
            ..ImagePlan::new(geometry, size_bytes)
        }
    }

    fn geometry(&self) -> Geometry {
        let v3 = self.version == Version::V3;
        let bits = u32::from(self.cluster_bits.get());
        let zstd = v3 && self.features.has(ImageFeatures::ZSTD);
        Geometry {
            version: self.version,
            // The operand has the range of cluster sizes, so the default is never used.
            cluster_size: ClusterSize::from_bits(bits).unwrap_or(ClusterSize::SMALLEST),
            refcount_order: if v3 { u32::from(self.refcount_order.get()) } else { 4 },
            extended_l2: v3 && self.features.has(ImageFeatures::EXTENDED_L2) && bits >= 14,
            compression: if zstd { Compression::Zstd } else { Compression::Deflate },
            data_file: v3 && self.data_in != DataIn::Image,
        }
    }

    fn header_options(&self) -> HeaderOptions {
        let has = |feature| self.version == Version::V3 && self.features.has(feature);
        HeaderOptions {
            lazy_refcounts: has(ImageFeatures::LAZY_REFCOUNTS),
            compression_field: has(ImageFeatures::COMPRESSION_FIELD),
            feature_names: has(ImageFeatures::FEATURE_NAMES),
            unknown_extension: has(ImageFeatures::UNKNOWN_EXTENSION),
        }
    }
}
