//! The image of a program as files, and the bytes that a guest must read from it: for code that no harness can ask.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use harness::disk::offsets::GuestOffset;
use harness::harness::Walker;
use harness::internal::base::files::Existing;
use harness::internal::harness::model::Model;
use harness::internal::harness::oracles::data;
use harness::internal::images::export::Holes;
use harness::internal::programs::export::{names, write};

use crate::answer::copied;
use crate::errors::{guarded, misuse};
use crate::handle::{Handle, QCOWFUZZ_ERROR, Use};

impl Handle {
    fn export(&mut self, input: &[u8], path: &Path) -> Result<(), String> {
        if !self.target.runs_programs() {
            return Err("expected a target whose inputs are programs".to_string());
        }
        let input = self.target.judged(&self.facts, input);
        let mut built = self.target.judging(Walker::default()).named(names(path));
        built.build(&input);
        write(path, Existing::Keep, (built.vm(), built.images()), Holes::Keep)
            .map_err(|error| error.to_string())?;
        let model = self.model.get_or_insert_with(|| Box::new(Model::new()));
        model.replay(built.vm().journals());
        Ok(())
    }

    fn expected(&self) -> Result<&Model, String> {
        self.model.as_deref().ok_or_else(|| "expected a call of qcowfuzz_export before".to_string())
    }
}

/// Builds the image of a program, writes it to the file `path`, and the files that it names beside it. Files that
/// exist are an error. Returns 0 or QCOWFUZZ_ERROR. If the program has requests, the image is that before the first.
///
/// # Safety
/// `handle` is null or valid; `data` has `size` bytes; `path` is null, or a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_export(
    handle: *mut Handle,
    data: *const u8,
    size: usize,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (used, path) = unsafe { (Use::begin(handle, "qcowfuzz_export"), copied(path)) };
    let (Some(used), Some(path)) = (used, path) else {
        return misuse("qcowfuzz_export: expected a harness that is not in use, and a path");
    };
    // SAFETY: the caller's promise.
    let input = unsafe { crate::handle::bytes(data, size) };
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    match guarded("qcowfuzz_export", || used.0.export(input, path)) {
        Some(Ok(())) => 0,
        Some(Err(what)) => misuse(format!("qcowfuzz_export: {what}")),
        None => QCOWFUZZ_ERROR,
    }
}

/// Returns the size in bytes of the disk that a guest must see in the image that was exported last; 0 without one.
///
/// # Safety
/// `handle` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_expected_size(handle: *mut Handle) -> u64 {
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_expected_size") };
    used.and_then(|used| used.0.expected().ok().map(Model::virtual_size_bytes)).unwrap_or_default()
}

/// Fills `into` with the `length` bytes that a guest must read from `offset` on in the image that was exported last;
/// behind the end of the disk, with zeros. Returns 0 or QCOWFUZZ_ERROR.
///
/// # Safety
/// `handle` is null or valid; `into` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qcowfuzz_expected(
    handle: *mut Handle,
    offset: u64,
    into: *mut u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let used = unsafe { Use::begin(handle, "qcowfuzz_expected") };
    let Some(used) = used.filter(|_| !into.is_null()) else {
        return misuse("qcowfuzz_expected: expected a harness that is not in use, and a buffer");
    };
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(into, length) };
    match used.0.expected() {
        Ok(model) => {
            into.fill(0);
            let left = model.virtual_size_bytes().saturating_sub(offset);
            let on_disk = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            data::expect(model, GuestOffset::new(offset), &mut into[..on_disk]);
            0
        }
        Err(what) => misuse(format!("qcowfuzz_expected: {what}")),
    }
}
