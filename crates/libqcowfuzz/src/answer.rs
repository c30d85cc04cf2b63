//! An answer of the code under test, as C gives it, and as the harness takes it.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use harness::prelude::{
    EngineError, Extent as DiskExtent, GuestOffset, GuestRun, GuestStatus, HostOffset, Mapping,
};

use crate::errors;

/// The question is answered.
pub const QCOWFUZZ_OK: c_int = 0;
/// The code has no answer to questions of this kind, for any image.
pub const QCOWFUZZ_NO_ANSWER: c_int = 1;
/// The code does not support a feature of the image.
pub const QCOWFUZZ_UNSUPPORTED: c_int = 2;
/// A file of the image cannot be read or written.
pub const QCOWFUZZ_IO: c_int = 3;
/// The image is malformed, or the range lies past the end of the disk. Any other value is an error of no stated kind.
pub const QCOWFUZZ_MALFORMED: c_int = 4;

/// No layer allocates the bytes, which read as zeros.
pub const QCOWFUZZ_HOLE: c_int = 0;
/// Bytes that are allocated, and read as zeros.
pub const QCOWFUZZ_ZEROS: c_int = 1;
/// Data that are not compressed.
pub const QCOWFUZZ_DATA: c_int = 2;
/// Data that are compressed.
pub const QCOWFUZZ_COMPRESSED: c_int = 3;
/// Data, compressed or not. Only a status without a depth may be as coarse as this.
pub const QCOWFUZZ_STORED: c_int = 4;
/// The image to open leaves the bytes to the layers below. Only a status without a depth may say this.
pub const QCOWFUZZ_BELOW: c_int = 5;

/// There is no host offset, or the code does not know it.
pub const QCOWFUZZ_NO_OFFSET: u64 = u64::MAX;
/// The code does not know the depth of a status: the status is then as coarse as its word.
pub const QCOWFUZZ_NO_DEPTH: u32 = u32::MAX;

/// The largest number of extents of an answer. No disk of a program has more.
const MAX_EXTENTS: usize = 1 << 24;

/// Bytes of the disk with one status.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The first byte on the disk.
    pub start: u64,
    /// The number of bytes, at least 1.
    pub length: u64,
    /// The offset of the first byte in the file that stores it, or QCOWFUZZ_NO_OFFSET.
    pub host_offset: u64,
    /// The layer that allocates the bytes: 0 for the image to open. In a status: or QCOWFUZZ_NO_DEPTH.
    pub depth: u32,
    /// QCOWFUZZ_HOLE to QCOWFUZZ_BELOW.
    pub status: c_int,
}

impl Extent {
    /// A run without a known depth or host offset, which a callback changes.
    pub(crate) const RUN: Self = Self {
        start: 0,
        length: 0,
        host_offset: QCOWFUZZ_NO_OFFSET,
        depth: QCOWFUZZ_NO_DEPTH,
        status: QCOWFUZZ_HOLE,
    };

    fn host(&self) -> Option<HostOffset> {
        Some(self.host_offset).filter(|it| *it != QCOWFUZZ_NO_OFFSET).map(HostOffset::new)
    }

    fn mapping(&self) -> Option<Mapping> {
        let (present, zero, data, compressed) = match self.status {
            QCOWFUZZ_HOLE => (false, true, false, false),
            QCOWFUZZ_ZEROS => (true, true, false, false),
            QCOWFUZZ_DATA => (true, false, true, false),
            QCOWFUZZ_COMPRESSED => (true, false, true, true),
            _ => return None,
        };
        Some(Mapping { depth: self.depth, present, zero, data, compressed, offset: self.host() })
    }

    fn wrong(&self) -> EngineError {
        EngineError::untyped(format!("a status of {} at a known depth", self.status))
    }

    /// Returns the extent of a map.
    pub(crate) fn in_map(&self) -> Result<DiskExtent, EngineError> {
        let mapping = self.mapping().ok_or_else(|| self.wrong())?;
        let Self { start, length, .. } = *self;
        Ok(DiskExtent { start: GuestOffset::new(start), length_bytes: length, mapping })
    }

    /// Returns the run of a status.
    pub(crate) fn as_run(&self) -> Result<GuestRun, EngineError> {
        let status = match (self.depth, self.status) {
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_DATA) => GuestStatus::Data(self.host()),
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_COMPRESSED) => GuestStatus::Compressed,
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_STORED) => GuestStatus::Stored,
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_ZEROS) => GuestStatus::Zeros(self.host()),
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_HOLE) => GuestStatus::Hole,
            (QCOWFUZZ_NO_DEPTH, QCOWFUZZ_BELOW) => GuestStatus::Below,
            _ => GuestStatus::Exact(self.mapping().ok_or_else(|| self.wrong())?),
        };
        Ok(GuestRun { length_bytes: self.length, status })
    }
}

/// The extents of an answer, to which `qcowfuzz_emit` appends.
#[derive(Debug, Default)]
pub struct Extents(pub(crate) RefCell<Vec<Extent>>);

/// Appends an extent to the answer about a map. Returns 0, or -1 if the answer is too long: then the code should end
/// its walk.
///
/// # Safety
/// `into` is the argument of the callback that calls this function; `extent` is null, or points to an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_emit(into: *mut Extents, extent: *const Extent) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(into), Some(extent)) = (unsafe { into.as_ref() }, unsafe { extent.as_ref() }) else {
        return errors::misuse("qcowfuzz_emit: expected extents, found a null pointer");
    };
    let mut into = into.0.borrow_mut();
    if into.len() >= MAX_EXTENTS {
        return errors::misuse("qcowfuzz_emit: expected at most 2^24 extents, found more");
    }
    into.push(*extent);
    0
}

/// The answer to a question. Fields that do not belong to the kind of the question do not count.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// QCOWFUZZ_OK, or an error.
    pub code: c_int,
    /// The text of an error, or null. The library copies it.
    pub error: *const c_char,
    /// QCOWFUZZ_OPEN and others: the disk, which is handed to all questions about it. It may be null.
    pub disk: *mut c_void,
    /// QCOWFUZZ_SIZE: the number of bytes of the disk.
    pub size_bytes: u64,
    /// QCOWFUZZ_MAP and QCOWFUZZ_STATUS: the extents, in order. The library copies them.
    pub extents: *const Extent,
    /// The number of extents.
    pub extent_count: usize,
    /// QCOWFUZZ_CHECK: the number of errors.
    pub errors: u64,
    /// QCOWFUZZ_CHECK: the number of clusters that are allocated and not used.
    pub leaks: u64,
}

impl Answer {
    /// Creates an answer without any field but the code.
    pub(crate) const fn of(code: c_int) -> Self {
        Self {
            code,
            error: ptr::null(),
            disk: ptr::null_mut(),
            size_bytes: 0,
            extents: ptr::null(),
            extent_count: 0,
            errors: 0,
            leaks: 0,
        }
    }

    /// Copies the answer for the harness: its parts that are no numbers go to `details`. Without extents here, those in
    /// `details` are the ones that a callback has emitted.
    ///
    /// # Safety
    /// The pointers are null or valid, and `extents` has `extent_count` of them.
    pub(crate) unsafe fn taken(&self, details: &Details) -> Reply {
        if !self.error.is_null() || !details.text.borrow().is_empty() {
            // SAFETY: the caller's promise.
            details.text.replace(unsafe { copied(self.error) }.unwrap_or_default());
        }
        if !self.extents.is_null() {
            // SAFETY: the caller's promise.
            let given = unsafe { std::slice::from_raw_parts(self.extents, self.extent_count) };
            let mut extents = details.extents.0.borrow_mut();
            extents.clear();
            extents.extend_from_slice(given.get(..MAX_EXTENTS).unwrap_or(given));
        }
        let Self { code, disk, size_bytes, errors, leaks, .. } = *self;
        Reply { code, disk, size_bytes, errors, leaks }
    }
}

/// The parts of an answer that are no numbers. They are reused from answer to answer.
#[derive(Debug, Default)]
pub(crate) struct Details {
    text: RefCell<String>,
    pub(crate) extents: Extents,
}

/// The numbers of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) code: c_int,
    pub(crate) disk: *mut c_void,
    pub(crate) size_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) leaks: u64,
}

impl Reply {
    /// Returns the answer, unless it is an error.
    #[inline]
    pub(crate) fn answered(self, details: &Details) -> Result<Self, EngineError> {
        match self.code {
            QCOWFUZZ_OK => Ok(self),
            code => Err(error_of(code, &details.text.borrow())),
        }
    }
}

#[cold]
fn error_of(code: c_int, text: &str) -> EngineError {
    let or = |other: &str| if text.is_empty() { other } else { text }.to_string();
    match code {
        QCOWFUZZ_NO_ANSWER => EngineError::NoAnswer,
        QCOWFUZZ_UNSUPPORTED => EngineError::unsupported(or("unsupported")),
        QCOWFUZZ_IO => EngineError::Io(or("input or output").into()),
        QCOWFUZZ_MALFORMED => EngineError::Failed(or("malformed").into()),
        code => EngineError::untyped(or(&format!("error {code}"))),
    }
}

/// Copies a C string.
///
/// # Safety
/// `text` is null, or points to a string that ends with a zero.
pub(crate) unsafe fn copied(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
