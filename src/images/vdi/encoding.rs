//! The bytes of a header, as the build writes them. All numbers are little-endian.

use crate::formats::vdi::constants::header;

use super::form::{VDI_BLOCK_BYTES, VDI_HEADER_BYTES, VDI_SECTOR_BYTES, VdiForm};

/// The texts at the beginning of files, of QEMU and of VirtualBox over time.
const TEXTS: [&str; 4] = [
    "<<< QEMU VM Virtual Disk Image >>>\n",
    "<<< innotek VirtualBox Disk Image >>>\n",
    "<<< Sun VirtualBox Disk Image >>>\n",
    "<<< Oracle VM VirtualBox Disk Image >>>\n",
];

/// The numbers that a header states.
#[derive(Clone, Copy, Debug)]
pub struct HeaderFields {
    /// The size of the disk.
    pub size_bytes: u64,
    /// The number of entries of the block map.
    pub entries: u64,
    /// The number of stored blocks.
    pub allocated: u64,
}

impl HeaderFields {
    /// Returns the bytes of the header of an image of this form.
    pub fn encode(&self, form: VdiForm) -> [u8; VDI_HEADER_BYTES] {
        let mut bytes = [0; VDI_HEADER_BYTES];
        let text = TEXTS[form.text()].as_bytes();
        bytes[..text.len()].copy_from_slice(text);
        let decoration = form.decoration();
        for (field, value) in [
            (header::SIGNATURE, 0xbeda_107f),
            (header::VERSION, 1 << 16 | 1),
            (header::HEADER_SIZE, if form.has_long_header() { 400 } else { 384 }),
            (header::IMAGE_TYPE, if form.is_static() { 2 } else { 1 }),
            (header::IMAGE_FLAGS, u64::from(decoration & 3)),
            (header::OFFSET_BMAP, form.map_offset()),
            (header::OFFSET_DATA, form.data_offset()),
            (header::SECTOR_SIZE, VDI_SECTOR_BYTES),
            (header::DISK_SIZE, self.size_bytes),
            (header::BLOCK_SIZE, VDI_BLOCK_BYTES),
            (header::BLOCKS_IN_IMAGE, self.entries),
            (header::BLOCKS_ALLOCATED, self.allocated),
            (header::UUID_IMAGE, u64::from_le_bytes([decoration; 8])),
            (header::UUID_LAST_SNAP, u64::from_le_bytes([decoration / 2; 8])),
        ] {
            let number = value.to_le_bytes();
            bytes[field.at..][..field.width_bytes].copy_from_slice(&number[..field.width_bytes]);
        }
        bytes
    }
}
