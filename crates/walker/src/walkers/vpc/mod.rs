//! The walker of VHD images, which QEMU calls vpc: fixed and dynamic disks. QEMU opens a differencing disk as if it had
//! no parent.

mod open;
mod read;
mod walk;

pub(super) use open::Vpc;
