//! The facts about an image that `qemu-img info` prints.

use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::layer::FormatLayer;
use crate::formats::vmdk::descriptor::ExtentLine;
use crate::formats::vmdk::head::{Identity, ImageLayout};

use super::extent::ExtentData;
use super::open::Vmdk;

/// The facts about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmdkFacts {
    /// The identity of the image, and the reference to its parent.
    pub identity: Identity,
    /// The size of the disk that a guest sees.
    pub size_bytes: u64,
    /// The type of the disk, as QEMU names it.
    pub create_type: &'static str,
    /// The extents, in the order of the disk.
    pub extents: Vec<ExtentFacts>,
}

/// The facts about an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentFacts {
    /// The number of guest bytes.
    pub length_bytes: u64,
    /// The storage of the guest bytes.
    pub unit: ExtentUnit,
    /// The line of the descriptor. `None` if the image itself is the extent.
    pub line: Option<ExtentLine>,
}

/// The storage of an extent's guest bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentUnit {
    /// The number of guest bytes in a grain; `None` for a flat extent. Some extents of ESX that cannot be read have 0.
    pub grain_bytes: Option<u64>,
    /// Grains are compressed.
    pub is_compressed: bool,
}

/// Returns the facts about an image (QEMU `block/vmdk.c`, `vmdk_get_specific_info`). It does not read the image below.
///
/// # Errors
/// QEMU refuses the image, `layer` lacks the file of an extent, or a read failed.
pub fn vmdk_facts<S: Storage + ?Sized>(layer: &Layer<'_, S>) -> Result<VmdkFacts, MapError> {
    let layout = ImageLayout::read(layer.image)?;
    let vmdk = Vmdk::open_with(layer, &layout, &())?;
    let lines = layout.extents().iter().cloned().map(Some).chain(std::iter::repeat(None));
    let extents = vmdk.extents.iter().zip(lines).map(|(extent, line)| ExtentFacts {
        length_bytes: extent.end.saturating_distance_from(extent.start),
        unit: unit_of(&extent.data),
        line,
    });
    let extents: Vec<ExtentFacts> = extents.collect();
    let create_type = match extents.iter().any(|extent| extent.unit.is_compressed) {
        true => "streamOptimized",
        false => layout.create_type(),
    };
    let size_bytes = vmdk.size_bytes();
    Ok(VmdkFacts { identity: vmdk.identity, size_bytes, create_type, extents })
}

fn unit_of(data: &ExtentData) -> ExtentUnit {
    match data {
        ExtentData::Flat(_) => ExtentUnit { grain_bytes: None, is_compressed: false },
        ExtentData::Sparse(tables) | ExtentData::Indivisible(tables) => ExtentUnit {
            grain_bytes: Some(tables.grain_bytes()),
            is_compressed: tables.is_compressed(),
        },
    }
}
