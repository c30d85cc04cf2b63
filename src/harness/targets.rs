//! The fuzz targets: a file for each, and the list of them.

mod hostile;
mod map_extents;
mod raw_image;
mod refcounts;
pub(crate) mod writes;

use crate::disk::observer::Observer;
use crate::images::files::FileNames;
use crate::images::limits::Limits;

use super::claims::Claims;
use super::engine::Engine;
use super::engine_failure;
use super::implementation::Implementation;
use super::second_opinion::SecondOpinion;
use super::target::{Definition, Expectation, Inputs, Target};

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

            /// Creates the target with `engine` under test, and with the second opinion if there is one.
            fn of_engine<E, O>(
                self,
                engine: E,
                names: FileNames,
                observer: &O,
                second: Option<Box<dyn SecondOpinion>>,
            ) -> Box<dyn Target>
            where
                E: Engine + 'static,
                O: Observer + Clone + 'static,
            {
                match self {
                    $(Self::$kind => $module::create(engine, names, observer, second),)+
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
}

impl TargetKind {
    /// Creates the target with an engine of `implementation` under test. Images name each other by `names`; VM, build
    /// and oracles report events to `observer`.
    pub fn create<I, O>(self, implementation: &I, names: FileNames, observer: &O) -> Box<dyn Target>
    where
        I: Implementation,
        O: Observer + Clone + 'static,
    {
        let second = implementation.second_opinion(observer);
        let has_opinion = matches!(
            self.definition().expectation,
            Expectation::Extents | Expectation::UntouchedExtents | Expectation::Written
        );
        if second.is_some() && !has_opinion {
            engine_failure::fail(format!(
                "--against: found the target {}, expected map_extents, hostile or writes",
                self.name()
            ));
        }
        self.of_engine(implementation.engine(observer), names, observer, second)
    }

    /// Creates the target with `engine` under test.
    pub fn judging<E: Engine + 'static>(self, engine: E) -> Box<dyn Target> {
        self.of_engine(engine, FileNames::default(), &(), None)
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

    /// Returns the claims by which its programs are folded: those about reading or those about writing.
    pub fn claims_of(self, engine: &impl Engine) -> Claims {
        match self {
            Self::Writes => writes::claims_of(engine),
            _ => engine.claims(),
        }
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
