//! Inputs as files: their names, folders to which fuzzers add inputs, the coverage of a folder, and merges of folders.

#[cfg(feature = "cli")]
pub(crate) mod inputs;
#[cfg(feature = "cli")]
pub(crate) mod merge;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};

use crate::base::error::Error;
use crate::base::files::{Existing, write_whole};

/// Returns the name that libFuzzer gives an input: the SHA-1 of its bytes, in 40 hexadecimal digits.
pub fn name(input: &[u8]) -> String {
    hex::encode(Sha1::digest(input))
}

/// Reports whether a file's name has the form of a [`name`]: then a fuzzer has kept the input. A person chose any other
/// name.
pub fn is_find(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == 40 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reports whether a file's name has the form of a [`name`], but is not the name of its content: a process is writing
/// the file, or was killed while it did so. libFuzzer does not write files atomically.
pub fn is_torn(path: &Path, input: &[u8]) -> bool {
    is_find(path) && !path.ends_with(name(input))
}

/// A folder to which inputs are added.
#[derive(Clone, Debug)]
pub struct Folder {
    dir: PathBuf,
    scratch: PathBuf,
}

impl Folder {
    /// Returns the folder `dir`, and creates it if it does not exist. Files are written in `scratch`, a folder of the
    /// same file system, and then renamed, so that no fuzzer reads half an input.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn new(dir: PathBuf, scratch: PathBuf) -> Result<Self, Error> {
        for made in [&dir, &scratch] {
            std::fs::create_dir_all(made).map_err(|error| Error::file(made, error))?;
        }
        Ok(Self { dir, scratch })
    }

    /// Returns the path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes an input to a file whose name is `prefix` and the input's [`name`], unless that file exists. Returns the
    /// file's name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, prefix: &str, input: &[u8]) -> Result<String, Error> {
        let called = format!("{prefix}{}", name(input));
        let path = self.dir.join(&called);
        match write_whole(&path, &self.scratch, Existing::Keep, |mut file| file.write_all(input)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::file(path, error))
            }
            _ => Ok(called),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::files::{list, read};

    #[test]
    fn names_are_libfuzzers() {
        assert_eq!(name(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(name(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }

    #[test]
    fn finds_differ_from_seeds_and_torn_files_from_whole_ones() {
        let find = Path::new("corpus/a9993e364706816aba3e25717850c26c9cd0d89d");
        let seed = Path::new("corpus/zero_kinds");
        assert!(is_find(find) && !is_find(seed) && !is_find(Path::new("corpus/a9993e36")));
        assert!(!is_torn(find, b"abc") && is_torn(find, b"ab") && is_torn(find, b""));
        assert!(!is_torn(seed, b"anything"));
    }

    #[test]
    fn inputs_are_added_once_and_scratch_is_left_empty() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let folder = Folder::new(at("corpus"), at("scratch")).unwrap();
        let name = folder.add("crash-", b"abc").unwrap();
        assert_eq!(name, "crash-a9993e364706816aba3e25717850c26c9cd0d89d");
        // An existing file stays: it may be the user's.
        std::fs::write(at("corpus").join(&name), "mine").unwrap();
        folder.add("crash-", b"abc").unwrap();
        assert_eq!(list(folder.dir()).unwrap(), [at("corpus").join(&name)]);
        assert_eq!(read(&at("corpus").join(&name), 100).unwrap(), b"mine");
        assert!(list(&at("scratch")).unwrap().is_empty());
    }
}
