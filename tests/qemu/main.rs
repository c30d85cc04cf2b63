//! The installed QEMU judges our walker, our builder and our adapters, and they judge it: both have the same answers
//! about images of programs, about images that QEMU makes, about damaged images, and about every format but qcow2.

mod damaged;
mod formats;
mod images;
#[path = "../parts/mod.rs"]
mod parts;
mod programs;
