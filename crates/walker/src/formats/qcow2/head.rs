//! The head of an image: the header and its extensions. The walker opens an image with it, and the recount begins
//! with it.

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::BitmapsExtension;
use crate::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, BITMAPS_EXTENSION_BYTES, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS,
    EXTENSION_CRYPTO, EXTENSION_DATA_FILE, EXTENSION_END,
};
use crate::formats::qcow2::header::{Header, PARSED_BYTES};

/// A header extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderExtension {
    /// The type.
    pub kind: u32,
    /// The host offset of the type.
    pub at: u64,
    /// The length of the content, without the padding after it.
    pub length_bytes: u32,
}

impl HeaderExtension {
    /// The length of the type and the length, which precede the content.
    pub const FRONT_BYTES: u64 = 8;

    /// Returns the host offset of the content.
    pub fn content(&self) -> HostOffset {
        // It lies in the first cluster.
        HostOffset::new(self.at + Self::FRONT_BYTES)
    }
}

/// Calls `take` with each extension, the one that ends the list included. Checks that each ends within the extension
/// area, as QEMU does at open (`block/qcow2.c`, `qcow2_read_extensions`).
///
/// # Errors
/// An extension is too long, a read fails, or `take` returns an error.
pub fn each_extension<S: Storage + ?Sized>(
    storage: &S,
    header: &Header,
    mut take: impl FnMut(HeaderExtension) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let area_end = header.extension_area_end();
    let mut at = u64::from(header.header_length_bytes);
    // The first cluster bounds the loop: each extension takes at least eight bytes.
    while at < area_end {
        let mut front = [0; HeaderExtension::FRONT_BYTES as usize];
        storage.read_at(HostOffset::new(at), &mut front)?;
        let [a, b, c, d, length @ ..] = front;
        let (kind, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(length));
        let content = at + HeaderExtension::FRONT_BYTES;
        if content > area_end || u64::from(length) > area_end - content {
            return Err(MapError::ExtensionLength { kind, at, length, area_end });
        }
        take(HeaderExtension { kind, at, length_bytes: length })?;
        if kind == EXTENSION_END {
            break;
        }
        at = content + u64::from(length).next_multiple_of(8);
    }
    Ok(())
}

/// The longest format name that QEMU opens, in bytes.
pub const MAX_FORMAT_BYTES: usize = 15;

/// A range of bytes in the first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The first byte.
    pub offset: HostOffset,
    /// The number of bytes.
    pub length_bytes: u32,
}

impl Field {
    /// Reads a name, which ends before its first zero byte.
    ///
    /// # Errors
    /// The name is too long for this machine, or a read fails.
    pub fn name_in<S: Storage + ?Sized>(self, storage: &S) -> Result<Vec<u8>, MapError> {
        let length = usize::try_from(self.length_bytes);
        let mut name = vec![0; length.map_err(|_| MapError::TooLarge("name of a file"))?];
        storage.read_at(self.offset, &mut name)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }
}

/// The data that a reader needs before it reads any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The header's fixed part, checked.
    pub header: Header,
    /// The name of the backing file; it ends at its first zero byte at the latest.
    pub backing_name: Option<Field>,
    /// The format of the backing file, as text.
    pub backing_format: Option<Field>,
    /// The name of the external data file.
    pub data_file: Option<Field>,
    /// The bitmaps extension, checked. Also `None` if the autoclear bit is not set: then a program that does not
    /// support bitmaps has written to the image, and the extension is invalid.
    pub bitmaps: Option<BitmapsExtension>,
}

impl Head {
    /// Reads the head of the image in `storage`, with the checks that QEMU makes at open
    /// (`block/qcow2.c`, `qcow2_do_open` and `qcow2_read_extensions`).
    ///
    /// # Errors
    /// The file is not a qcow2 image, its header or an extension is malformed, or a read fails.
    pub fn read<S: Storage + ?Sized>(storage: &S) -> Result<Self, MapError> {
        Self::read_with(storage, Header::parse)
    }

    /// Reads the head as [`Head::read`] does, but accepts an image without a refcount table.
    ///
    /// # Errors
    /// As [`Head::read`], with this exception.
    pub fn read_for_check<S: Storage + ?Sized>(storage: &S) -> Result<Self, MapError> {
        Self::read_with(storage, Header::parse_for_check)
    }

    fn read_with<S: Storage + ?Sized>(
        storage: &S,
        parse: impl FnOnce(&[u8; PARSED_BYTES]) -> Result<Header, MapError>,
    ) -> Result<Self, MapError> {
        let mut first_bytes = [0; PARSED_BYTES];
        storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
        let header = parse(&first_bytes)?;
        let backing_name = backing_name(storage, &header)?;
        let (backing_format, data_file, bitmaps) = (None, None, None);
        let mut head = Self { header, backing_name, backing_format, data_file, bitmaps };
        head.read_extensions(storage)?;
        Ok(head)
    }

    /// Returns the format of the backing file, read from the same storage, or `None` if no extension names it.
    ///
    /// # Errors
    /// The format is not one of [`ImageFormat`], or a read fails.
    pub fn backing_format_in<S: Storage + ?Sized>(
        &self,
        storage: &S,
    ) -> Result<Option<ImageFormat>, MapError> {
        let Some(field) = self.backing_format else { return Ok(None) };
        let mut name = [0; MAX_FORMAT_BYTES];
        let unsupported = MapError::Unsupported("backing format that is unknown here");
        // A length that does not fit into a `usize` does not fit into the buffer.
        let length = usize::try_from(field.length_bytes).unwrap_or(usize::MAX);
        let Some(name) = name.get_mut(..length) else { return Err(unsupported) };
        storage.read_at(field.offset, name)?;
        // As in QEMU, an empty name is no name.
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
            // The header check has refused encrypted images.
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

    /// Reads the bitmaps extension. Its length must be right even if the rest is ignored.
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

/// Returns the location of the backing file's name. A name without bytes, or with a zero byte at its start, is no
/// name: QEMU reads it as a string.
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
