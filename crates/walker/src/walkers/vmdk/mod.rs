//! The walker of VMDK images: sparse extents, and descriptors that name the files of sparse and flat extents.
//!
//! The answers are those of QEMU 10.0.2, with these exceptions:
//!
//! - If an extent before others ends inside a grain, QEMU gives the whole grain to it, and a query that begins behind
//!   its end to the next extent. This walker does so, too, but asks a parent in longer pieces than QEMU.
//! - An extent of 2^63 sectors or more, which moves later extents to the front in QEMU, is refused; so is a descriptor
//!   in the file of an extent, which QEMU opens again and again if it names itself. A disk of 2^63 bytes or more is
//!   refused, too: QEMU opens some of them, and can check them, but neither map nor read them.
//! - An ESX extent by whose grain tables QEMU divides by zero, or whose tables map more than 2^32 sectors, is an error
//!   where it is walked.
//! - QEMU prints host offsets of 2^63 and more as negative numbers, and cannot read them.

mod check;
mod extent;
mod facts;
mod inflate;
mod lookup;
mod open;
mod read;
mod walk;

pub use check::check_vmdk;
pub use facts::{ExtentFacts, VmdkFacts, vmdk_facts};
pub(super) use inflate::ZlibInflater;
pub(super) use open::Vmdk;
