//! The crate that the libFuzzer targets of `fuzz_targets/` test: the one that a feature names.
//!
//! ```text
//! cargo +nightly fuzz run --fuzz-dir engines/fuzz -O -s none --features imago hostile
//! ```

use qcowfuzz::harness::PeakAlloc;

/// Counts what the crate allocates, for the oracle `memory`.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[cfg(feature = "fstool")]
pub use qcowfuzz_engines::fstool::Fstool as UnderTest;
#[cfg(feature = "imago")]
pub use qcowfuzz_engines::imago::Imago as UnderTest;
#[cfg(feature = "qcow2_core")]
pub use qcowfuzz_engines::qcow2_core::Qcow2Core as UnderTest;
#[cfg(feature = "qcow2_rs")]
pub use qcowfuzz_engines::qcow2_rs::Qcow2Rs as UnderTest;
#[cfg(feature = "rust_img_qcow2")]
pub use qcowfuzz_engines::rust_img_qcow2::RustImgQcow2 as UnderTest;
#[cfg(feature = "rust_img_vhd")]
pub use qcowfuzz_engines::rust_img_vhd::RustImgVhd as UnderTest;
#[cfg(feature = "rust_img_vhdx")]
pub use qcowfuzz_engines::rust_img_vhdx::RustImgVhdx as UnderTest;
#[cfg(feature = "rust_img_vmdk")]
pub use qcowfuzz_engines::rust_img_vmdk::RustImgVmdk as UnderTest;
#[cfg(feature = "vhd_core")]
pub use qcowfuzz_engines::vhd_core::VhdCore as UnderTest;
#[cfg(feature = "vhdx_core")]
pub use qcowfuzz_engines::vhdx_core::VhdxCore as UnderTest;
#[cfg(feature = "vmdk_core")]
pub use qcowfuzz_engines::vmdk_core::VmdkCore as UnderTest;
