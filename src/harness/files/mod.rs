//! The files of an image chain, as an engine gets them: in memory. The harness counts the accesses, logs writes, and
//! lets reads fail where a program says so. A file of any content is an input by itself: here is the format in which an
//! engine gets it, and the files beside it.

pub mod chain;
mod chain_file;
pub(crate) mod device;
pub(crate) mod file_faults;
pub(crate) mod meter;
pub mod stream;
#[cfg(feature = "fuzzer")]
mod taken_back;
pub mod turns;
pub(crate) mod write_log;
mod written_file;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::{ImageLayout, SPARSE_MAGIC, probe};
use crate::harness::engine::claims::Claims;
use crate::images::files::LayerFiles;
use crate::images::format::list::drawer;

/// Returns the format of a file among those that the engine opens, and the number of files beside it, which have the
/// same bytes: a descriptor stands for the file of each extent. A file of any other format is given to the engine
/// as a qcow2 image, which it must refuse.
pub(crate) fn format_of(file: &[u8], claims: &Claims) -> (ImageFormat, usize) {
    let format = format_of_any(file);
    match claims.knows(format) {
        true if format.facts().has_extents => {
            let layout = ImageLayout::read(file);
            (format, layout.map_or(0, |layout| layout.extents().len()))
        }
        true => (format, 0),
        false => (ImageFormat::Qcow2, 0),
    }
}

/// Returns the format of a file, for an engine that opens all of them.
pub(crate) fn format_of_any(file: &[u8]) -> ImageFormat {
    match probe(file) {
        // Every file is a raw image. Some disks have a mark only at their end.
        Ok(ImageFormat::Raw) => ends_like(file).unwrap_or(ImageFormat::Qcow2),
        Ok(format) => format,
        Err(_) => ImageFormat::Qcow2,
    }
}

/// Reports whether the files beside a file of any content may be sparse extents, which may end inside a grain. Such a
/// file is a sparse extent only if it also begins like one.
pub(crate) fn may_split_grains(files: &LayerFiles) -> bool {
    let mut magic = [0; SPARSE_MAGIC.len()];
    let begins_sparse = files.image.read_at(HostOffset::ZERO, &mut magic).is_ok();
    !files.extents.all().is_empty() && begins_sparse && magic == SPARSE_MAGIC
}

fn ends_like(file: &[u8]) -> Option<ImageFormat> {
    ImageFormat::ALL.into_iter().find(|format| drawer(*format).ends_like_image(file))
}
