//! Inputs as files, named as libFuzzer names them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};

use crate::disk::error::Error;
use crate::disk::files::{Existing, write_whole};

/// What libFuzzer calls an input: the SHA-1 of its bytes, in 40 hexadecimal digits.
pub fn name(input: &[u8]) -> String {
    hex::encode(Sha1::digest(input))
}

/// Whether a file is called as a [`name`] is: then a fuzzer has kept it. Any other name is one that a person gave.
pub fn is_find(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == 40 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a file that is called as a [`name`] is has other content: somebody is writing it, or was killed when
/// doing so. libFuzzer does not write files whole.
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
    /// The folder `dir`, which is made where there is none. What is written goes through `scratch`, a folder
    /// of the same file system: nobody takes a file in part for an input.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn new(dir: PathBuf, scratch: PathBuf) -> Result<Self, Error> {
        for made in [&dir, &scratch] {
            std::fs::create_dir_all(made).map_err(|error| Error::file(made, error))?;
        }
        Ok(Self { dir, scratch })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes an input, called `prefix` and its [`name`], unless it is there already; returns what it is
    /// called.
    ///
    /// # Errors
    /// It cannot be written.
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
    use crate::disk::files::{list, read};

    #[test]
    fn names_are_libfuzzers() {
        assert_eq!(name(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(name(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }

    #[test]
    fn finds_are_told_from_seeds_and_torn_ones_from_whole_ones() {
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
        // What is there stays: the user may have put it there.
        std::fs::write(at("corpus").join(&name), "mine").unwrap();
        folder.add("crash-", b"abc").unwrap();
        assert_eq!(list(folder.dir()).unwrap(), [at("corpus").join(&name)]);
        assert_eq!(read(&at("corpus").join(&name), 100).unwrap(), b"mine");
        assert!(list(&at("scratch")).unwrap().is_empty());
    }
}
