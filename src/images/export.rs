//! Export of images to files that qemu-img can open.

pub mod folder;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::image::Image;

/// The treatment of allocated clusters without content. A raw file that has holes keeps them in any case.
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
    match (image.stored.before(image.length_bytes()), holes) {
        (Some(mut parts), _) => parts.try_for_each(|part| write_filled(image, file, part))?,
        (None, Holes::Fill) => return write_filled(image, file, 0..image.length_bytes()),
        (None, Holes::Keep) => {}
    }
    for data in image.written() {
        file.write_all_at(data.bytes, data.offset.get())?;
    }
    Ok(())
}

/// Writes all bytes of a part.
fn write_filled(image: &Image, file: &File, part: Range<u64>) -> io::Result<()> {
    let longest = usize::try_from(part.end - part.start).unwrap_or(usize::MAX).min(1 << 20);
    let mut piece = vec![0; longest];
    let mut at = part.start;
    while at < part.end {
        let left = part.end - at;
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
