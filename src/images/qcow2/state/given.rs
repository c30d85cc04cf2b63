//! The strings and the payloads of an image that are made of bytes which the program gives.

use crate::disk::offsets::HostOffset;
use crate::images::content::STAMP_BYTES;
use crate::images::image::Image;
use crate::images::qcow2::payload::GivenPayload;

/// A string in a builder's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenString {
    start: u32,
    length_bytes: u16,
}

impl GivenString {
    /// Returns the length of the string.
    pub fn length_bytes(self) -> u16 {
        self.length_bytes
    }
}

/// The strings and the payloads of an image.
#[derive(Debug, Default)]
pub struct Given {
    strings: Vec<u8>,
    payloads: Vec<GivenPayload>,
}

impl Given {
    pub fn clear(&mut self) {
        self.strings.clear();
        self.payloads.clear();
    }

    /// Reports whether there is room for another payload.
    pub fn has_room(&self) -> bool {
        self.payloads.len() < usize::from(u16::MAX)
    }

    /// Adds a payload, and returns its index.
    pub fn add_payload(&mut self, payload: GivenPayload) -> u16 {
        self.payloads.push(payload);
        // There was room.
        (self.payloads.len() - 1) as u16
    }

    /// Returns the content behind the stamp of a payload.
    pub fn content(&self, index: u16) -> &[u8] {
        &self.payloads[usize::from(index)].content
    }

    /// Writes a payload with its stamp.
    pub fn write_payload(
        &self,
        image: &mut Image,
        at: HostOffset,
        index: u16,
        stamp: &[u8; STAMP_BYTES],
    ) {
        let GivenPayload { bytes, stamp_at, .. } = &self.payloads[usize::from(index)];
        match stamp_at {
            Some(stamp_at) => {
                let (before, rest) = bytes.split_at(*stamp_at);
                image.write_parts(at, &[before, stamp, &rest[STAMP_BYTES..]], &[]);
            }
            None => image.write(at, bytes),
        }
    }

    /// Returns the bytes of a string.
    pub fn string(&self, string: GivenString) -> &[u8] {
        &self.strings[string.start as usize..][..usize::from(string.length_bytes)]
    }

    /// Adds a string of at most `most` bytes.
    pub fn add_string(&mut self, bytes: &[u8], most: usize) -> GivenString {
        let bytes = bytes.get(..most).unwrap_or(bytes);
        // A program has far less than 4 GiB of bytes, and each string at most 4,095.
        let string =
            GivenString { start: self.strings.len() as u32, length_bytes: bytes.len() as u16 };
        self.strings.extend_from_slice(bytes);
        string
    }
}
