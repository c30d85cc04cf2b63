//! The VDI format of VirtualBox: a header, a block map, and blocks. All numbers are little-endian. There is no public
//! specification; the facts come from QEMU (`block/vdi.c`) and its behaviour.
//!
//! The answers are those of QEMU 10.0.2, with one exception: an image whose block map reaches past the end of the file
//! is refused. QEMU reads zeros there, so that each of these blocks would lie at the place of block 0, and a short file
//! would have hundreds of millions of extents.

mod anatomy;
mod check;
pub mod constants;
mod header;
mod layer;

pub(crate) use layer::Vdi;
