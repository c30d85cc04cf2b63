//! The descriptor in an image: a text that states what the header leaves open.

use std::io::Write;

use crate::disk::offsets::HostOffset;
use crate::images::image::Image;

use super::form::{DESCRIPTOR_SECTORS, Kind, VmdkForm};

/// The offset of the descriptor, where QEMU looks for it in every sparse extent.
pub const OFFSET: u64 = 512;
/// The length of the longest text. The end of the first kilobyte of an ESX header's unused part is behind it.
const MAX_BYTES: usize = 1024;
/// The parent's identity of an image without a parent.
const NO_PARENT: u32 = u32::MAX;
/// The adapters, with the number of heads that each gives to a disk.
const ADAPTERS: [(&str, u32); 4] =
    [("ide", 16), ("lsilogic", 255), ("buslogic", 255), ("legacyESX", 255)];
/// The number of sectors in a track.
const TRACK_SECTORS: u64 = 63;

// `DESCRIPTOR_SECTORS` has room for the text.
const _: () = assert!(MAX_BYTES < DESCRIPTOR_SECTORS as usize * 512);

/// The parent of an image.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'n> {
    /// The name of its file.
    pub name: &'n [u8],
    /// The identity of its content.
    pub identity: u32,
}

/// Writes the descriptor of an image with the file name `name` and a disk of `capacity` sectors, the identity of its
/// content, and its parent.
pub fn write(
    image: &mut Image,
    form: VmdkForm,
    (name, capacity): (&str, u64),
    (identity, parent): (u32, Option<Parent>),
) {
    let mut text = [0; MAX_BYTES];
    let mut rest = text.as_mut_slice();
    // The buffer has room for the text, because names of files have at most 255 bytes.
    let _ = match form.kind() {
        Kind::Cowd => identities(&mut rest, identity, parent),
        Kind::Sparse { .. } => sparse(&mut rest, form, (name, capacity), (identity, parent)),
    };
    let left = rest.len();
    image.write(HostOffset::new(OFFSET), &text[..MAX_BYTES - left]);
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

fn sparse(
    out: &mut &mut [u8],
    form: VmdkForm,
    (name, capacity): (&str, u64),
    (identity, parent): (u32, Option<Parent>),
) -> std::io::Result<()> {
    let create_type = if form.is_compressed() { "streamOptimized" } else { "monolithicSparse" };
    let (adapter, heads) = ADAPTERS[form.adapter()];
    let cylinders = capacity / (u64::from(heads) * TRACK_SECTORS);
    writeln!(out, "# Disk DescriptorFile\nversion=1")?;
    if form.has_long_descriptor() {
        writeln!(out, "encoding=\"UTF-8\"")?;
    }
    identities(out, identity, parent)?;
    if form.has_long_descriptor() {
        writeln!(out, "isNativeSnapshot=\"no\"")?;
    }
    writeln!(out, "createType=\"{create_type}\"\n")?;
    writeln!(out, "# Extent description\nRW {capacity} SPARSE \"{name}\"\n")?;
    writeln!(out, "# The Disk Data Base\n#DDB\n")?;
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
