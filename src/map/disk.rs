//! Opening an image.

use crate::qcow2::header::{EXTENSION_END, Geometry, Header, INCOMPATIBLE_DATA_FILE, PARSED_BYTES};
use crate::qcow2::units::HostOffset;
use crate::storage::Storage;

use super::MapError;

/// An opened image: its header, checked, and where its bytes come from.
#[derive(Debug)]
pub struct Disk<'s, S: Storage + ?Sized> {
    pub(super) storage: &'s S,
    header: Header,
}

impl<'s, S: Storage + ?Sized> Disk<'s, S> {
    /// Opens the image in `storage`, with the checks that QEMU makes.
    ///
    /// # Errors
    /// What is not a qcow2 image, is malformed in its header, or uses a feature that is not
    /// supported: encryption, a backing file, an external data file.
    pub fn open(storage: &'s S) -> Result<Self, MapError> {
        let mut first_bytes = [0; PARSED_BYTES];
        storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
        let header = Header::parse(&first_bytes)?;
        check_extensions(storage, &header)?;
        if header.backing_file_offset.get() != 0 {
            return Err(MapError::Unsupported("backing file"));
        }
        if header.incompatible & INCOMPATIBLE_DATA_FILE != 0 {
            return Err(MapError::Unsupported("external data file"));
        }
        Ok(Self { storage, header })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What decides the meaning of the tables.
    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }

    /// The size of the disk that a guest sees, a multiple of 512.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.header.virtual_size_bytes()
    }
}

/// Extensions must end where their area ends (QEMU `block/qcow2.c`, `qcow2_read_extensions`).
fn check_extensions<S: Storage + ?Sized>(storage: &S, header: &Header) -> Result<(), MapError> {
    let area_end = header.extension_area_end();
    let mut at = u64::from(header.header_length_bytes);
    // Bounded by the first cluster: each extension takes at least eight bytes of it.
    while at < area_end {
        let mut head = [0; 8];
        storage.read_at(HostOffset::new(at), &mut head)?;
        let [a, b, c, d, rest @ ..] = head;
        let (kind, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(rest));
        at += 8;
        if at > area_end || u64::from(length) > area_end - at {
            return Err(MapError::ExtensionLength { kind, at: at - 8, length, area_end });
        }
        if kind == EXTENSION_END {
            break;
        }
        at += u64::from(length).next_multiple_of(8);
    }
    Ok(())
}
