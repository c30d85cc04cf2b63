//! Sectors of guest data that look like the beginning or the end of a file: a partition table, or the header of an
//! image format. A reader that guesses a format from the bytes of a raw file, of a data file or of a fixed disk takes
//! them for structures, although they are only data.

use std::sync::LazyLock;

use bytes::BufMut;

use crate::formats::anatomy::SealKind;
use crate::formats::vpc::constants::footer;

/// The length of a look in bytes.
pub const LOOK_BYTES: usize = 512;

/// The thing that the first or the last sector of a cluster looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// A master boot record with one partition.
    #[default]
    Mbr,
    /// The header of a qcow2 image, version 3.
    Qcow2,
    /// The header of a sparse VMDK extent.
    Vmdk,
    /// The header of an extent as ESX writes it.
    Cowd,
    /// A VMDK descriptor with one flat extent.
    Descriptor,
    /// The footer of a VHD image, at the beginning, where dynamic disks have a copy of it.
    Vpc,
    /// The same footer, at the end, where all VHD images have it.
    VpcEnd,
    /// The file identifier of a VHDX image.
    Vhdx,
    /// The header of a LUKS volume.
    Luks,
    /// The header of a VDI image.
    Vdi,
    /// The header of a Parallels image.
    Parallels,
}

impl Look {
    /// Every look, in the order of the encoding.
    pub const ALL: [Self; 11] = [
        Self::Mbr,
        Self::Qcow2,
        Self::Vmdk,
        Self::Cowd,
        Self::Descriptor,
        Self::Vpc,
        Self::VpcEnd,
        Self::Vhdx,
        Self::Luks,
        Self::Vdi,
        Self::Parallels,
    ];

    /// Reports whether the sector is the last one of a cluster, and not the first.
    pub fn is_at_end(self) -> bool {
        self == Self::VpcEnd
    }

    /// Reports whether the sector looks like the footer of a VHD image. If a fixed disk begins with it, readers take
    /// the disk for a dynamic one.
    pub fn is_footer(self) -> bool {
        matches!(self, Self::Vpc | Self::VpcEnd)
    }

    /// Returns the bytes of the sector. The process makes them once.
    pub fn sector(self) -> &'static [u8; LOOK_BYTES] {
        static MADE: LazyLock<[[u8; LOOK_BYTES]; Look::ALL.len()]> =
            LazyLock::new(|| Look::ALL.map(Look::make));
        &MADE[self as usize]
    }

    fn make(self) -> [u8; LOOK_BYTES] {
        let mut sector = [0; LOOK_BYTES];
        let mut out = sector.as_mut_slice();
        match self {
            Self::Mbr => mbr(&mut out),
            Self::Qcow2 => qcow2(&mut out),
            Self::Vmdk => vmdk(&mut out),
            Self::Cowd => cowd(&mut out),
            Self::Descriptor => out.put_slice(DESCRIPTOR),
            Self::Vpc | Self::VpcEnd => vpc(&mut out),
            Self::Vhdx => {
                out.put_slice(b"vhdxfile");
                "looks like a VHDX image".encode_utf16().for_each(|unit| out.put_u16_le(unit));
            }
            Self::Luks => out.put_slice(b"LUKS\xba\xbe\x00\x02"),
            Self::Vdi => vdi(&mut out),
            Self::Parallels => parallels(&mut out),
        }
        if self.is_footer() {
            let checksum = SealKind::ComplementOfSum.of(&sector, footer::CHECKSUM.at);
            sector[footer::CHECKSUM.at..][..checksum.len()].copy_from_slice(&checksum);
        }
        sector
    }
}

const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n\
    createType=\"monolithicFlat\"\n\nRW 2048 FLAT \"looks-like.vmdk\" 0\n";

fn mbr(out: &mut impl BufMut) {
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

fn qcow2(out: &mut impl BufMut) {
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

fn vmdk(out: &mut impl BufMut) {
    out.put_slice(b"KDMV");
    // Version, flags.
    out.put_u32_le(1);
    out.put_u32_le(3);
    // The disk, a grain, the descriptor and its length, in sectors.
    for sectors in [2048, 128, 1, 20] {
        out.put_u64_le(sectors);
    }
    out.put_u32_le(512);
    // Both directories, and the part before the grains.
    for sector in [21, 26, 128] {
        out.put_u64_le(sector);
    }
    out.put_u8(0);
    out.put_slice(b"\n \r\n");
}

fn cowd(out: &mut impl BufMut) {
    out.put_slice(b"COWD");
    // Version, flags; the disk and a grain; the directory and its entries; the next free sector.
    for field in [1, 3, 2048, 1, 4, 1, 5] {
        out.put_u32_le(field);
    }
}

fn vpc(out: &mut impl BufMut) {
    out.put_slice(b"conectix");
    // Features, version, the offset of the dynamic header.
    out.put_u32(2);
    out.put_u32(0x1_0000);
    out.put_u64(512);
    // The time; the creator, its version and its system.
    out.put_u32(0);
    out.put_slice(b"qem2\x00\x05\x00\x03Wi2k");
    // Both sizes; the geometry; a dynamic disk.
    out.put_u64(1 << 20);
    out.put_u64(1 << 20);
    out.put_slice(&[0, 30, 4, 17]);
    out.put_u32(3);
}

fn vdi(out: &mut impl BufMut) {
    let mut text = [0; 64];
    let about = b"<<< QEMU VM Virtual Disk Image >>>\n";
    text[..about.len()].copy_from_slice(about);
    out.put_slice(&text);
    // Signature, version, length of the header.
    out.put_u32_le(0xbeda_107f);
    out.put_u32_le(0x1_0001);
    out.put_u32_le(0x180);
}

fn parallels(out: &mut impl BufMut) {
    out.put_slice(b"WithouFreSpacExt");
    // Version, heads, cylinders, sectors of a cluster, entries of the table, sectors of the disk.
    for field in [2, 16, 4, 2048, 1, 2048, 0] {
        out.put_u32_le(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_begin_with_their_signatures() {
        let begins =
            |look: Look, bytes: &[u8]| assert!(look.sector().starts_with(bytes), "{look:?}");
        begins(Look::Qcow2, b"QFI\xfb\x00\x00\x00\x03");
        begins(Look::Vmdk, b"KDMV");
        begins(Look::Cowd, b"COWD");
        begins(Look::Descriptor, b"# Disk DescriptorFile\nversion=1\n");
        begins(Look::Vpc, b"conectix");
        begins(Look::Vhdx, b"vhdxfile");
        begins(Look::Luks, b"LUKS\xba\xbe");
        begins(Look::Parallels, b"WithouFreSpacExt");
        assert_eq!(Look::Mbr.sector()[510..], [0x55, 0xaa]);
        assert_eq!(Look::Vdi.sector()[64..68], [0x7f, 0x10, 0xda, 0xbe]);
        assert_eq!(Look::VpcEnd.sector(), Look::Vpc.sector());
    }
}
