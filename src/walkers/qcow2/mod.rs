//! The walker of qcow2 images.

mod host_holes;
mod inflate;
mod latest;
mod lookup;
mod open;
mod read;
mod walk;

pub(super) use inflate::Inflater;
pub(super) use open::{Named, Qcow2};
