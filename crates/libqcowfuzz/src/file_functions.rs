//! The functions by which C reads, writes and opens the files of a case.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::OpenOptions;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use harness::prelude::{ChainFile, HostOffset};

use crate::answer::QCOWFUZZ_IO;
use crate::case_files::{FileInfo, Files, OneFile};
use crate::errors::{c_text, misuse};

/// The largest file that `qcowfuzz_file_bytes` copies whole.
const MAX_COPIED_BYTES: u64 = 256 << 20;

/// Returns the files, if the pointer is not null.
///
/// # Safety
/// `files` is null, or the field of a question whose image is open or being opened.
unsafe fn files<'f>(files: *const Files<'f>, function: &str) -> Option<&'f Files<'f>> {
    // SAFETY: the caller's promise.
    let files = unsafe { files.as_ref() };
    if files.is_none() {
        misuse(format!("{function}: expected the files of a question, found a null pointer"));
    }
    files
}

/// Returns the number of files.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_count(files: *const Files<'_>) -> usize {
    // SAFETY: the caller's promise.
    unsafe { self::files(files, "qcowfuzz_file_count") }.map_or(0, |files| files.given.len())
}

/// Fills `into` with the properties of the file at `index`. Its texts are valid as long as the files. Returns 0, or -1
/// if there is no such file.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened; `into` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_info(
    files: *const Files<'_>,
    index: usize,
    into: *mut FileInfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let files = unsafe { self::files(files, "qcowfuzz_file_info") };
    // SAFETY: the caller's promise.
    let (Some(files), Some(into)) = (files, unsafe { into.as_mut() }) else {
        return misuse("qcowfuzz_file_info: expected files and a place for the result");
    };
    let found = files.file(index).zip(files.place(index)).zip(files.given.get(index));
    let Some(((file, (layer, kind, format)), given)) = found else {
        return misuse(format!("qcowfuzz_file_info: expected the index of a file, found {index}"));
    };
    let name = given.name.get_or_init(|| c_text(&file.name())).as_ptr();
    let format = given.format.get_or_init(|| c_text(format)).as_ptr();
    *into = FileInfo { layer, kind, length: file.length(), name, format };
    0
}

/// Returns the length of the file at `index` in bytes; 0 if there is no such file.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_length(files: *const Files<'_>, index: usize) -> u64 {
    // SAFETY: the caller's promise.
    let files = unsafe { self::files(files, "qcowfuzz_file_length") };
    files.and_then(|files| files.file(index)).map_or(0, OneFile::length)
}

/// Does something with a file. Returns 0, or QCOWFUZZ_IO if a file cannot be read or written.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
unsafe fn with_file(
    files: *const Files<'_>,
    index: usize,
    function: &str,
    work: impl FnOnce(OneFile<'_>) -> Result<(), String>,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(files) = (unsafe { self::files(files, function) }) else { return QCOWFUZZ_IO };
    let Some(file) = files.file(index) else {
        misuse(format!("{function}: expected the index of a file, found {index}"));
        return QCOWFUZZ_IO;
    };
    match work(file) {
        Ok(()) => 0,
        Err(error) => {
            misuse(format!("{function}: {error}"));
            QCOWFUZZ_IO
        }
    }
}

/// Reads `length` bytes of the file at `index` from `offset` on. Past the end of the file, it reads zeros. Returns 0,
/// or QCOWFUZZ_IO: the harness makes some reads fail on purpose, and the code should then report an error.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened; `into` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_read(
    files: *const Files<'_>,
    index: usize,
    offset: u64,
    into: *mut u8,
    length: usize,
) -> c_int {
    if into.is_null() && length > 0 {
        misuse("qcowfuzz_file_read: expected a buffer, found a null pointer");
        return QCOWFUZZ_IO;
    }
    let into = match length {
        0 => &mut [][..],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts_mut(into, length) },
    };
    // SAFETY: the caller's promise.
    unsafe { with_file(files, index, "qcowfuzz_file_read", |file| file.read_at(offset, into)) }
}

/// Writes `length` bytes to the file at `index` from `offset` on. The file grows to their end. Only the image to open
/// and its data file can be written, after QCOWFUZZ_OPEN_TO_WRITE. Returns 0 or QCOWFUZZ_IO.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened; `bytes` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_write(
    files: *const Files<'_>,
    index: usize,
    offset: u64,
    bytes: *const u8,
    length: usize,
) -> c_int {
    if bytes.is_null() && length > 0 {
        misuse("qcowfuzz_file_write: expected bytes, found a null pointer");
        return QCOWFUZZ_IO;
    }
    let bytes = match length {
        0 => &[][..],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(bytes, length) },
    };
    // SAFETY: the caller's promise.
    unsafe {
        with_file(files, index, "qcowfuzz_file_write", |file| {
            file.change(|file| file.write_at(HostOffset::new(offset), bytes))
        })
    }
}

/// Cuts the file at `index` to `length` bytes, or appends a hole. Returns 0 or QCOWFUZZ_IO.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_set_length(
    files: *const Files<'_>,
    index: usize,
    length: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_file(files, index, "qcowfuzz_file_set_length", |file| {
            file.change(|file| file.set_length(length))
        })
    }
}

/// Has the file at `index` keep all that was written to it so far in a power cut, as `fsync` does. Returns 0 or
/// QCOWFUZZ_IO.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_flush(files: *const Files<'_>, index: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_file(files, index, "qcowfuzz_file_flush", |file| file.change(ChainFile::flush)) }
}

/// Returns the bytes of the file at `index` and stores their number in `length`. They are valid as long as the files.
/// Returns null if the file has more than 256 MiB or cannot be read.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened; `length` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_bytes(
    files: *const Files<'_>,
    index: usize,
    length: *mut usize,
) -> *const u8 {
    // SAFETY: the caller's promise.
    let files = unsafe { self::files(files, "qcowfuzz_file_bytes") };
    let found = files.and_then(|files| files.file(index).zip(files.given.get(index)));
    let Some((file, given)) = found else {
        misuse("qcowfuzz_file_bytes: expected the index of a file");
        return std::ptr::null();
    };
    let bytes = match given.bytes.get() {
        Some(bytes) => bytes,
        None => match copy_of(file) {
            Ok(bytes) => given.bytes.get_or_init(|| bytes),
            Err(what) => {
                misuse(format!("qcowfuzz_file_bytes: {what}"));
                return std::ptr::null();
            }
        },
    };
    // SAFETY: the caller's promise.
    if let Some(length) = unsafe { length.as_mut() } {
        *length = bytes.len();
    }
    bytes.as_ptr()
}

fn copy_of(file: OneFile<'_>) -> Result<Vec<u8>, String> {
    let length = file.length();
    let small = usize::try_from(length).ok().filter(|_| length <= MAX_COPIED_BYTES);
    let Some(small) = small else {
        return Err(format!("expected a file of at most {MAX_COPIED_BYTES} bytes, found {length}"));
    };
    let mut bytes = vec![0; small];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the path of the image to open. The first call writes all files of the case to a temporary folder, which the
/// library removes at the end of the process. The path is valid until the image is closed. After
/// QCOWFUZZ_OPEN_TO_WRITE, the code may change the files: the library reads them after each flush and at the end.
/// Returns null if the files cannot be written, or have more than 256 MiB of data: the callback then returns
/// QCOWFUZZ_IO.
///
/// The harness does not see what the code reads there. It makes no read of such code fail.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_path(files: *const Files<'_>) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { qcowfuzz_file_path(files, 0) }
}

/// Returns the path of the file at `index`, as `qcowfuzz_path` does.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_path(
    files: *const Files<'_>,
    index: usize,
) -> *const c_char {
    // SAFETY: the caller's promise.
    let Some(files) = (unsafe { self::files(files, "qcowfuzz_file_path") }) else {
        return std::ptr::null();
    };
    files.path(index).unwrap_or_else(|what| {
        misuse(format!("qcowfuzz_file_path: {what}"));
        std::ptr::null()
    })
}

/// Opens the file at `index`, as `qcowfuzz_path` writes it: for reading, and after QCOWFUZZ_OPEN_TO_WRITE for writing,
/// too. Returns the descriptor, which the caller closes, or -1.
///
/// # Safety
/// `files` is null, or the files of a question whose image is open or being opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_file_open(files: *const Files<'_>, index: usize) -> c_int {
    // SAFETY: the caller's promise.
    let Some(files) = (unsafe { self::files(files, "qcowfuzz_file_open") }) else { return -1 };
    let opened = files.path(index).and_then(|path| {
        // SAFETY: `path` returns a string of this value.
        let path = unsafe { CStr::from_ptr(path) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let file = OpenOptions::new().read(true).write(files.is_writable()).open(path);
        file.map_err(|error| error.to_string())
    });
    match opened {
        Ok(file) => file.into_raw_fd(),
        Err(what) => misuse(format!("qcowfuzz_file_open: {what}")),
    }
}
