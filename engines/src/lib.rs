//! Public crates as engines, a file for each. Each crate has a command in `bin/`: that of qcowfuzz, with the crate
//! under test. Its known findings are in `findings/`.
//!
//! ```text
//! cargo run --release --manifest-path engines/Cargo.toml --bin imago -- fuzz --seconds 60 --dir imago
//! cargo run --release --manifest-path engines/Cargo.toml --bin imago -- replay imago/artifacts/map_extents/FILE
//! ```

mod fs_core_device;
pub mod fstool;
pub mod imago;
pub mod qcow2_core;
pub mod qcow2_rs;
pub mod rust_img_qcow2;
pub mod rust_img_vhd;
pub mod rust_img_vhdx;
pub mod rust_img_vmdk;
pub mod vhd_core;
pub mod vhdx_core;
pub mod vmdk_core;
