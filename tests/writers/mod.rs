//! A small writer of qcow2 images, its planted faults, and requests for it.

mod clusters;
mod disk;
mod fault;
mod refcounts;
mod requests;

pub use disk::SmallWriter;
pub use fault::FAULTS;
pub use requests::requests;
