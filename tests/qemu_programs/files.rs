//! The files of a program: writes them and checks each.

use std::fs::File;
use std::path::Path;

use qcowfuzz::disk::storage::{FileStorage, Storage};
use qcowfuzz::images::FileNames;
use qcowfuzz::images::Image;
use qcowfuzz::images::Images;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::export::Holes;
use qcowfuzz::internal::images::files::Deviation;

use crate::qemu::{Checked, compare};

/// Writes an image to the file at `path`.
pub fn write_to(path: &Path, image: &Image, holes: Holes) -> Checked<()> {
    let file = File::create(path).map_err(|error| error.to_string())?;
    export::write(image, &file, holes).map_err(|error| error.to_string())
}
/// The lengths of the longest file that file systems can hold, and of the longest that is written without holes.
pub const MAX_FILE_BYTES: u64 = 15 << 40;
const MAX_FILLED_BYTES: u64 = 64 << 20;

/// Returns the length of a file that cannot be written, if there is one: it is longer than file systems allow, or a raw
/// layer that is too long to be written without holes, which `qemu-img map` would report.
pub fn too_long(images: &Images) -> Option<u64> {
    let lengths = images.layers().flat_map(|files| {
        let most = if files.raw { MAX_FILLED_BYTES } else { MAX_FILE_BYTES };
        [(files.image.length_bytes(), most), (files.data_file.length_bytes(), MAX_FILE_BYTES)]
    });
    lengths.into_iter().find(|(length, most)| length > most).map(|(length, _)| length)
}

/// Two of three short chains are written without holes, so that the flag `zero` of data is compared too. Raw layers
/// never have holes.
pub fn export_to(path: &Path, images: &Images, entropy: &mut Entropy) -> Checked<Holes> {
    let names = FileNames::default();
    let longest = images.files(&names).map(|(_, image)| image.length_bytes()).max().unwrap();
    let short = longest <= 8 << 20;
    let holes = if short && !entropy.one_in(3) { Holes::Fill } else { Holes::Keep };
    for (name, image) in images.files(&names) {
        let raw = name.is_some_and(|name| name.ends_with(".raw"));
        let path = name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
        write_to(&path, image, if raw { Holes::Fill } else { holes })?;
    }
    Ok(holes)
}

/// Checks every layer that is an image.
pub fn check_layers(directory: &Path, images: &Images) -> Checked<()> {
    let names = FileNames::default();
    let top = images.layers().len() - 1;
    for (depth, files) in images.layers().enumerate().filter(|(_, files)| !files.raw) {
        let name = if depth == 0 { "layer.qcow2" } else { names.image(top - depth, false) };
        let path = directory.join(name);
        let file = FileStorage::open(&path).map_err(|error| error.to_string())?;
        check(&path, &[&file, &files.image], &files.out_of_date)?;
        unchanged(&file, &files.image)?;
    }
    Ok(())
}

/// Asserts that both checks find nothing but the counts that are meant to be out of date, and that they agree on the
/// end of the last counted cluster.
fn check(path: &Path, storages: &[&dyn Storage], out_of_date: &[Deviation]) -> Checked<()> {
    let (theirs, said) = compare::counts(path, storages)?;
    let too_high = |one: &&Deviation| one.on_disk > one.references;
    let leaks = out_of_date.iter().filter(too_high).count() as u64;
    let flags: u64 = out_of_date.iter().map(|one| one.flags).sum();
    let expected = (out_of_date.len() as u64 - leaks + flags, leaks, 0);
    let quiet = said.is_empty() || !out_of_date.is_empty();
    if (theirs.corruptions, theirs.leaks, theirs.check_errors) != expected || !quiet {
        return Err(format!("qemu-img check: {theirs:?}, expected {out_of_date:?}\n{said}"));
    }
    Ok(())
}

/// Asserts that the tools did not change the file.
fn unchanged(file: &FileStorage, image: &Image) -> Checked<()> {
    let mut bytes = Vec::new();
    for data in image.written() {
        bytes.resize(data.bytes.len(), 0);
        file.read_at(data.offset, &mut bytes).map_err(|error| error.to_string())?;
        compare::same_bytes("the file after it was read", data.offset.get(), data.bytes, &bytes)?;
    }
    Ok(())
}
