//! The facts about a VMDK image.

use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::walkers::{ExtentFacts, VmdkFacts, vmdk_facts};

use super::record::{Child, Detail, Details, FormatSpecific, InfoRecord};
use super::text::Text;

/// Fills in the facts about the image (QEMU `block/vmdk.c`, `vmdk_co_get_info`, `vmdk_get_specific_info`). `layer` has
/// the files of its extents; the image below is not read.
///
/// # Errors
/// QEMU refuses the image, the image has no extent, `layer` lacks the file of one, or a read failed.
pub fn describe<S: Storage + ?Sized>(
    info: &mut InfoRecord,
    layer: &Layer<'_, S>,
) -> Result<(), MapError> {
    let VmdkFacts { identity, size_bytes, create_type, extents } = vmdk_facts(layer)?;
    // qemu-img aborts here.
    let Some(first) = extents.first() else {
        let what = "the descriptor names no extent";
        return Err(MapError::NotImage { format: "vmdk", what });
    };
    info.virtual_size = size_bytes;
    // QEMU prints neither the grain nor the flag if the extents differ.
    if extents.iter().all(|extent| extent.unit == first.unit) {
        info.cluster_size = first.unit.grain_bytes.filter(|bytes| *bytes != 0);
        info.dirty_flag = Some(false);
    }
    if let Some(name) = &identity.parent_name {
        info.set_backing_file(Text::new(name), Some(Text::new(b"vmdk")));
    }
    add_files(info, &extents, layer)?;
    let extents = extents.iter().map(|extent| details_of(extent, &info.filename)).collect();
    let data = Details(vec![
        ("cid", Detail::Number(identity.content.into())),
        ("parent-cid", Detail::Number(identity.parent_content.into())),
        ("create-type", Detail::Text(Text::new(create_type.as_bytes()))),
        ("extents", Detail::List(extents)),
    ]);
    info.format_specific = Some(FormatSpecific { kind: info.format, data });
    Ok(())
}

/// Adds the files of the extents: the last one first, before the image itself, as QEMU lists them. A file counts once
/// for each extent.
fn add_files<S: Storage + ?Sized>(
    info: &mut InfoRecord,
    extents: &[ExtentFacts],
    layer: &Layer<'_, S>,
) -> Result<(), MapError> {
    let mut children = Vec::new();
    for (index, (extent, file)) in extents.iter().zip(layer.extents).enumerate() {
        let filename = filename_of(extent, &info.filename);
        let child = Child::file(format!("extents.{index}"), filename, &**file)?;
        let sizes = info.actual_size.zip(child.info.actual_size);
        info.actual_size = sizes.and_then(|(sum, size)| sum.checked_add(size));
        children.push(child);
    }
    info.children.splice(0..0, children.into_iter().rev());
    Ok(())
}

/// Returns the facts about an extent of the image that is called `image`.
fn details_of(extent: &ExtentFacts, image: &Text) -> Detail {
    let mut details = Vec::new();
    if extent.unit.is_compressed {
        details.push(("compressed", Detail::Flag(true)));
    }
    details.push(("virtual-size", Detail::Number(extent.length_bytes)));
    details.push(("filename", Detail::Text(filename_of(extent, image))));
    if let Some(bytes) = extent.unit.grain_bytes {
        details.push(("cluster-size", Detail::Number(bytes)));
    }
    // An image that is an extent itself has no line, and QEMU prints an empty text.
    let kind = extent.line.as_ref().map_or("", |line| line.kind_name);
    details.push(("format", Detail::Text(Text::new(kind.as_bytes()))));
    Detail::Group(Details(details))
}

/// Returns the name of the file of an extent.
fn filename_of(extent: &ExtentFacts, image: &Text) -> Text {
    match &extent.line {
        Some(line) => Text::new(&line.name).resolved_against(image),
        None => image.clone(),
    }
}
