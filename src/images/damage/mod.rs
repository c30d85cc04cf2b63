//! Damage: the attacks of hostile programs on their images. They change entries, before or after a reader reads them,
//! cut the file, and let reads fail.

mod apply;
mod attacks;
mod read_faults;
mod traps;

pub use apply::Damage;
pub use attacks::{Attack, Spot, Transform};
pub use read_faults::ReadFaults;
