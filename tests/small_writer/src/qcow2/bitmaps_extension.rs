//! The header extension that names the directory of bitmaps. A new one comes behind all others.

use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::formats::qcow2::bitmap::BitmapsExtension;
use qcowfuzz::formats::qcow2::constants::{
    BITMAPS_EXTENSION_BYTES, EXTENSION_BITMAPS, EXTENSION_END,
};
use qcowfuzz::formats::qcow2::head::{HeaderExtension, each_extension};

use super::tables::WrittenTables;
use crate::WriteError;

/// The bytes of the extension, and of an extension that ends the list behind it.
const NEW_BYTES: u64 = 2 * HeaderExtension::FRONT_BYTES + BITMAPS_EXTENSION_BYTES as u64;

/// The place of the extension.
#[derive(Clone, Copy, Debug)]
enum ExtensionPlace {
    /// There is one already: the offset of its content.
    Existing(HostOffset),
    /// It takes the place of the extension that ends the list.
    New(HostOffset),
}

impl WrittenTables<'_> {
    /// Reports an error if there is no room for the extension.
    pub(super) fn check_extension_place(&self) -> Result<(), WriteError> {
        self.extension_place().map(|_| ())
    }

    fn extension_place(&self) -> Result<ExtensionPlace, WriteError> {
        let (mut existing, mut end) = (None, None);
        each_extension(self.file, &self.header, |extension| {
            match extension.kind {
                EXTENSION_BITMAPS => existing = Some(extension.content()),
                EXTENSION_END => end = Some(extension.at),
                _ => {}
            }
            Ok(())
        })?;
        let area_end = self.header.extension_area_end();
        let end = end.filter(|at| at.saturating_add(NEW_BYTES) <= area_end);
        match (existing, end) {
            (Some(content), _) => Ok(ExtensionPlace::Existing(content)),
            (None, Some(at)) => Ok(ExtensionPlace::New(HostOffset::new(at))),
            (None, None) => Err(WriteError::Unsupported("bitmaps without room in the header")),
        }
    }

    /// Writes the extension. The caller has cleared the autoclear bit, so readers ignore an extension that is only
    /// partly written.
    pub(super) fn write_extension(&self, directory: &BitmapsExtension) -> Result<(), WriteError> {
        let mut content = [0; BITMAPS_EXTENSION_BYTES];
        content[..4].copy_from_slice(&directory.bitmaps.to_be_bytes());
        content[8..16].copy_from_slice(&directory.directory_bytes.to_be_bytes());
        content[16..].copy_from_slice(&directory.directory_offset.get().to_be_bytes());
        match self.extension_place()? {
            ExtensionPlace::Existing(at) => self.write(at, &content),
            ExtensionPlace::New(at) => {
                let at_content = at + HeaderExtension::FRONT_BYTES;
                self.write(at_content, &content)?;
                let at_end = at_content + content.len() as u64;
                self.write(at_end, &[0; HeaderExtension::FRONT_BYTES as usize])?;
                // Up to here, the list ends before the new bytes.
                self.flush()?;
                let front = u64::from(EXTENSION_BITMAPS) << 32 | BITMAPS_EXTENSION_BYTES as u64;
                self.set_entry(at, front)
            }
        }
    }
}
