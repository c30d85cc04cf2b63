//! The descriptor: a text that states what headers leave open, in the image or in a file of its own.

use std::io::Write;

use smallvec::SmallVec;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::disk::offsets::HostOffset;
use crate::formats::vmdk::constants::{EMBEDDED_DESCRIPTOR_AT, SECTOR_BYTES};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;
use crate::images::format::file_plan::{ExtentForm, ExtentPlan};

use super::form::{DESCRIPTOR_SECTORS, Kind, VmdkForm};

/// The length of the longest text in an image. The end of the first kilobyte of an ESX header's unused part is behind
/// it.
const LONGEST_EMBEDDED_BYTES: usize = 1024;
/// The length of the longest text in a file of its own: names of files have at most 255 bytes.
const LONGEST_FILE_BYTES: usize = 4096;
/// The parent's identity of an image without a parent.
const NO_PARENT: u32 = u32::MAX;
/// The adapters, with the number of heads that each gives to a disk.
const ADAPTERS: [(&str, u32); 4] =
    [("ide", 16), ("lsilogic", 255), ("buslogic", 255), ("legacyESX", 255)];
/// The number of sectors in a track.
const TRACK_SECTORS: u64 = 63;

// `DESCRIPTOR_SECTORS` has room for the text.
const _: () = assert!(LONGEST_EMBEDDED_BYTES < (DESCRIPTOR_SECTORS * SECTOR_BYTES) as usize);

/// The parent of an image.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'n> {
    /// The name of its file.
    pub name: &'n [u8],
    /// The identity of its content.
    pub identity: u32,
}

/// An extent, as a line of the text states it.
struct ExtentText<'n> {
    sectors: u64,
    kind: &'static str,
    name: &'n str,
    /// The first sector of flat data.
    offset: Option<u64>,
}

/// The type of a disk, and its extents.
struct DiskText<'e, 'n> {
    create_type: &'static str,
    extents: &'e [ExtentText<'n>],
}

/// Writes the descriptor into an image with the file name `name` and a disk of `capacity` sectors, with the identity of
/// its content, and its parent.
pub fn write_embedded(
    image: &mut Image,
    form: VmdkForm,
    (name, capacity): (&str, u64),
    (identity, parent): (u32, Option<Parent>),
) {
    let mut text = [0; LONGEST_EMBEDDED_BYTES];
    let mut rest = text.as_mut_slice();
    let create_type = if form.is_compressed() { "streamOptimized" } else { "monolithicSparse" };
    let extents = [ExtentText { sectors: capacity, kind: "SPARSE", name, offset: None }];
    let disk = DiskText { create_type, extents: &extents };
    // The buffer has room for the text, because names of files have at most 255 bytes.
    let _ = match form.kind() {
        Kind::Cowd => identities(&mut rest, identity, parent),
        Kind::Sparse { .. } => lines(&mut rest, form, &disk, (identity, parent)),
    };
    let left = rest.len();
    image.write(HostOffset::new(EMBEDDED_DESCRIPTOR_AT), &text[..LONGEST_EMBEDDED_BYTES - left]);
}

/// Makes the image a descriptor of extents, each with its number of sectors, in the files beside it.
pub fn write_file(
    files: &mut LayerFiles,
    form: VmdkForm,
    extents: &[(ExtentPlan, u64)],
    (identity, parent): (u32, Option<Parent>),
) {
    let mut text = [0; LONGEST_FILE_BYTES];
    let mut rest = text.as_mut_slice();
    let named = extents.iter().zip(&files.extent_names);
    let texts: SmallVec<[ExtentText; MAX_EXTENT_FILES]> = named
        .map(|((plan, sectors), name)| ExtentText {
            sectors: *sectors,
            kind: kind_word(plan.form),
            name,
            offset: (plan.form == ExtentForm::Flat).then_some(plan.lead_bytes / SECTOR_BYTES),
        })
        .collect();
    let disk = DiskText { create_type: create_type(extents), extents: &texts };
    // As above.
    let _ = lines(&mut rest, form, &disk, (identity, parent));
    let length = LONGEST_FILE_BYTES - rest.len();
    files.image.write(HostOffset::ZERO, &text[..length]);
    files.image.seal(length as u64);
}

/// Returns the type of a disk by its first extent. Readers take the kind of each extent from its line.
fn create_type(extents: &[(ExtentPlan, u64)]) -> &'static str {
    let is_alone = extents.len() == 1;
    match extents.first().map(|(plan, _)| plan.form) {
        Some(ExtentForm::Flat) if is_alone => "monolithicFlat",
        None | Some(ExtentForm::Flat) => "twoGbMaxExtentFlat",
        Some(ExtentForm::Vmfs) => "vmfs",
        Some(ExtentForm::Sparse) => "twoGbMaxExtentSparse",
        Some(ExtentForm::Cowd) => "vmfsSparse",
        Some(ExtentForm::SeSparse) => "seSparse",
    }
}

fn kind_word(form: ExtentForm) -> &'static str {
    match form {
        ExtentForm::Flat => "FLAT",
        ExtentForm::Vmfs => "VMFS",
        ExtentForm::Sparse => "SPARSE",
        ExtentForm::Cowd => "VMFSSPARSE",
        ExtentForm::SeSparse => "SESPARSE",
    }
}

/// Writes the lines that readers search for in every kind of descriptor.
fn identities(out: &mut &mut [u8], identity: u32, parent: Option<Parent>) -> std::io::Result<()> {
    let parent_identity = parent.map_or(NO_PARENT, |parent| parent.identity);
    writeln!(out, "CID={identity:08x}\nparentCID={parent_identity:08x}")?;
    let Some(Parent { name, .. }) = parent else { return Ok(()) };
    out.write_all(b"parentFileNameHint=\"")?;
    out.write_all(name)?;
    out.write_all(b"\"\n")
}

fn lines(
    out: &mut &mut [u8],
    form: VmdkForm,
    disk: &DiskText,
    (identity, parent): (u32, Option<Parent>),
) -> std::io::Result<()> {
    let (adapter, heads) = ADAPTERS[form.adapter()];
    let capacity: u64 = disk.extents.iter().map(|extent| extent.sectors).sum();
    let cylinders = capacity / (u64::from(heads) * TRACK_SECTORS);
    writeln!(out, "# Disk DescriptorFile\nversion=1")?;
    if form.has_long_descriptor() {
        writeln!(out, "encoding=\"UTF-8\"")?;
    }
    identities(out, identity, parent)?;
    if form.has_long_descriptor() {
        writeln!(out, "isNativeSnapshot=\"no\"")?;
    }
    writeln!(out, "createType=\"{}\"\n\n# Extent description", disk.create_type)?;
    for ExtentText { sectors, kind, name, offset } in disk.extents {
        write!(out, "RW {sectors} {kind} \"{name}\"")?;
        match offset {
            Some(offset) => writeln!(out, " {offset}")?,
            None => writeln!(out)?,
        }
    }
    writeln!(out, "\n# The Disk Data Base\n#DDB\n")?;
    writeln!(out, "ddb.virtualHWVersion = \"4\"")?;
    writeln!(out, "ddb.geometry.cylinders = \"{cylinders}\"")?;
    writeln!(out, "ddb.geometry.heads = \"{heads}\"")?;
    writeln!(out, "ddb.geometry.sectors = \"{TRACK_SECTORS}\"")?;
    writeln!(out, "ddb.adapterType = \"{adapter}\"")?;
    match form.has_long_descriptor() {
        true => writeln!(out, "ddb.longContentID = \"{:032x}\"", u128::from(identity)),
        false => Ok(()),
    }
}
