//! The planted faults of the small writer, and requests for it.

mod fault;
mod requests;

pub use fault::FAULTS;
pub use requests::requests;
