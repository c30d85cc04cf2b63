//! Errors: the last one of the library in this thread, and the text of the error that a callback is about to return.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use harness::internal::harness::engine::failure::line_of;

use crate::answer::copied;

thread_local! {
    /// The last error of the library.
    static LAST: RefCell<CString> = RefCell::default();
    /// The text of the error of the callback that runs.
    static OF_CALLBACK: RefCell<CString> = RefCell::default();
}

/// Returns the text without zeros, which would end it.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Notes an error of the library, for `qcowfuzz_last_error`, and returns -1.
pub(crate) fn misuse(text: impl AsRef<str>) -> c_int {
    LAST.set(c_text(text.as_ref()));
    -1
}

/// Does work of the library for `function`. A panic, which is a bug of the library, becomes an error.
pub(crate) fn guarded<T>(function: &str, work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|panic| misuse(format!("{function}: {}", line_of(&*panic)))).ok()
}

/// Returns the text of the last error of the library in this thread: one line that says what was wrong and what was
/// expected. The text is valid until the next call of the library in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn qcowfuzz_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Returns the text of the last error.
pub(crate) fn last() -> String {
    LAST.with_borrow(|last| last.to_string_lossy().into_owned())
}

/// Notes the text of an error that a callback is about to return, and returns `code`:
/// `return qcowfuzz_error(QCOWFUZZ_UNSUPPORTED, "zstd");`. A fingerprint contains the beginning of the text, without
/// its numbers. The library copies the text.
///
/// # Safety
/// `text` is null, or points to a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_error(code: c_int, text: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let text = unsafe { copied(text) };
    OF_CALLBACK.set(c_text(&text.unwrap_or_default()));
    code
}

/// Forgets the text of the error of the callback before.
pub(crate) fn begin_callback() {
    OF_CALLBACK.with_borrow_mut(|text| {
        if !text.is_empty() {
            *text = CString::default();
        }
    });
}

/// Returns the text of the callback that has returned, or null. It is valid until the next callback.
pub(crate) fn of_callback() -> *const c_char {
    OF_CALLBACK.with_borrow(|text| match CStr::is_empty(text) {
        true => std::ptr::null(),
        false => text.as_ptr(),
    })
}
