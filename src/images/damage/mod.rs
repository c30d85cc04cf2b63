//! Damage: what a hostile program does to its image once it is built. Entries are changed, at once or
//! behind the back of a reader that has looked at them; the file is cut; reads fail.

mod apply;
mod attacks;
mod files;
mod traps;

pub use apply::Damage;
pub use attacks::{Attack, Spot, Transform};
pub use files::{DamagedFiles, DamagedImage};
