//! The installed QEMU judges our walker, our builder and our adapters, and they judge it: both have the same answers
//! about images of programs, about images that QEMU makes, about damaged images, and about every format but qcow2.

#[path = "../planted/faults/broken.rs"]
mod broken;
#[path = "../planted/faults/broken_formats.rs"]
mod broken_formats;
mod damaged;
#[allow(dead_code)]
#[path = "../faulty/mod.rs"]
mod faulty;
mod formats;
mod images;
#[allow(dead_code)]
#[path = "../lines/mod.rs"]
mod lines;
#[path = "../parts/mod.rs"]
mod parts;
mod programs;
#[path = "tools/mod.rs"]
mod qemu;
#[path = "../tally/mod.rs"]
mod tally;
