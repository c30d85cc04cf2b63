//! The items that an adapter of an implementation uses: `use qcowfuzz::prelude::*;`.

pub use crate::disk::extent::{Extent, Mapping, Visitor, Window};
pub use crate::disk::features::Feature;
pub use crate::disk::image_format::ImageFormat;
pub use crate::disk::offsets::{GuestOffset, HostOffset};
pub use crate::disk::storage::Storage;
#[cfg(feature = "fuzzer")]
pub use crate::harness::ChainFiles;
pub use crate::harness::chain::{Chain, ChainFile, ChainLayer};
pub use crate::harness::claims::{Claims, CostPolicy, EnginePolicy, SizePolicy};
pub use crate::harness::engine::{Answer, BitmapChange, Engine, EngineError, NewImage, OpenDisk};
pub use crate::harness::status::{GuestRun, GuestStatus};
pub use crate::harness::stream::ChainStream;

// The name of the prelude is the only one that users see.
#[doc(hidden)]
#[macro_export]
macro_rules! __describe {
    (
        $name:literal
        $(, yes: [$($known_too:ident),* $(,)?])?
        $(, no: [$($no:ident),* $(,)?])?
        $(, refuses: [$($refused:ident),* $(,)?])?
        $(, size: $size:ident)?
        $(, cost: $cost:ident)?
        $(, known: $known:expr)?
        $(,)?
    ) => {
        fn name(&self) -> &str {
            $name
        }

        fn claims(&self) -> $crate::harness::claims::Claims {
            let claims = $crate::harness::claims::Claims::QCOW2;
            $(let claims = claims.yes(&[$($crate::disk::features::Feature::$known_too),*]);)?
            $(let claims = claims.refuse_or_be_right(&[
                $($crate::disk::features::Feature::$refused),*
            ]);)?
            $(let claims = claims.no(&[$($crate::disk::features::Feature::$no),*]);)?
            claims
        }

        fn policy(&self) -> $crate::harness::claims::EnginePolicy {
            $crate::harness::claims::EnginePolicy {
                $(size: $crate::harness::claims::SizePolicy::$size,)?
                $(cost: $crate::harness::claims::CostPolicy::$cost,)?
                ..Default::default()
            }
        }

        $(fn known_findings(&self) -> $crate::harness::KnownFindings {
            let known = $crate::harness::KnownFindings::parse($known);
            known.unwrap_or_else(|error| panic!("known findings: {error}"))
        })?
    };
}

/// Defines the functions of [`Engine`] that describe an implementation, in an `impl` of that trait: its name, the
/// features that it knows beside those of qcow2 images, those that it does not know, those that it refuses, its policy,
/// and the text of the file with its known findings. Everything but the name may be left out. A wrong file of
/// known findings panics with the line that is wrong.
///
/// ```
/// use qcowfuzz::prelude::*;
///
/// struct MyEngine;
/// # struct MyDisk;
/// # impl OpenDisk for MyDisk {
/// #     fn virtual_size_bytes(&self) -> u64 {
/// #         0
/// #     }
/// # }
///
/// impl Engine for MyEngine {
///     type Disk<'s> = MyDisk;
///
///     describe!(
///         "mine",
///         no: [Clusters512],
///         refuses: [Zstd, ExtendedL2],
///         size: Near,
///         cost: NotJudged,
///         known: "[[finding]]\nfingerprint = 'model: kind, normal → zero-plain'\nreason = 'Issue 1.'"
///     );
///
///     fn open<'s>(&'s mut self, _chain: &'s Chain) -> Answer<MyDisk> {
///         Err(EngineError::unsupported("every image"))
///     }
/// }
///
/// assert_eq!(MyEngine.claims(), Claims::QCOW2.refuse_or_be_right(&[Feature::Zstd, Feature::ExtendedL2])
///     .no(&[Feature::Clusters512]));
/// assert_eq!(MyEngine.policy().size, SizePolicy::Near);
/// assert!(MyEngine.known_findings().contains("model: kind, normal → zero-plain"));
/// ```
#[doc(inline)]
pub use __describe as describe;
