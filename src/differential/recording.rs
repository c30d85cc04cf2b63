//! Recordings: QEMU's answers and the images, in one file. A recording is compared later, where QEMU is missing or has
//! another version.
//!
//! A recording is a tar archive. `recording.json` comes first. Each iteration has a folder with the files of its disk
//! after the last step, with the bytes that QEMU read (`qemu.raw`), and at last `answers.json`.

mod check;
mod layout;
mod write;

pub use check::check;
pub use layout::RecordingError;
pub use write::write;
