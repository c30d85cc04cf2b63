//! A question of the harness, as C sees it.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::case_files::Files;

// The kinds of questions. A comment names the fields of the question that count, and those of the answer.

/// Open the image for reading: `files`. The answer: `disk`.
pub const QCOWFUZZ_OPEN: c_int = 1;
/// Open the snapshot at `index` of the image for reading: `files`. The answer: `disk`.
pub const QCOWFUZZ_OPEN_SNAPSHOT: c_int = 2;
/// Open the image for reading and writing: `files`. The answer: `disk`.
pub const QCOWFUZZ_OPEN_TO_WRITE: c_int = 3;
/// Return the size of the disk in bytes: the answer's `size_bytes`.
pub const QCOWFUZZ_SIZE: c_int = 4;
/// Fill `buffer` with the `length` bytes of the disk from `offset` on.
pub const QCOWFUZZ_READ: c_int = 5;
/// Return the status of the bytes of the disk from `offset` on: one extent, which begins there.
pub const QCOWFUZZ_STATUS: c_int = 6;
/// Return all extents of the `length` bytes from `offset` on: `extents`. The length may reach past the disk's end.
pub const QCOWFUZZ_MAP: c_int = 7;
/// Check the image, and change nothing: `errors`, `leaks`.
pub const QCOWFUZZ_CHECK: c_int = 8;
/// Write the `length` bytes at `bytes` to the disk from `offset` on.
pub const QCOWFUZZ_WRITE: c_int = 9;
/// Make `length` bytes from `offset` on read as zeros.
pub const QCOWFUZZ_WRITE_ZEROES: c_int = 10;
/// Free `length` bytes of whole clusters from `offset` on, which then read as zeros.
pub const QCOWFUZZ_DISCARD: c_int = 11;
/// Give the disk the size of `length` bytes.
pub const QCOWFUZZ_RESIZE: c_int = 12;
/// Make all changes survive a power cut.
pub const QCOWFUZZ_FLUSH: c_int = 13;
/// Take a snapshot, which comes behind all others.
pub const QCOWFUZZ_TAKE_SNAPSHOT: c_int = 14;
/// Restore the disk from the snapshot at `index`.
pub const QCOWFUZZ_APPLY_SNAPSHOT: c_int = 15;
/// Delete the snapshot at `index`.
pub const QCOWFUZZ_DELETE_SNAPSHOT: c_int = 16;
/// Close the image, which then contains all changes. No question about this disk follows.
pub const QCOWFUZZ_CLOSE: c_int = 17;

/// A question about an image or a disk, or a request to a disk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The kind: QCOWFUZZ_OPEN to QCOWFUZZ_CLOSE.
    pub kind: c_int,
    /// The index of a snapshot, counted from 0.
    pub index: u32,
    /// The disk of the answer to the last opening.
    pub disk: *mut c_void,
    /// The files of the image. They stay valid until the image is closed, or could not be opened.
    pub files: *const Files<'static>,
    /// An offset on the disk in bytes.
    pub offset: u64,
    /// A number of bytes.
    pub length: u64,
    /// The bytes to fill. The harness has filled them with other bytes.
    pub buffer: *mut u8,
    /// The bytes to write.
    pub bytes: *const u8,
}

impl Question {
    /// A question of no kind.
    pub(crate) const NONE: Self = Self {
        kind: 0,
        index: 0,
        disk: ptr::null_mut(),
        files: ptr::null(),
        offset: 0,
        length: 0,
        buffer: ptr::null_mut(),
        bytes: ptr::null(),
    };

    /// Creates a question about a disk.
    pub(crate) fn about(disk: *mut c_void, kind: c_int) -> Self {
        Self { kind, disk, ..Self::NONE }
    }

    /// Returns the question with a range.
    pub(crate) fn over(self, offset: u64, length: u64) -> Self {
        Self { offset, length, ..self }
    }
}
