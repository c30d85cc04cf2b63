//! The items that an adapter of an implementation uses: `use qcowfuzz::prelude::*;`.

pub use crate::base::features::Feature;
pub use crate::disk::extent::{Extent, Mapping, Visitor, Window};
pub use crate::disk::image_format::ImageFormat;
pub use crate::disk::offsets::{GuestOffset, HostOffset};
pub use crate::disk::storage::Storage;
pub use crate::harness::engine::claims::{Claims, CostPolicy, EnginePolicy, SizePolicy};
pub use crate::harness::engine::flights::{FlightRequest, Flights};
pub use crate::harness::engine::status::{GuestRun, GuestStatus};
pub use crate::harness::engine::{
    AccessFeedback, Answer, BitmapChange, Engine, EngineError, Facts, ImageReport, NewImage,
    OpenDisk, Opened, ReportKind, Request,
};
pub use crate::harness::files::chain::{Chain, ChainFile, ChainLayer};
pub use crate::harness::files::stream::ChainStream;
#[cfg(feature = "fuzzer")]
pub use crate::harness::{ChainFiles, LentFiles};

// Users see this macro only as `prelude::describe`.
#[doc(hidden)]
#[macro_export]
macro_rules! __describe {
    ($name:expr $(, $fact:ident: $value:expr)* $(,)?) => {
        fn facts(&self) -> $crate::harness::engine::Facts {
            #[allow(unused_imports)]
            use $crate::base::features::Feature::*;
            #[allow(unused_imports)]
            use $crate::harness::engine::AccessFeedback::{None, Ordered, Parts};
            #[allow(unused_imports)]
            use $crate::harness::engine::claims::CostPolicy::{Judged, NotJudged};
            #[allow(unused_imports)]
            use $crate::harness::engine::claims::SizePolicy::{Near, WholeSectors};
            $crate::harness::description::Description::new($name)$(.$fact($value))*.facts()
        }
    };
}

/// Defines [`Engine::facts`] in an `impl` of that trait. The first argument is the name of the implementation. The
/// other arguments are optional, and have any order. Each is a function of
/// [`Description`](crate::harness::description::Description):
///
/// - `version`: the version of the implementation, as reports name it
/// - `yes`: the features that it supports in addition to those of qcow2 images
/// - `no`: the features that it does not support
/// - `refuses`: the features that it may refuse; if it accepts an image with one, its answers must be correct
/// - `size` and `cost`: its policy
/// - `sectors`: the bytes of a sector, if it reads and writes only whole ones: the harness rounds the ranges
/// - `known`: the text of the file with its known findings
/// - `reads` and `writes`: which of its file accesses are fuzzing feedback while it reads, and while it writes
/// - `no_writes`: the features of images to which it does not write
///
/// # Panics
/// [`Engine::facts`] panics if the text of `known` is malformed. The message names the faulty line.
///
/// ```
/// use qcowfuzz::prelude::*;
///
/// struct MyEngine;
/// # struct MyDisk;
/// # impl OpenDisk for MyDisk {
/// #     fn virtual_size_bytes(&mut self) -> u64 {
/// #         0
/// #     }
/// # }
///
/// impl Engine for MyEngine {
///     describe!(
///         "mine",
///         version: "1.2.0",
///         no: [Clusters512],
///         refuses: [Zstd, ExtendedL2],
///         size: Near,
///         cost: NotJudged,
///         known: "[[finding]]\nfingerprint = 'model: kind, normal → zero-plain'\nreason = 'Issue 1.'"
///     );
///
///     fn open<'s>(&'s mut self, _chain: &'s Chain) -> Opened<'s> {
///         Err(EngineError::unsupported("every image"))
///     }
/// }
///
/// let facts = MyEngine.facts();
/// assert_eq!(facts.claims, Claims::QCOW2.refuse_or_be_right(&[Feature::Zstd, Feature::ExtendedL2])
///     .no(&[Feature::Clusters512]));
/// assert_eq!(facts.title(), "mine 1.2.0");
/// assert_eq!(facts.policy.size, SizePolicy::Near);
/// assert!(facts.known.contains("model: kind, normal → zero-plain"));
/// ```
#[doc(inline)]
pub use __describe as describe;
