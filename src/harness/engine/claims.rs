//! The claims of an engine about features, and the policy that excuses some of its answers.

use std::borrow::Cow;

use crate::base::features::{Feature, FeatureSet};
use crate::disk::image_format::ImageFormat;
use crate::programs::{Program, fold};

/// A claim of an engine about a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The engine reads images with the feature: an error is a bug.
    Yes,
    /// The engine may refuse an image with the feature. If it answers, the answer must be right.
    RefuseOrBeRight,
    /// The engine does not know the feature. It gets no image that has it.
    No,
}

impl Default for Claims {
    /// Returns [`Claims::QCOW2`].
    fn default() -> Self {
        Self::QCOW2
    }
}

/// One program of this many keeps the features that the engine may refuse.
const REFUSED_SHARE: u16 = 8;

/// The claims of an engine about all features. Claims begin with [`Claims::QCOW2`] or [`Claims::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    no: FeatureSet,
    refuse_or_be_right: FeatureSet,
}

impl Claims {
    /// All features are claimed, and images of all formats.
    pub const ALL: Self = Self { no: FeatureSet::EMPTY, refuse_or_be_right: FeatureSet::EMPTY };
    /// All features of qcow2 images are claimed, and no image of another format, except raw backing files. An engine
    /// that knows other formats may know them below qcow2 images, parents and images in several files, too: these are
    /// features of their own. So are the holes of raw files, for which a reader must ask the storage, and everything
    /// that QEMU reads or refuses although no specification describes it.
    pub const QCOW2: Self = Self::ALL.without(FeatureSet::of_other_formats()).no(&[
        Feature::OtherBacking,
        Feature::EmptyOther,
        Feature::BlocksBelow4K,
        Feature::Parents,
        Feature::OtherParentSize,
        Feature::Extents,
        Feature::MixedExtents,
        Feature::LoneCowd,
        Feature::PlainFooter,
        Feature::SmallGrains,
        Feature::ShortTables,
        Feature::RawHoles,
        Feature::QemuLimits,
    ]);

    /// Returns these claims, except that the engine does not know `features`.
    pub const fn no(self, features: &[Feature]) -> Self {
        self.without(FeatureSet::of(features))
    }

    /// Returns these claims, except that the engine does not know the features of a set.
    pub const fn without(self, features: FeatureSet) -> Self {
        let refuse_or_be_right = self.refuse_or_be_right.without(features);
        Self { no: self.no.with(features), refuse_or_be_right }
    }

    /// Returns the claims that two engines make together: about each feature, the weaker one.
    pub const fn and(self, other: Self) -> Self {
        let no = self.no.with(other.no);
        let refuse_or_be_right = self.refuse_or_be_right.with(other.refuse_or_be_right);
        Self { no, refuse_or_be_right: refuse_or_be_right.without(no) }
    }

    /// Returns these claims, except that the engine knows `features`.
    pub const fn yes(self, features: &[Feature]) -> Self {
        let features = FeatureSet::of(features);
        let refuse_or_be_right = self.refuse_or_be_right.without(features);
        Self { no: self.no.without(features), refuse_or_be_right }
    }

    /// Reports whether the engine may get images of a format.
    pub fn knows(&self, format: ImageFormat) -> bool {
        !self.no.has(Feature::images_of(format))
    }

    /// Reports whether the engine claims to refuse the images that QEMU refuses for its own limits.
    pub(crate) fn judges_limits(&self) -> bool {
        self.about(FeatureSet::of(&[Feature::QemuLimits])) == Claim::Yes
    }

    /// Returns these claims, except that the engine refuses images with `features` or reads them correctly.
    pub const fn refuse_or_be_right(self, features: &[Feature]) -> Self {
        let features = FeatureSet::of(features);
        let refuse_or_be_right = self.refuse_or_be_right.with(features);
        Self { no: self.no.without(features), refuse_or_be_right }
    }

    /// Folds a program into the features that the engine claims. Returns true if that changed the program. A share of
    /// the programs, by their `rng_seed`, keeps the features that the engine may refuse.
    pub(crate) fn fold_program(&self, program: &mut Program) -> bool {
        fold::fold(program, self.lacking(program))
    }

    /// Returns the features that folding removes from a program.
    fn lacking(&self, program: &Program) -> FeatureSet {
        let keeps_refused = program.prologue.rng_seed % REFUSED_SHARE == REFUSED_SHARE - 1;
        match keeps_refused {
            true => self.no,
            false => self.no.with(self.refuse_or_be_right),
        }
    }

    /// Returns a line of text for each change that folding makes to the program of `input`.
    pub fn folded_lines(&self, input: &[u8]) -> Vec<String> {
        let mut program = Program::decode(input);
        let lacking = self.lacking(&program);
        fold::changes(&mut program, lacking)
    }

    /// Returns the bytes of the program that runs if `input` is given: `input` itself, unless folding changes its
    /// program.
    pub(crate) fn fold<'i>(&self, input: &'i [u8]) -> Cow<'i, [u8]> {
        if *self == Self::ALL {
            return Cow::Borrowed(input);
        }
        let mut program = Program::decode(input);
        match self.fold_program(&mut program) {
            true => Cow::Owned(program.encode()),
            false => Cow::Borrowed(input),
        }
    }

    /// Returns the claim about a chain with `features`: the weakest of the claims about each.
    pub fn about(&self, features: FeatureSet) -> Claim {
        if features.meets(self.no) {
            Claim::No
        } else if features.meets(self.refuse_or_be_right) {
            Claim::RefuseOrBeRight
        } else {
            Claim::Yes
        }
    }
}

/// The answers of an engine that its policy excuses. On a valid image, a policy excuses nothing but the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnginePolicy {
    /// The size of a disk whose stored size is no whole number of sectors.
    pub size: SizePolicy,
    /// The cost of a walk.
    pub cost: CostPolicy,
    /// The memory for an image.
    pub memory: MemoryPolicy,
}

#[cfg(feature = "fuzzer")]
impl EnginePolicy {
    /// The policy of an engine in another process: the harness sees none of its reads and allocations. The system
    /// limits its memory.
    pub(crate) const OTHER_PROCESS: Self = Self {
        size: SizePolicy::WholeSectors,
        cost: CostPolicy::NotJudged,
        memory: MemoryPolicy::NotJudged,
    };
}

/// The size that an engine reports for a disk whose stored size is no whole number of sectors. A later policy excuses
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizePolicy {
    /// Whole sectors, as QEMU: the last one does not count.
    #[default]
    WholeSectors,
    /// The stored size, or whole sectors above or below it.
    Near,
}

/// The judgement of the bytes that an engine reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostPolicy {
    /// An engine reads only what it needs: for a walk, each allocated part of a table once.
    #[default]
    Judged,
    /// An engine may read as much as it likes.
    NotJudged,
}

/// The judgement of the memory that an engine allocates. It needs a process whose allocator counts, as that of
/// [`command!`](crate::command) does:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: qcowfuzz::harness::PeakAlloc = qcowfuzz::harness::PeakAlloc;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// The highest number of bytes that an engine may allocate at a time to open, walk and read an image.
    AtMost(u64),
    /// An engine may allocate as much as it likes.
    NotJudged,
}

/// An image of this harness has a few mebibytes at most, and the largest L1 table has 32 MiB.
impl Default for MemoryPolicy {
    fn default() -> Self {
        Self::AtMost(256 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_claim_counts() {
        let claims = Claims::ALL
            .no(&[Feature::Zstd, Feature::Dirty])
            .refuse_or_be_right(&[Feature::Dirty, Feature::Corrupt]);
        let about = |features: &[Feature]| claims.about(FeatureSet::of(features));
        assert_eq!(about(&[]), Claim::Yes);
        assert_eq!(about(&[Feature::Version3, Feature::Dirty]), Claim::RefuseOrBeRight);
        assert_eq!(about(&[Feature::Zstd, Feature::Dirty]), Claim::No);
        assert_eq!(
            claims.no(&[Feature::Corrupt]).about(FeatureSet::of(&[Feature::Corrupt])),
            Claim::No
        );
        let both = claims.and(Claims::ALL.no(&[Feature::Corrupt]));
        let about = |feature| both.about(FeatureSet::of(&[feature]));
        assert_eq!(about(Feature::Dirty), Claim::RefuseOrBeRight);
        assert_eq!((about(Feature::Corrupt), about(Feature::Zstd)), (Claim::No, Claim::No));
        assert_eq!(both, Claims::ALL.no(&[Feature::Corrupt]).and(claims));
    }
}
