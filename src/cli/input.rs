//! Reading inputs, and refusing those that a command has no use for.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use qcowfuzz::findings::isolation::{Executable, IsolatedRun, Isolation};
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::internal::disk::files;
use qcowfuzz::internal::disk::limits::MAX_INPUT_BYTES;

use super::exit::Failure;

/// The time after which a run hangs that a command makes before its own.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Reads the whole of a file; `-` is standard input.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    match path.as_os_str() == "-" {
        true => read_standard_input(u64::MAX),
        false => Ok(files::read(path, u64::MAX)?),
    }
}

/// Reads an input of a fuzz target, which is no longer than those are.
pub fn read_input(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = match path.as_os_str() == "-" {
        true => read_standard_input(MAX_INPUT_BYTES + 1)?,
        false => files::read(path, MAX_INPUT_BYTES + 1)?,
    };
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        let what = "is longer than any input of a fuzz target";
        return Err(Failure::at(
            path,
            format_args!("{what}, expected at most {MAX_INPUT_BYTES} bytes"),
        ));
    }
    Ok(bytes)
}

fn read_standard_input(most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| Failure::Told(format!("standard input: {error}")))
}

/// There is nothing to be done with an input that shows nothing.
pub fn nothing_found(path: &Path, target: TargetKind) -> Failure {
    let what = "nothing was found in it, expected an input with a violation";
    Failure::at(path, format_args!("{what} (--target {})", target.name()))
}

/// Refuses an input that ends its process, on behalf of a command that would end with it. `input` was read from `path`.
pub fn reject_if_crashes(path: &Path, input: &[u8], target: TargetKind) -> Result<(), Failure> {
    let isolation = Isolation { executable: this_executable()?, target, timeout: TIMEOUT };
    match isolation.isolated_run(input)? {
        IsolatedRun::Ended(end) => {
            let what =
                "expected an input that comes to its end; 'qcowfuzz minimize' makes it small";
            Err(Failure::at(path, format_args!("{}, {what}", end.fingerprint())))
        }
        IsolatedRun::Finished { .. } => Ok(()),
    }
}

/// The file that is running now, also where another one has its name by now.
pub fn this_executable() -> Result<Executable, Failure> {
    let running = Path::new("/proc/self/exe");
    let path = match running.exists() {
        true => running.to_path_buf(),
        false => std::env::current_exe()
            .map_err(|error| Failure::Told(format!("the running executable: {error}")))?,
    };
    Ok(Executable::new(path, []))
}
