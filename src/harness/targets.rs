//! The fuzz targets: a file for each, and the list of them.

mod hostile;
mod map_extents;
mod raw_image;
mod reading;
mod recipes;
mod refcounts;
mod writes;

use crate::harness::cases::target::{Definition, Inputs, JudgeCase};
use crate::harness::engine::Facts;
use crate::harness::engine::claims::Claims;
use crate::images::limits::Limits;

macro_rules! targets {
    ($($(#[$attribute:meta])* $kind:ident in $module:ident,)+) => {
        /// The fuzz targets of this project.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum TargetKind {
            $($(#[$attribute])* $kind,)+
        }

        impl TargetKind {
            /// All targets.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// Returns the constant properties of the target.
            pub const fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$kind => &$module::DEFINITION,)+
                }
            }

            /// Returns the name in Rust: that of the variant.
            pub(crate) const fn variant(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            /// Creates the judge of its cases.
            pub(super) fn judge(self) -> Box<dyn JudgeCase> {
                match self {
                    $(Self::$kind => $module::judge(),)+
                }
            }
        }
    };
}

targets! {
    /// Programs that build valid images. All oracles judge them.
    #[default]
    MapExtents in map_extents,
    /// Programs with larger limits. Only the refcounts of their images are judged.
    Refcounts in refcounts,
    /// Programs that damage the images that they build.
    Hostile in hostile,
    /// Image files of any content.
    RawImage in raw_image,
    /// Programs with requests. The engine writes to the image at the top.
    Writes in writes,
    /// Disks that QEMU makes and changes.
    Recipes in recipes,
}

impl TargetKind {
    /// Returns the targets that have a libFuzzer binary. The others run other programs.
    pub fn of_libfuzzer() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.definition().inputs != Inputs::Recipes)
    }

    /// Returns the target of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the name: on the command line, of the libFuzzer binary and of the corpus folder.
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// Returns the limits of its programs.
    pub const fn limits(self) -> Limits {
        self.definition().limits
    }

    /// Returns the claims by which its programs are folded.
    pub fn claims_of(self, facts: &Facts) -> Claims {
        (self.definition().claims)(facts)
    }

    /// Reports whether its inputs are programs.
    pub fn runs_programs(self) -> bool {
        self.definition().inputs == Inputs::Programs
    }
}

/// Serialises a target by its name.
#[cfg(feature = "fuzzer")]
impl serde::Serialize for TargetKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
