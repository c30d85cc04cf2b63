//! The head of an image: its header, and what the header extensions behind it say. The walker opens
//! an image with it, the recount begins with it. And what a file without a word about its format is.

use super::constants::{
    AUTOCLEAR_BITMAPS, BITMAPS_EXTENSION_BYTES, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS,
    EXTENSION_CRYPTO, EXTENSION_DATA_FILE, MAGIC,
};
use super::geometry::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::bitmap::BitmapsExtension;
use crate::formats::qcow2::error::MapError;
use crate::formats::qcow2::extension::{HeaderExtension, each_extension};
use crate::formats::qcow2::header::{Header, PARSED_BYTES};

/// The longest name of a format that QEMU opens.
pub const MAX_FORMAT_BYTES: usize = 15;

/// How files of formats that QEMU would recognize begin, where it is not told the format. To take one of
/// them for a raw disk would be to give wrong data.
const OTHER_FORMATS: [&[u8]; 10] = [
    b"KDMV",
    b"COWD",
    b"conectix",
    b"vhdxfile",
    b"QED\0",
    b"LUKS\xba\xbe",
    b"WithoutFreeSpace",
    b"WithouFreSpacExt",
    b"Bochs Virtual HD Image",
    b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
];

/// What a VDI image has at [`VDI_SIGNATURE_AT`], whoever made it, little-endian (QEMU `block/vdi.c`).
const VDI_SIGNATURE: [u8; 4] = 0xBEDA_107F_u32.to_le_bytes();
const VDI_SIGNATURE_AT: usize = 64;

/// How much of a file is looked at: text before a VMDK descriptor's version may be long.
const PROBED_BYTES: usize = 2048;

/// The format of a file that nobody names, by its first bytes (QEMU `block.c`, `find_image_format`).
///
/// # Errors
/// A format that is neither qcow2 nor raw, or a failing read.
pub fn probe<S: Storage + ?Sized>(storage: &S) -> Result<ImageFormat, MapError> {
    let mut first_bytes = [0; PROBED_BYTES];
    storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
    let [a, b, c, d, e, f, g, h, ..] = first_bytes;
    let version = u32::from_be_bytes([e, f, g, h]);
    match u32::from_be_bytes([a, b, c, d]) {
        MAGIC if version >= 2 => return Ok(ImageFormat::Qcow2),
        MAGIC if version == 1 => {
            return Err(MapError::Unsupported("backing file in the first qcow format"));
        }
        _ => {}
    }
    let vdi =
        first_bytes.get(VDI_SIGNATURE_AT..).is_some_and(|rest| rest.starts_with(&VDI_SIGNATURE));
    let other = OTHER_FORMATS.iter().any(|magic| first_bytes.starts_with(magic));
    if vdi || other || is_vmdk_descriptor(&first_bytes) {
        return Err(MapError::Unsupported("backing file in a format other than qcow2 and raw"));
    }
    Ok(ImageFormat::Raw)
}

/// Whether a text begins with a version, behind comments and empty lines (QEMU `block/vmdk.c`,
/// `vmdk_probe`).
fn is_vmdk_descriptor(first_bytes: &[u8]) -> bool {
    let blank = |line: &&[u8]| {
        line.first() == Some(&b'#') || line.iter().all(|byte| matches!(byte, b' ' | b'\r'))
    };
    let mut lines = first_bytes.split(|byte| *byte == b'\n').skip_while(blank);
    lines.next().is_some_and(|line| line.starts_with(b"version="))
}

/// Where something lies in the first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first byte.
    pub offset: HostOffset,
    /// How many bytes.
    pub length_bytes: u32,
}

/// What a reader needs of an image before it looks at any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The header's fixed part, checked.
    pub header: Header,
    /// The name of the backing file; it ends at its first zero byte at the latest.
    pub backing_name: Option<Field>,
    /// The format of the backing file, in words.
    pub backing_format: Option<Field>,
    /// The name of the external data file.
    pub data_file: Option<Field>,
    /// The bitmaps extension, checked. `None` also where the autoclear bit says that somebody who knows
    /// nothing of bitmaps has written to the image since: then it means nothing.
    pub bitmaps: Option<BitmapsExtension>,
}

impl Head {
    /// Reads the head of the image in `storage`, with the checks that QEMU makes at open
    /// (`block/qcow2.c`, `qcow2_do_open` and `qcow2_read_extensions`).
    ///
    /// # Errors
    /// What is not a qcow2 image, is malformed in its header or its extensions, or cannot be read.
    pub fn read<S: Storage + ?Sized>(storage: &S) -> Result<Self, MapError> {
        let mut first_bytes = [0; PARSED_BYTES];
        storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
        let header = Header::parse(&first_bytes)?;
        let backing_name = backing_name(storage, &header)?;
        let (backing_format, data_file, bitmaps) = (None, None, None);
        let mut head = Self { header, backing_name, backing_format, data_file, bitmaps };
        head.read_extensions(storage)?;
        Ok(head)
    }

    /// The format of the backing file, read from the same storage; `None` where no extension says it.
    ///
    /// # Errors
    /// A format other than qcow2 and raw, or a failing read.
    pub fn backing_format_in<S: Storage + ?Sized>(
        &self,
        storage: &S,
    ) -> Result<Option<ImageFormat>, MapError> {
        let Some(field) = self.backing_format else { return Ok(None) };
        let mut name = [0; MAX_FORMAT_BYTES];
        let unsupported = MapError::Unsupported("backing format other than qcow2 and raw");
        // What has no room in a `usize` has none in the buffer.
        let length = usize::try_from(field.length_bytes).unwrap_or(usize::MAX);
        let Some(name) = name.get_mut(..length) else { return Err(unsupported) };
        storage.read_at(field.offset, name)?;
        // As QEMU has it: an empty name is none.
        match name.first() {
            None | Some(0) => Ok(None),
            Some(_) => ImageFormat::named(name).map(Some).ok_or(unsupported),
        }
    }

    fn read_extensions<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<(), MapError> {
        // A copy, because the extensions fill other fields of `self`.
        let header = self.header.clone();
        each_extension(storage, &header, |extension| self.read_extension(storage, extension))
    }

    fn read_extension<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        extension: HeaderExtension,
    ) -> Result<(), MapError> {
        let HeaderExtension { kind, at, length_bytes } = extension;
        let offset = extension.content();
        let field = Some(Field { offset, length_bytes });
        match kind {
            EXTENSION_BACKING_FORMAT if length_bytes > MAX_FORMAT_BYTES as u32 => {
                return Err(bad_extension(kind, at, "is longer than 15 bytes"));
            }
            EXTENSION_BACKING_FORMAT => self.backing_format = field,
            // Encrypted images are refused before.
            EXTENSION_CRYPTO => {
                let what = "is there, but the image is not encrypted by LUKS";
                return Err(bad_extension(kind, at, what));
            }
            EXTENSION_DATA_FILE => self.data_file = field,
            EXTENSION_BITMAPS => self.read_bitmaps(storage, offset, length_bytes)?,
            _ => {}
        }
        Ok(())
    }

    /// The length must be right even where the rest is not looked at.
    fn read_bitmaps<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        at: HostOffset,
        length_bytes: u32,
    ) -> Result<(), MapError> {
        if usize::try_from(length_bytes) != Ok(BITMAPS_EXTENSION_BYTES) {
            return Err(BitmapsExtension::bad_length(length_bytes));
        }
        if self.header.autoclear & AUTOCLEAR_BITMAPS == 0 {
            return Ok(());
        }
        let mut content = [0; BITMAPS_EXTENSION_BYTES];
        storage.read_at(at, &mut content)?;
        let cluster_size = self.header.geometry.cluster_size;
        self.bitmaps = Some(BitmapsExtension::parse(&content, cluster_size)?);
        Ok(())
    }
}

fn bad_extension(kind: u32, at: u64, what: &'static str) -> MapError {
    MapError::Extension { kind, at, what }
}

/// Where the name of the backing file lies. One of no bytes is none, as is one that begins with a zero:
/// to QEMU it is a string.
fn backing_name<S: Storage + ?Sized>(
    storage: &S,
    header: &Header,
) -> Result<Option<Field>, MapError> {
    let Header { backing_file_offset: offset, backing_file_bytes: length_bytes, .. } = *header;
    if offset == HostOffset::ZERO || length_bytes == 0 {
        return Ok(None);
    }
    let mut first = [0];
    storage.read_at(offset, &mut first)?;
    Ok((first != [0]).then_some(Field { offset, length_bytes }))
}
