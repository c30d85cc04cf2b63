//! The qcow2 format: the meaning of each field of an image. The facts come from the public specification (QEMU
//! `docs/interop/qcow2.rst`) and, where it is silent, from the behaviour of qemu-img.

pub mod anatomy;
pub mod bitmap;
pub mod bitmap_bits;
pub mod bitmap_directory;
pub mod bitmap_list;
pub mod check;
pub mod constants;
pub mod entry;
pub mod extension;
pub mod geometry;
pub mod head;
pub mod header;
mod host_holes;
mod inflate;
mod latest;
mod layer;
pub mod layout;
mod lookup;
mod open;
pub mod refcount;
pub mod references;
pub mod snapshot;
pub mod snapshot_table;
pub mod table;
mod walk;

pub(crate) use open::Qcow2;
