//! The qcow2 format: the meaning of each field of an image. The facts come from the public specification (QEMU
//! `docs/interop/qcow2.rst`) and, where it is silent, from the behaviour of qemu-img.

pub mod anatomy;
pub mod bitmap;
pub mod bitmap_bits;
pub mod bitmap_directory;
pub mod bitmap_list;
pub mod constants;
pub mod entry;
pub mod extension;
pub mod geometry;
pub mod head;
pub mod header;
pub mod layout;
pub mod refcount;
pub mod snapshot;
pub mod snapshot_table;
pub mod table;
