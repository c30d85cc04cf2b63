//! Rates, each beside another program or another build.

pub mod against;
pub mod fuzz_rate;
pub mod map_rate;
