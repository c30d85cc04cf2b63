//! Files and folders of the system: reading them, and writing files that are whole or not there. A file is written
//! elsewhere and then renamed, so that a process that is killed leaves no part of one.

use std::fs::File;
#[cfg(unix)]
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::error::Error;
use super::limits::MAX_INPUT_BYTES;

/// Returns the regular files of a folder, and the links to some, in the order of their names.
///
/// # Errors
/// The folder cannot be read.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let in_dir = |error| Error::file(dir, error);
    let mut paths = Vec::new();
    for entry in dir.read_dir().map_err(in_dir)? {
        let entry = entry.map_err(in_dir)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(in_dir)?);
        // Folders that many share are large and far away: only links are asked one by one.
        if kind.is_file() || kind.is_symlink() && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the first `most` bytes of a file.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| Error::file(path, error))
}

/// Reads an input of a fuzz target.
///
/// # Errors
/// The file cannot be read, or has more than `MAX_INPUT_BYTES` bytes.
pub fn read_input(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = read(path, MAX_INPUT_BYTES + 1)?;
    check_input_length(bytes).map_err(|error| Error::file(path, error))
}

/// Returns `bytes` if they are few enough for an input of a fuzz target.
///
/// # Errors
/// There are more than `MAX_INPUT_BYTES`.
pub fn check_input_length(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    match bytes.len() as u64 {
        0..=MAX_INPUT_BYTES => Ok(bytes),
        _ => Err(io::Error::other(format!(
            "is too long for a fuzz target, expected at most {MAX_INPUT_BYTES} bytes"
        ))),
    }
}

/// Writes or replaces a file: at any moment, the path names the old file or the new one. `scratch` is a folder of the
/// same file system.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, scratch: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_whole(path, scratch, Existing::Replace, |mut file| file.write_all(bytes))
        .map_err(|error| Error::file(path, error))
}

/// The rule for an output file that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the new file is not written.
    Keep,
    /// The new file replaces it.
    Replace,
}

impl Existing {
    /// Returns [`Replace`](Self::Replace) if the user forces it.
    pub fn forced(force: bool) -> Self {
        if force { Self::Replace } else { Self::Keep }
    }
}

/// Has `write` write a file in `scratch`, a folder of the same file system, and renames the whole file to `path`.
///
/// # Errors
/// The file cannot be written, or one exists that is to be kept ([`AlreadyExists`](io::ErrorKind::AlreadyExists)).
pub fn write_whole(
    path: &Path,
    scratch: &Path,
    existing: Existing,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let file = builder().tempfile_in(scratch).map_err(|error| {
        // The original message names the temporary file, which the user does not know.
        let kind = error.kind();
        io::Error::new(kind, format!("cannot be written: {kind}"))
    })?;
    write(file.as_file())?;
    let renamed = match existing {
        Existing::Keep => file.persist_noclobber(path),
        Existing::Replace => file.persist(path),
    };
    renamed.map(drop).map_err(|error| error.error)
}

/// Has `write` write a file for the user beside `path`, and renames the whole file to `path`.
///
/// # Errors
/// `path` names something other than a regular file, or a file that is to be kept; or the file cannot be written.
pub fn create(
    path: &Path,
    existing: Existing,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_path_buf() },
        _ => Error::file(path, error),
    };
    // Before the work is done. Renaming decides that nothing is overwritten.
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    // A device or a FIFO would become a file.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        let what = "is no regular file, expected a new one".to_string();
        return Err(Error::Output { path: path.to_path_buf(), what });
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Checked before the temporary file is created, because its errors name a file that the user does not know.
    directory.metadata().map_err(failed)?;
    write_whole(path, directory, existing, write).map_err(failed)
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".qcowfuzz-");
    // An ordinary file's, less what the umask takes away.
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (path, scratch) = (dir.path().join("file"), dir.path().join("scratch"));
        std::fs::create_dir(&scratch).unwrap();
        let failing = |mut file: &File| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::Other.into())
        };
        assert!(write_whole(&path, &scratch, Existing::Keep, failing).is_err());
        assert!(list(dir.path()).unwrap().is_empty() && list(&scratch).unwrap().is_empty());
        replace(&path, &scratch, b"one").unwrap();
        let kept = write_whole(&path, &scratch, Existing::Keep, |mut file| file.write_all(b"two"));
        assert_eq!(kept.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, 2).unwrap(), b"on");
        replace(&path, &scratch, b"two").unwrap();
        assert_eq!(read(&path, u64::MAX).unwrap(), b"two");
        assert_eq!(list(dir.path()).unwrap(), [path]);
    }

    #[test]
    fn outputs_replace_neither_kept_files_nor_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let create = |path: &Path, existing| {
            create(path, existing, |mut file| file.write_all(b"one"))
                .map_err(|error| error.to_string())
        };
        assert_eq!(create(&path, Existing::Keep), Ok(()));
        std::fs::write(&path, "mine").unwrap();
        let kept = create(&path, Existing::Keep).unwrap_err();
        assert_eq!(kept, format!("{}: the file exists already", path.display()));
        assert_eq!(read(&path, u64::MAX).unwrap(), b"mine");
        assert_eq!(create(&path, Existing::Replace), Ok(()));
        assert_eq!(read(&path, u64::MAX).unwrap(), b"one");
        let folder = create(dir.path(), Existing::Replace).unwrap_err();
        assert!(folder.ends_with(": is no regular file, expected a new one"), "{folder}");
        let missing = create(&dir.path().join("no/file"), Existing::Keep).unwrap_err();
        assert!(missing.contains("no/file: No such file"), "{missing}");
    }
}
