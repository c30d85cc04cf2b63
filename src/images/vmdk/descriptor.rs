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

/// Writes the descriptor of an image with the file name `name` and a disk of `capacity` sectors. `identity` is the
/// identity of its content.
pub fn write(image: &mut Image, form: VmdkForm, (name, capacity): (&str, u64), identity: u32) {
    let mut text = [0; MAX_BYTES];
    let mut rest = text.as_mut_slice();
    // The text is shorter than the buffer, unless the name is very long; readers need only its beginning.
    let _ = match form.kind() {
        Kind::Cowd => write!(rest, "CID={identity:08x}\nparentCID={NO_PARENT:08x}\n"),
        Kind::Sparse { .. } => sparse(&mut rest, form, (name, capacity), identity),
    };
    let left = rest.len();
    image.write(HostOffset::new(OFFSET), &text[..MAX_BYTES - left]);
}

fn sparse(
    out: &mut &mut [u8],
    form: VmdkForm,
    (name, capacity): (&str, u64),
    identity: u32,
) -> std::io::Result<()> {
    let create_type = if form.is_compressed() { "streamOptimized" } else { "monolithicSparse" };
    let (adapter, heads) = ADAPTERS[form.adapter()];
    let cylinders = capacity / (u64::from(heads) * TRACK_SECTORS);
    writeln!(out, "# Disk DescriptorFile\nversion=1")?;
    if form.has_long_descriptor() {
        writeln!(out, "encoding=\"UTF-8\"")?;
    }
    writeln!(out, "CID={identity:08x}\nparentCID={NO_PARENT:08x}")?;
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
