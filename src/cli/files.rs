//! Reading inputs, and writing files so that a killed run leaves whole ones and nothing is overwritten
//! that was not meant to be.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use qcowfuzz::disk::limits::MAX_INPUT_BYTES;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::fuzzing::corpus;
use qcowfuzz::images::export;
use qcowfuzz::images::export::Holes;
use qcowfuzz::images::files::{FileNames, Images};
use qcowfuzz::images::image::Image;
use qcowfuzz::programs::Vm;

use super::exit::Failure;
use qcowfuzz::harness::targets::TargetKind;

pub use qcowfuzz::fuzzing::corpus::Existing;

/// The virtual machine that ran a program, and the images that the program built.
pub type Built<'b> = (&'b Vm, &'b Images);

/// The longest image whose holes are written out.
pub const MAX_EXPORT_FILLED_BYTES: u64 = 1 << 30;

/// Reads the whole of a file; `-` is standard input.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    match path.as_os_str() == "-" {
        true => read_standard_input(u64::MAX),
        false => Ok(corpus::read(path, u64::MAX)?),
    }
}

/// Reads an input of a fuzz target, which is no longer than those are.
pub fn read_input(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = match path.as_os_str() == "-" {
        true => read_standard_input(MAX_INPUT_BYTES + 1)?,
        false => corpus::read(path, MAX_INPUT_BYTES + 1)?,
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

/// There is nothing to be done with an input that shows nothing.
pub fn nothing_found(path: &Path, target: TargetKind) -> Failure {
    let what = "nothing was found in it, expected an input with a violation";
    Failure::at(path, format_args!("{what} (--target {})", target.name()))
}

fn read_standard_input(most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| Failure::Told(format!("standard input: {error}")))
}

/// Whether the file at `output` may be replaced. What was made of an input never takes its place.
pub fn not_the_input(output: &Path, input: &Path, force: bool) -> Result<Existing, Failure> {
    let same = || input.canonicalize().ok().zip(output.canonicalize().ok());
    match output.symlink_metadata() {
        Ok(_) if !force => Err(Failure::at(output, THERE_ALREADY)),
        _ if same().is_some_and(|(input, output)| input == output) => {
            Err(Failure::at(output, "is the input itself, expected another file"))
        }
        _ => Ok(Existing::forced(force)),
    }
}

/// Writes `bytes` to the file at `path`.
pub fn write(path: &Path, existing: Existing, bytes: &[u8]) -> Result<(), Failure> {
    whole(path, existing, |mut file| file.write_all(bytes))
}

/// What the files of a chain are called whose image at the top goes to `path`: like that file, with a
/// number before the extension.
pub fn names(path: &Path) -> FileNames {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // A colon would make a protocol of what stands before it.
    FileNames::new(&stem.replace(':', "_"))
}

/// Writes the image at the top to the file at `path`, and the files that it names beside it: these
/// first, so that whatever is there names nothing that is not. The images are built with the [`names`] of
/// that path.
pub fn write_images(
    path: &Path,
    existing: Existing,
    (vm, images): Built,
    holes: Holes,
) -> Result<(), Failure> {
    let names = names(path);
    let named =
        |name: Option<&str>| name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
    // Before anything is written: all files, or none.
    vm.check_names(&names).map_err(|(height, error)| {
        let top = height + 1 == images.layers().len();
        let image = named((!top).then(|| names.image(height, false)));
        Failure::at(&image, format_args!("{error}, expected a shorter name of the output"))
    })?;
    let files: Vec<(PathBuf, &Image)> =
        images.files(&names).map(|(name, image)| (named(name), image)).collect();
    for (path, image) in &files {
        let length = image.length_bytes();
        if holes == Holes::Fill && length > MAX_EXPORT_FILLED_BYTES {
            let what = format_args!(
                "the file has {length} bytes, expected at most {MAX_EXPORT_FILLED_BYTES} where holes are filled"
            );
            return Err(Failure::at(path, what));
        }
        match path.symlink_metadata() {
            Ok(_) if existing == Existing::Keep => return Err(Failure::at(path, THERE_ALREADY)),
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                let length = path.file_name().map_or(0, |name| name.len());
                let what = format_args!(
                    "a name of {length} bytes, which is too long for a file, expected a shorter name of the output"
                );
                return Err(Failure::at(path, what));
            }
            _ => {}
        }
    }
    for (path, image) in &files {
        whole(path, existing, |file| export::write(image, file, holes))?;
    }
    Ok(())
}

/// Images up to this length are written with their holes filled, unless somebody says otherwise.
const MAX_READILY_FILLED_BYTES: u64 = 64 << 20;

/// The same, with holes filled where the images are small: whoever reads them takes no data for zeros then.
pub fn dump(path: &Path, existing: Existing, built: Built) -> Result<(), Failure> {
    let names = FileNames::default();
    let mut lengths = built.1.files(&names).map(|(_, image)| image.length_bytes());
    let small = lengths.all(|length| length <= MAX_READILY_FILLED_BYTES);
    write_images(path, existing, built, if small { Holes::Fill } else { Holes::Keep })
}

/// Why a file is not written.
pub const THERE_ALREADY: &str = "the file is there already, expected a new one or --force";

/// Writes a file beside `path`, and renames it when it is whole.
fn whole(
    path: &Path,
    existing: Existing,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), Failure> {
    let told = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::at(path, THERE_ALREADY),
        _ => Failure::at(path, error),
    };
    // Before the work is done; that nothing is overwritten is decided by the rename.
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(told(io::ErrorKind::AlreadyExists.into()));
    }
    // A device or a FIFO would become a file.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return Err(Failure::at(path, "is no regular file, expected a new one"));
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Asked before, because the error of a temporary file names a file that nobody asked for.
    directory.metadata().map_err(told)?;
    corpus::whole(path, directory, existing, write).map_err(told)
}
