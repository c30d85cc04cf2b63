//! A program with the command line of qemu-img: its commands and its answers. qemu-img is one of them, and any other is
//! an engine ([`ImageProgram`]).

mod converted;
mod engine;
mod file_holes;
mod map_record;
mod named_snapshot;
mod program;
mod reports;

pub(in crate::harness) use converted::ConvertedFile;
pub use engine::ImageProgram;
pub(in crate::harness) use file_holes::without_holes;
pub(crate) use map_record::{QemuMapRecord, parse_map};
pub(in crate::harness) use named_snapshot::{NamedSnapshot, is_plain, snapshots};
pub(in crate::harness) use program::ImageCommands;
pub(in crate::harness) use reports::{check, info};
