//! The qcow2 format: the meaning of each field of an image. The facts come from the public specification (QEMU
//! `docs/interop/qcow2.rst`) and, where it is silent, from the behaviour of qemu-img.

pub mod anatomy;
pub mod bitmap;
pub mod check;
pub mod constants;
pub mod entry;
pub mod geometry;
pub mod head;
pub mod header;
mod layer;
pub mod snapshot;
pub mod table;

pub(crate) use layer::open::Qcow2;
