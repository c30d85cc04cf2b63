//! The whole command for an implementation of your own: here for the small reader of `examples/engine.rs`, with its
//! bug.
//!
//!     cargo run --release --example command -- fuzz --seconds 10 --dir small
//!     cargo run --release --example command -- triage small/artifacts/map_extents
//!     cargo run --release --example command -- replay small/artifacts/map_extents/FILE

#[allow(dead_code, reason = "the example has a command of its own")]
#[path = "engine.rs"]
mod engine;

qcowfuzz::command!(engine::Small { sees_zero_flag: false });
