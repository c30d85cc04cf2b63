//! Export of images to files that qemu-img can open.

pub mod folder;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::image::Image;

/// The treatment of allocated clusters without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// They stay holes of the file. qemu-img may then report that data read as zeros.
    #[default]
    Keep,
    /// The export writes every byte up to the end of the file, so that `zero` is comparable (QEMU `block/qcow2.c`,
    /// `qcow2_detect_metadata_preallocation`). Only for small images.
    Fill,
}

/// Writes `image` to `file`, which is empty.
///
/// # Errors
/// The system refuses a write.
pub fn write(image: &Image, file: &File, holes: Holes) -> io::Result<()> {
    file.set_len(image.length_bytes())?;
    if holes == Holes::Fill {
        return write_filled(image, file);
    }
    for data in image.written() {
        file.write_all_at(data.bytes, data.offset.get())?;
    }
    Ok(())
}

fn write_filled(image: &Image, file: &File) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < image.length_bytes() {
        let left = image.length_bytes() - at;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        let piece = &mut piece[..length];
        image
            .read_at(HostOffset::new(at), piece)
            .map_err(|error| io::Error::new(error.kind, error))?;
        file.write_all_at(piece, at)?;
        at += length as u64;
    }
    Ok(())
}
