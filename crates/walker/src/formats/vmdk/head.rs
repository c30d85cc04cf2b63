//! The parts of an image that do not depend on other files: its layout, its identity and the name of its parent.
//!
//! # Arithmetic
//! A file has less than 2^63 bytes, and a descriptor at most 2^20, so that neither length saturates.

use super::constants::{
    COWD_MAGIC, EMBEDDED_DESCRIPTOR_AT, HEADER_BYTES, IDENTITY_BYTES, MAX_DESCRIPTOR_BYTES,
    MAX_PARENT_NAME_BYTES, PARENT_NAME, SECTOR_BYTES, SPARSE_MAGIC,
};
use super::descriptor::{self, ExtentLine, Scanner, after, text_of};
use super::headers::SparseHeader;
use super::tables::table_at;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

/// The layout of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageLayout {
    /// The image is a sparse extent.
    Sparse {
        /// The extent is one that ESX writes.
        is_esx: bool,
    },
    /// The image names the files of its extents.
    Descriptor {
        /// The type of the disk.
        create_type: &'static str,
        /// The extents that count, in the order of the disk.
        extents: Vec<ExtentLine>,
        /// The descriptor lies in a file that begins like a sparse extent.
        is_embedded: bool,
    },
}

impl ImageLayout {
    /// Reads the layout of an image.
    ///
    /// # Errors
    /// QEMU refuses the descriptor, or a read failed.
    pub fn read<S: Storage + ?Sized>(image: &S) -> Result<Self, MapError> {
        let first = first_sector(image)?;
        if first.starts_with(&COWD_MAGIC) {
            return Ok(Self::Sparse { is_esx: true });
        }
        let is_embedded = first.starts_with(&SPARSE_MAGIC);
        let header = SparseHeader::read(&first);
        let sector = match is_embedded {
            true if !header.is_descriptor() => return Ok(Self::Sparse { is_esx: false }),
            true => header.descriptor_sector,
            false => 0,
        };
        let length = sectors_of(image).saturating_mul(SECTOR_BYTES).min(MAX_DESCRIPTOR_BYTES);
        let offset = table_at(sector, length)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        image.read_at(offset, &mut bytes)?;
        let text = text_of(&bytes);
        let create_type = descriptor::create_type(text)?;
        Ok(Self::Descriptor { create_type, extents: descriptor::extents(text)?, is_embedded })
    }

    /// Returns the extents of a descriptor.
    pub fn extents(&self) -> &[ExtentLine] {
        match self {
            Self::Sparse { .. } => &[],
            Self::Descriptor { extents, .. } => extents,
        }
    }

    /// Returns the type of the disk; an empty text if QEMU gives it none. QEMU changes the type of a disk with
    /// compressed extents to `streamOptimized`.
    pub fn create_type(&self) -> &'static str {
        match self {
            Self::Sparse { is_esx: true } => "",
            Self::Sparse { is_esx: false } => "monolithicSparse",
            Self::Descriptor { create_type, .. } => create_type,
        }
    }
}

/// Returns the first sector of an image or an extent.
///
/// # Errors
/// The file is empty, or a read failed.
pub fn first_sector<S: Storage + ?Sized>(file: &S) -> Result<[u8; HEADER_BYTES], MapError> {
    if file.length_bytes() == 0 {
        return Err(MapError::NotImage { format: "vmdk", what: "the file is empty" });
    }
    let mut first = [0; HEADER_BYTES];
    file.read_at(HostOffset::ZERO, &mut first)?;
    Ok(first)
}

/// Returns the length of a file in sectors, as QEMU sees it: the last sector counts whole.
pub fn sectors_of<S: Storage + ?Sized>(file: &S) -> u64 {
    file.length_bytes().div_ceil(SECTOR_BYTES)
}

/// The identity of an image, and the reference to its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The identity of the content (`CID`).
    pub content: u32,
    /// The identity of the parent's content when the image was created (`parentCID`).
    pub parent_content: u32,
    /// The name of the parent (`parentFileNameHint`); never empty.
    pub parent_name: Option<Vec<u8>>,
}

impl Identity {
    /// Reads the identity of an image with this layout.
    ///
    /// # Errors
    /// QEMU refuses a field, or a read failed (`block/vmdk.c`, `vmdk_parent_open` and `vmdk_read_cid`).
    pub fn read<S: Storage + ?Sized>(image: &S, layout: &ImageLayout) -> Result<Self, MapError> {
        let at = match layout {
            ImageLayout::Descriptor { is_embedded: false, .. } => 0,
            ImageLayout::Descriptor { is_embedded: true, .. } | ImageLayout::Sparse { .. } => {
                EMBEDDED_DESCRIPTOR_AT
            }
        };
        let mut bytes = vec![0; IDENTITY_BYTES];
        image.read_at(HostOffset::new(at), &mut bytes)?;
        let parent_name = parent_name(&bytes)?;
        // The last byte does not count in the search for numbers.
        if let Some(last) = bytes.last_mut() {
            *last = 0;
        }
        let missing = |what| MapError::NotImage { format: "vmdk", what };
        Ok(Self {
            content: number(&bytes, b"CID").ok_or(missing("no CID in the descriptor"))?,
            parent_content: number(&bytes, b"parentCID")
                .ok_or(missing("no parentCID in the descriptor"))?,
            parent_name,
        })
    }
}

/// Returns the name of the parent: it begins two bytes behind the name of the field, even if the text ends before that.
fn parent_name(bytes: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
    let Some(at) = after(text_of(bytes), PARENT_NAME) else { return Ok(None) };
    let value = at.checked_add(2).and_then(|at| bytes.get(at..)).unwrap_or_default();
    let mut parts = text_of(value).splitn(2, |byte| *byte == b'"');
    match (parts.next(), parts.next()) {
        (Some([]), Some(_)) => Ok(None),
        (Some(name), Some(_)) if name.len() <= MAX_PARENT_NAME_BYTES => Ok(Some(name.to_vec())),
        _ => Err(MapError::NotImage {
            format: "vmdk",
            what: "the name of the parent in the descriptor has no end, or is too long",
        }),
    }
}

/// Returns the number that begins one byte behind the first `name`, even if the text ends before that.
fn number(bytes: &[u8], name: &[u8]) -> Option<u32> {
    let at = after(text_of(bytes), name)?;
    Scanner::new(text_of(bytes.get(at.checked_add(1)?..)?)).hexadecimal()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> Option<Identity> {
        let (create_type, extents) = ("vmfs", Vec::new());
        let layout = ImageLayout::Descriptor { create_type, extents, is_embedded: false };
        Identity::read(text.as_bytes(), &layout).ok()
    }

    fn of(content: u32, parent_content: u32, parent_name: Option<&str>) -> Option<Identity> {
        let parent_name = parent_name.map(|name| name.as_bytes().to_vec());
        Some(Identity { content, parent_content, parent_name })
    }

    #[test]
    fn identities_are_found_by_their_names() {
        assert_eq!(identity("CID=12\nparentCID=ab\n"), of(0x12, 0xab, None));
        // The first field that contains the letters counts.
        assert_eq!(identity("parentCID=ab"), of(0xab, 0xab, None));
        assert_eq!(identity("CID: 1\nparentCID\n 2"), of(1, 2, None));
        // The text ends, and the number follows.
        assert_eq!(identity("parentCID\0ab"), of(0xab, 0xab, None));
        assert_eq!(identity("CID=12"), None);
        assert_eq!(identity("CID=x\nparentCID=1"), None);
    }

    #[test]
    fn the_parent_is_a_quoted_name() {
        let named = |hint: &str| identity(&format!("{hint}\nparentCID=1"));
        assert_eq!(named("parentFileNameHint=\"a b\""), of(1, 1, Some("a b")));
        assert_eq!(named("parentFileNameHint=\"\""), of(1, 1, None));
        assert_eq!(identity("parentCID=1\nparentFileNameHint=\"a"), None);
        let long = |length| format!("parentFileNameHint=\"{}\"", "a".repeat(length));
        assert!(named(&long(4095)).is_some() && named(&long(4096)).is_none());
    }
}
