//! Damage: the attacks of hostile programs on their images. They change entries, before or after a reader reads them,
//! cut the file, and let reads fail. Rules judge the damaged bytes: they name the places at which every reader must
//! refuse.

mod apply;
mod attacks;
mod entry_rules;
mod open_rules;
mod read_faults;
mod refusals;
mod traps;

pub use apply::Damage;
pub use attacks::{Attack, Spot, Transform};
pub use entry_rules::ENTRY_RULES;
pub use open_rules::{BrokenRule, broken_at_open, open_rule_names};
pub use read_faults::ReadFaults;
pub use refusals::Refusal;
