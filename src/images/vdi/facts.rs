//! Facts about VDI images, as data: the messages about them, and sectors of guest data that look like one.

use bytes::BufMut;

use crate::base::reasons::ReasonClass::{CheckFindings, Invalid, NotThisFormat, Unsupported};
use crate::base::reasons::{FormatMessages, family};
use crate::images::content::{LOOK_BYTES, LookForm};

/// The messages, and the faults for which QEMU's message has another class than ours (QEMU 10.0.2).
pub(super) const FORMAT_MESSAGES: FormatMessages = FormatMessages {
    ours: &[
        family(": block index ", CheckFindings, "formats::vdi::check"),
        family("allocated blocks mismatch", CheckFindings, "formats::vdi::check"),
        family("the signature is not 0xbeda107f", NotThisFormat, "MapError::NotImage, VDI"),
    ],
    qemu: &[
        family("Image not in VDI format", NotThisFormat, "block/vdi.c, vdi_open"),
        family("Unsupported VDI image size", Invalid, "block/vdi.c, vdi_open"),
        family("unsupported VDI image (version", Unsupported, "block/vdi.c, vdi_open"),
        family("unsupported VDI image (non-NULL", Unsupported, "block/vdi.c, vdi_open"),
        family("unsupported VDI image (", Invalid, "block/vdi.c, vdi_open"),
    ],
    pairs: &[],
};

/// Sectors of guest data that look like an image.
pub(crate) const LOOKS: &[LookForm] = &[LookForm::first(9, "vdi", header)];

/// Writes the header of an image.
fn header(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    let mut text = [0; 64];
    let about = b"<<< QEMU VM Virtual Disk Image >>>\n";
    text[..about.len()].copy_from_slice(about);
    out.put_slice(&text);
    // Signature, version, length of the header.
    out.put_u32_le(0xbeda_107f);
    out.put_u32_le(0x1_0001);
    out.put_u32_le(0x180);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_lies_behind_a_text() {
        let mut sector = [0; LOOK_BYTES];
        header(&mut sector);
        assert_eq!(sector[64..68], [0x7f, 0x10, 0xda, 0xbe]);
    }
}
