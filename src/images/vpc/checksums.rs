//! The checksums of a VHD image.

use crate::formats::anatomy::SealKind;
use crate::formats::vpc::constants::{
    COOKIE, DYNAMIC_CHECKSUM_AT, DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES,
    FOOTER_CHECKSUM_AT,
};
use crate::images::sealed::{part, seal};

/// The offset of the dynamic header's offset in a footer.
const DATA_OFFSET_AT: usize = 16;

/// Corrects both footers, and the dynamic headers that they name.
pub fn correct(file: &mut [u8]) {
    let last = file.len().saturating_sub(FOOTER_BYTES);
    for at in [0, last] {
        let Some(footer) = part(file, at, FOOTER_BYTES) else { continue };
        if !footer.starts_with(&COOKIE) {
            continue;
        }
        seal(footer, FOOTER_CHECKSUM_AT, SealKind::ComplementOfSum);
        let offset = footer.get(DATA_OFFSET_AT..).and_then(|rest| rest.first_chunk());
        let at = offset.and_then(|offset| usize::try_from(u64::from_be_bytes(*offset)).ok());
        if let Some(header) = at.and_then(|at| part(file, at, DYNAMIC_HEADER_BYTES))
            && header.starts_with(&DYNAMIC_COOKIE)
        {
            seal(header, DYNAMIC_CHECKSUM_AT, SealKind::ComplementOfSum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_readers_expect() {
        let mut vhd = vec![0; 2048];
        vhd[..8].copy_from_slice(&COOKIE);
        vhd[DATA_OFFSET_AT..24].copy_from_slice(&512u64.to_be_bytes());
        vhd[512..520].copy_from_slice(&DYNAMIC_COOKIE);
        vhd[1536..1544].copy_from_slice(&COOKIE);
        correct(&mut vhd);
        let sum = |bytes: &[u8], at: usize| {
            let own = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let all: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
            let own_bytes: u32 = bytes[at..at + 4].iter().map(|byte| u32::from(*byte)).sum();
            (own, !(all - own_bytes))
        };
        for (structure, at) in [(&vhd[..512], 64), (&vhd[512..1536], 36), (&vhd[1536..], 64)] {
            let (stored, expected) = sum(structure, at);
            assert_eq!(stored, expected);
        }
        // Files that are cut anywhere do not panic.
        for length in 0..vhd.len() / 100 {
            correct(&mut vhd[..length * 100]);
        }
    }
}
