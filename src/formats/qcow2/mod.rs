//! The qcow2 format: what each field of an image means. The facts are those of the public
//! specification (QEMU `docs/interop/qcow2.rst`) and, where it is silent, of what qemu-img does.

pub mod anatomy;
pub mod bitmap;
pub mod bitmap_directory;
pub mod constants;
pub mod entry;
pub mod error;
pub mod extension;
pub mod geometry;
pub mod head;
pub mod header;
pub mod layout;
pub mod refcount;
pub mod snapshot;
pub mod snapshot_table;
pub mod table;
pub mod units;
