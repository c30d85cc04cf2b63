//! Damage: the attacks of hostile programs on their images. They change entries, before or after a reader reads them,
//! cut the file, and let reads fail. Rules judge the damaged bytes: they name the places at which every reader must
//! refuse.

mod apply;
pub mod attacks;
mod read_faults;
pub mod rules;

pub use apply::{Damage, Refusal};
pub use attacks::{Attack, FieldChange, Spot, Transform};
pub use read_faults::ReadFaults;
pub use rules::{BrokenEntry, BrokenRule};
