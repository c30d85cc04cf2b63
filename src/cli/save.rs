//! Writes outputs. Overwrites a file only if the user passed --force.

use std::io::Write;
use std::path::Path;

use crate::base::files;
use crate::base::files::Existing;

use super::exit::{CommandError, OUTPUT_EXISTS};

/// Returns whether the file at `output` may be replaced. Rejects the input of the command as its output.
pub fn not_the_input(output: &Path, input: &Path, force: bool) -> Result<Existing, CommandError> {
    let same = || input.canonicalize().ok().zip(output.canonicalize().ok());
    match output.symlink_metadata() {
        Ok(_) if !force => Err(CommandError::at(output, OUTPUT_EXISTS)),
        _ if same().is_some_and(|(input, output)| input == output) => {
            Err(CommandError::at(output, "is the input file, expected another file"))
        }
        _ => Ok(Existing::forced(force)),
    }
}

/// Writes `bytes` to the file at `path`.
pub fn write(path: &Path, existing: Existing, bytes: &[u8]) -> Result<(), CommandError> {
    Ok(files::create(path, existing, |mut file| file.write_all(bytes))?)
}
