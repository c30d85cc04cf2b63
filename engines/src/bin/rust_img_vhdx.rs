//! The whole command of qcowfuzz, with this crate under test.

qcowfuzz::command!(qcowfuzz_engines::rust_img_vhdx::RustImgVhdx);
