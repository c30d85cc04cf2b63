//! Writes the files that a program builds to a folder, with the names by which the images call each other.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::base::error::Error;
use crate::base::files::{Existing, create};
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::images::files::export::Holes;
use crate::images::files::image::Image;
use crate::images::files::{FileNames, Images, export};

use super::Vm;

/// The virtual machine that ran a program, and the images that the program built.
pub type Built<'b> = (&'b Vm, &'b Images);

/// The longest image whose holes are written out.
pub const MAX_EXPORT_FILLED_BYTES: u64 = 1 << 30;

/// [`write_small_filled`] fills the holes of images up to this length.
pub(crate) const MAX_READILY_FILLED_BYTES: u64 = 64 << 20;

/// Returns the names of the files of a chain whose top image is written to `path`: the name of that file, with a number
/// before the extension.
pub fn names(path: &Path) -> FileNames {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // QEMU takes the text before a colon for a protocol.
    let names = FileNames::new(&stem.replace(':', "_"));
    match path.file_name().and_then(OsStr::to_str) {
        // A descriptor has names in quotation marks, each in a line.
        Some(name) if !name.contains('"') && !name.contains(char::is_control) => {
            names.with_top(name)
        }
        _ => names,
    }
}

/// Writes the top image to `path`, and all other files of the chain into the same folder. It writes each file after the
/// files that the file names, so that no file names a missing one. The images must have been built with the [`names`]
/// of that path.
///
/// # Errors
/// A name is too long for an image or for a file, a file is too long to be filled, a file exists and is to be kept, or
/// a file cannot be written. If a name, a length or an existing file is the reason, no file is written.
pub fn write(path: &Path, existing: Existing, built: Built, holes: Holes) -> Result<(), Error> {
    write_named(path, &names(path), existing, built, holes)
}

/// Writes files as [`write()`] does, whose images were built with `names`.
///
/// # Errors
/// Those of [`write()`].
pub(crate) fn write_named(
    path: &Path,
    names: &FileNames,
    existing: Existing,
    (vm, images): Built,
    holes: Holes,
) -> Result<(), Error> {
    let named =
        |name: Option<&str>| name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
    vm.check_names(names).map_err(|(height, error)| {
        let top = height + 1 == images.layers().len();
        let path = named((!top).then(|| names.image(height, ImageFormat::Qcow2)));
        Error::Output { path, what: format!("{error}, expected a shorter name of the output") }
    })?;
    let files: Vec<(PathBuf, &Image)> =
        images.files(names).map(|(name, image)| (named(name), image)).collect();
    for (path, image) in &files {
        check(path, existing, image.length_bytes(), holes)?;
    }
    for (path, image) in &files {
        create(path, existing, |file| export::write(image, file, holes))?;
    }
    Ok(())
}

/// Writes files as [`write()`] does. It fills the holes if the images are small, so that no reader takes data for
/// zeros.
///
/// # Errors
/// Those of [`write()`].
pub fn write_small_filled(path: &Path, existing: Existing, built: Built) -> Result<(), Error> {
    let names = FileNames::default();
    let mut lengths = built.1.files(&names).map(|(_, image)| image.length_bytes());
    let small = lengths.all(|length| length <= MAX_READILY_FILLED_BYTES);
    write(path, existing, built, if small { Holes::Fill } else { Holes::Keep })
}

/// Refuses a file before any is written.
fn check(path: &Path, existing: Existing, length: u64, holes: Holes) -> Result<(), Error> {
    let refused = |what: String| Err(Error::Output { path: path.to_path_buf(), what });
    if holes == Holes::Fill && length > MAX_EXPORT_FILLED_BYTES {
        return refused(format!(
            "the file has {length} bytes, expected at most {MAX_EXPORT_FILLED_BYTES} where holes are filled"
        ));
    }
    match path.symlink_metadata() {
        Ok(_) if existing == Existing::Keep => Err(Error::Exists { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
            let length = path.file_name().map_or(0, |name| name.len());
            refused(format!(
                "a name of {length} bytes, which is too long for a file, expected a shorter name of the output"
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::base::files::list;
    use crate::harness::{Harness, Walker};
    use crate::programs::text::assemble;

    use super::*;

    /// A chain of two images, the lower one of 100 clusters, built for `path`.
    fn chain(path: &Path) -> Harness {
        let program = "image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 \
                       blocks=append table=append tolerance=0
                       overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=+0<<0
                       write at=start+0 clusters=1";
        let mut harness = Harness::new(Walker::default()).named(names(path));
        harness.build(&assemble(program).unwrap().encode());
        harness
    }

    #[test]
    fn all_files_are_written_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("top.qcow2");
        let harness = chain(&path);
        let built = (harness.vm(), harness.images());
        let files = || list(dir.path()).unwrap();
        std::fs::write(&path, "mine").unwrap();
        let error = write(&path, Existing::Keep, built, Holes::Keep).unwrap_err();
        assert!(matches!(error, Error::Exists { path: of } if of == path));
        assert_eq!(files(), std::slice::from_ref(&path));
        write(&path, Existing::Replace, built, Holes::Fill).unwrap();
        assert_eq!(files(), [dir.path().join("top.0.qcow2"), path.clone()]);
        // The top image calls the lower one by its name.
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.windows(11).any(|name| name == b"top.0.qcow2"));
        assert_eq!(bytes.len() as u64, harness.image().length_bytes());
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("{}.qcow2", "a".repeat(300)));
        let harness = chain(&path);
        let built = (harness.vm(), harness.images());
        let error = write(&path, Existing::Keep, built, Holes::Keep).unwrap_err().to_string();
        assert!(
            error.contains(" which is too long for a file, expected a shorter name"),
            "{error}"
        );
        assert!(list(dir.path()).unwrap().is_empty());
    }
}
