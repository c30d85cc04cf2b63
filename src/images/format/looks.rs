//! All sectors of guest data that look like the beginning or the end of a file: those that formats declare, and others,
//! such as a partition table.

use std::sync::LazyLock;

use bytes::BufMut;

use crate::disk::image_format::for_each_other_format;
use crate::images;
use crate::images::content::{LOOK_BYTES, Look, LookForm};

/// The looks that no other format declares.
const GENERAL: &[LookForm] = &[
    LookForm::first(0, "mbr", mbr),
    LookForm::first(1, "qcow2", qcow2),
    LookForm::first(8, "luks", |sector| sector.as_mut_slice().put_slice(b"LUKS\xba\xbe\x00\x02")),
    LookForm::first(10, "parallels", parallels),
];

macro_rules! looks {
    ($($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident $facts:tt,)*) => {
        /// The looks of all formats.
        const LISTS: &[&[LookForm]] = &[GENERAL, $(images::$drawer::facts::LOOKS),*];
    };
}

for_each_other_format!(looks);

/// A look and its bytes.
#[derive(Debug)]
pub struct MadeLook {
    /// The declaration.
    pub form: LookForm,
    /// The bytes of the sector.
    pub sector: [u8; LOOK_BYTES],
}

/// Returns every look, in the order of the encoding. The process makes their bytes once.
pub fn all() -> &'static [MadeLook] {
    static MADE: LazyLock<Vec<MadeLook>> = LazyLock::new(|| {
        let mut made: Vec<_> = LISTS.iter().copied().flatten().map(make).collect();
        made.sort_by_key(|it| it.form.look.0);
        made
    });
    &MADE
}

fn make(form: &LookForm) -> MadeLook {
    let mut sector = [0; LOOK_BYTES];
    (form.write)(&mut sector);
    MadeLook { form: *form, sector }
}

/// Returns a look; for a number that no look has, the first one.
pub fn made(look: Look) -> &'static MadeLook {
    let all = all();
    all.get(usize::from(look.0)).unwrap_or(&all[0])
}

fn mbr(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    const BOOT_CODE_BYTES: usize = 446;
    let jump = [0xeb, 0x63, 0x90];
    out.put_slice(&jump);
    out.put_bytes(0, BOOT_CODE_BYTES - jump.len());
    // An active Linux partition of 1 MiB, 1 MiB behind the start.
    out.put_slice(&[0x80, 0x20, 0x21, 0, 0x83, 0x41, 1, 0]);
    out.put_u32_le(2048);
    out.put_u32_le(2048);
    out.put_bytes(0, 3 * 16);
    out.put_slice(&[0x55, 0xaa]);
}

fn qcow2(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"QFI\xfb");
    out.put_u32(3);
    // No backing file; clusters of 64 KiB; a disk of 1 MiB.
    out.put_u64(0);
    out.put_u32(0);
    out.put_u32(16);
    out.put_u64(1 << 20);
    out.put_u32(0);
    // One L1 entry, then the refcount table.
    out.put_u32(1);
    out.put_u64(3 << 16);
    out.put_u64(1 << 16);
    out.put_u32(1);
    // No snapshots and no features.
    out.put_bytes(0, 12 + 3 * 8);
    out.put_u32(4);
    out.put_u32(104);
}

fn parallels(sector: &mut [u8; LOOK_BYTES]) {
    let mut out = sector.as_mut_slice();
    out.put_slice(b"WithouFreSpacExt");
    // Version, heads, cylinders, sectors of a cluster, entries of the table, sectors of the disk.
    for field in [2, 16, 4, 2048, 1, 2048, 0] {
        out.put_u32_le(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::content::WriteNumber;

    #[test]
    fn every_look_has_its_number_and_a_word() {
        assert!((0..).zip(all()).all(|(number, it)| it.form.look == Look(number)));
        let words: std::collections::BTreeSet<_> = all().iter().map(|it| it.form.word).collect();
        assert_eq!(words.len(), all().len());
        assert!(all().len() < WriteNumber::DEEP as usize, "a look has a form of its own");
    }

    #[test]
    fn looks_begin_with_their_signatures() {
        let begins = |look: Look, bytes: &[u8]| assert!(made(look).sector.starts_with(bytes));
        begins(Look(1), b"QFI\xfb\x00\x00\x00\x03");
        begins(Look(8), b"LUKS\xba\xbe");
        begins(Look(10), b"WithouFreSpacExt");
        assert_eq!(made(Look(0)).sector[510..], [0x55, 0xaa]);
    }
}
