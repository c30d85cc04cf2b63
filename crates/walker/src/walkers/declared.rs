//! The declarations of an image beside its disk: the names of other files, and the numbers of snapshots and bitmaps.

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::vmdk::head::{Identity, ImageLayout};

/// The declarations of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The name of the image below it; empty if there is none.
    pub backing_name: Vec<u8>,
    /// The name of the external data file; empty if there is none.
    pub data_file_name: Vec<u8>,
    /// The number of snapshots. Only qcow2 images have any.
    pub snapshots: usize,
    /// The number of persistent bitmaps. Only qcow2 images have any.
    pub bitmaps: usize,
}

/// Reads the declarations of the image of `layer`. Opens no other file.
///
/// # Errors
/// QEMU refuses the image, or a read failed.
pub fn declared<S: Storage + ?Sized>(
    format: ImageFormat,
    layer: &Layer<'_, S>,
) -> Result<Declared, MapError> {
    match format {
        ImageFormat::Qcow2 => declared_by_qcow2(layer.image),
        ImageFormat::Vmdk => {
            let layout = ImageLayout::read(layer.image)?;
            let parent = Identity::read(layer.image, &layout)?.parent_name;
            // Without a parent, the name is empty.
            Ok(Declared { backing_name: parent.unwrap_or_default(), ..Declared::default() })
        }
        ImageFormat::Raw | ImageFormat::Vpc | ImageFormat::Vhdx => Ok(Declared::default()),
    }
}

fn declared_by_qcow2<S: Storage + ?Sized>(image: &S) -> Result<Declared, MapError> {
    let head = Head::read(image)?;
    let data_file = head.data_file.filter(|_| head.header.geometry.data_file);
    // Without a field, the name is empty.
    let name = |field: Option<Field>| field.map_or(Ok(Vec::new()), |field| field.name_in(image));
    Ok(Declared {
        backing_name: name(head.backing_name)?,
        data_file_name: name(data_file)?,
        snapshots: count(head.header.snapshots),
        bitmaps: head.bitmaps.map_or(0, |extension| count(extension.bitmaps)),
    })
}

/// Returns a number of the header. The largest one stands for those that do not fit, which no reader could count.
fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
