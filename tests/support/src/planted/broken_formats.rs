//! Damage of images of other formats that no reader may read through: for each rule, programs that break just this
//! rule, and the answer of qemu-img.

use qcowfuzz::formats::anatomy::SealKind;
use qcowfuzz::formats::vhdx::constants::{
    METADATA_SIGNATURE, REGION_TABLE_BYTES, REGION_TABLE_OFFSETS,
};

use super::broken::attacks;
use crate::prelude::*;

/// A rule, and damage that breaks it.
pub struct BrokenFormat {
    pub rule: &'static str,
    pub format: ImageFormat,
    /// The forms of the images. Each makes a program.
    pub forms: &'static [u16],
    /// The operation that gives a VMDK image an extent in another file, or nothing.
    pub extent: &'static str,
    /// The attacks; see [`attacks`].
    pub damage: &'static str,
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

/// Returns a format and the forms of its images: those of VHD with the dynamic header and the table in several places.
fn forms_of(kind: &str) -> (ImageFormat, &'static [u16]) {
    match kind {
        "vpc two footers" => (ImageFormat::Vpc, &[0, 0x20, 0x80, 0x1fc1]),
        "vpc one footer" => (ImageFormat::Vpc, &[0x10, 0x30, 0x90, 0x1fd1]),
        "vpc gaps" => (ImageFormat::Vpc, &[0x10, 0x30, 0x90, 0xfd1]),
        "vpc fixed" => (ImageFormat::Vpc, &[0x08, 0x09, 0x0a, 0x400c]),
        // Without unknown regions and in the usual order.
        "vhdx" => (ImageFormat::Vhdx, &[0, 1, 0x40, 0x18c8]),
        // Dynamic, static, and with gaps.
        "vdi" => (ImageFormat::Vdi, &[0, 1, 0x1e, 0x81ff]),
        "vmdk plain" => (ImageFormat::Vmdk, &[0, 0x80, 0x2705, 0xc003]),
        "vmdk one directory" => (ImageFormat::Vmdk, &[0x40, 0xc0, 0x2745, 0xc043]),
        // Compressed grains with markers and a footer, and without markers.
        "vmdk footer" => (ImageFormat::Vmdk, &[0x20, 0x60, 0x25, 0xc020]),
        "vmdk no markers" => (ImageFormat::Vmdk, &[0x38, 0x78, 0x3d, 0xc038]),
        "vmdk COWD" => (ImageFormat::Vmdk, &[0x18, 0x98, 0x2018, 0xc018]),
        // Descriptors that differ.
        "vmdk seSparse" => (ImageFormat::Vmdk, &[0, 1024, 0x2400, 0xc400]),
        _ => panic!("no forms: {kind}"),
    }
}

/// A rule, the kind of the images, the attacks and the message of QEMU. The number of an element is twice that of the
/// field in the part. If it is odd, the checksum is corrected.
const FORMAT_CASES: &str = r"
    VHD footer cookie | vpc one footer | header 0 flip 0 | invalid VPC
    VHD footer cookie | vpc fixed | header 0 flip 0 | invalid VPC
    VHD footer cookie | vpc two footers | header 0 flip 0; header 40 flip 0 | invalid VPC
    # The footer is that of a dynamic disk, and names no header.
    VHD dynamic header cookie | vpc fixed | header 21 set 3 | invalid VPC
    VHD copy of the footer | vpc two footers | header 0 flip 0; header 42 add 1 | invalid VPC
    VHD footer checksum | vpc one footer | header 22 flip 9 | Incorrect header checksum
    VHD footer checksum | vpc fixed | header 2 add 1 | header checksum
    VHD footer checksum | vpc two footers | header 22 add 1; header 62 add 1 | Incorrect header checksum
    VHD size above 2040 GiB | vpc gaps | header 13 boundary 17 | too large
    VHD dynamic header cookie | vpc two footers | header 26 flip 0 | Invalid header magic
    VHD dynamic header cookie | vpc one footer | header 7 past_end 9 | Invalid header magic
    VHD block size | vpc two footers | header 37 add 1 | Invalid block size
    VHD block size | vpc one footer | header 36 set 256 | block size 256
    VHD table below the size | vpc two footers | header 35 set 63 | Page table too small
    VHD table of 2^29 entries | vpc two footers | header 35 boundary 15 | Max Table Entries too large
    VHD table past the end of the file | vpc two footers | header 31 past_end 0 | points after the end of file
    VHD block past the end of the file | vpc two footers | table 2 past_end 100 | points after the end of file
    VHDX file signature | vhdx | header 0 flip 0 | Invalid argument
    VHDX header signature | vhdx | header 5 flip 0; header 27 flip 0 | No valid VHDX header found
    VHDX header checksum | vhdx | header 6 flip 0; header 28 flip 0 | No valid VHDX header found
    VHDX header version | vhdx | header 21 set 2; header 43 set 2 | No valid VHDX header found
    VHDX headers with one sequence number | vhdx | header 9 set 7; header 31 set 7; header 11 flip 3 | No valid VHDX header found
    VHDX log offset | vhdx | header 25 misalign 0; header 47 misalign 0 | Invalid argument
    VHDX log version | vhdx | header 15 set 1; header 37 set 1; header 19 set 1; header 41 set 1 | Invalid argument
    VHDX log length | vhdx | header 15 set 1; header 37 set 1; header 23 add 1; header 45 add 1 | Invalid argument
    VHDX region table signature | vhdx | directory 1 flip 0; directory 27 flip 0 | Invalid argument
    VHDX region table checksum | vhdx | directory 2 flip 0; directory 28 flip 0 | Invalid argument
    VHDX number of regions | vhdx | directory 5 set 2048; directory 31 set 2048 | Invalid argument
    VHDX overlapping regions | vhdx | directory 13 boundary 15; directory 39 boundary 15; directory 23 boundary 15; directory 49 boundary 15 |
    VHDX unknown required region | vhdx | directory 7 flip 0; directory 33 flip 0 | not supported
    VHDX missing region | vhdx | directory 7 flip 0; directory 33 flip 0; directory 15 set 0; directory 41 set 0 | Invalid argument
    VHDX metadata signature | vhdx | metadata 0 flip 0 | Invalid argument
    VHDX number of metadata items | vhdx | metadata 2 set 2048 | Invalid argument
    VHDX unknown required metadata item | vhdx | metadata 4 flip 0 | not supported
    VHDX missing metadata item | vhdx | metadata 4 flip 0; metadata 12 set 0 | not supported
    VHDX missing metadata item | vhdx | metadata 30 flip 0; metadata 38 set 0 | not supported
    VHDX parent without a locator | vhdx | metadata 16 flip 1 | Invalid argument
    VHDX block size | vhdx | metadata 14 add 1 | Invalid argument
    VHDX logical sector size | vhdx | metadata 54 set 1024 | not supported
    VHDX table below the size | vhdx | metadata 28 boundary 16 | Invalid argument
    VHDX size of 2^63 or more | vhdx | metadata 28 boundary 3; metadata 28 add_clusters 1 |
    VHDX block past the end of the file | vhdx | table 2 past_end 100 | Invalid argument
    VHDX block over a region | vhdx | table 2 structure 70 |
    VHDX block of state 4 | vhdx | table 2 flip 1 | error while reading
    VHDX block in a parent that is not there | vhdx | table 2 flip 0 | error while reading
    VMDK magic | vmdk plain | header 0 flip 0 | invalid VMDK image descriptor
    VMDK magic | vmdk COWD | header 0 flip 0 | invalid VMDK image descriptor
    VMDK capacity 0 | vmdk plain | header 6 set 0 | Unsupported image type
    VMDK footer | vmdk footer | header 34 flip 0 | Invalid footer
    VMDK footer | vmdk footer | header 32 set 2 | Invalid footer
    VMDK version | vmdk plain | header 2 set 4 | Unsupported VMDK version 4
    VMDK version | vmdk footer | header 2 set 4; header 36 set 4 | Unsupported VMDK version 4
    VMDK table of more than 512 entries | vmdk plain | header 14 set 513 | L2 table size too big
    VMDK table that maps no sector | vmdk plain | header 8 set 0 | L1 entry size is invalid
    VMDK overhead past the end of the file | vmdk plain | header 20 boundary 14 | File truncated
    VMDK grain above 1 GiB | vmdk plain | header 8 boundary 12 | Invalid granularity
    VMDK grain above 1 GiB | vmdk COWD | header 8 boundary 12 | Invalid granularity
    VMDK directory above 128 MiB | vmdk plain | header 6 boundary 16 | L1 size too big
    VMDK directory above 128 MiB | vmdk COWD | header 12 boundary 15 | L1 size too big
    VMDK directory past 2^63 | vmdk one directory | header 18 flip 54 |
    VMDK CID | vmdk plain | metadata 8 set 31354 | Invalid argument
    VMDK CID | vmdk COWD | metadata 2 set 31354 | Invalid argument
    VMDK parentCID | vmdk COWD | metadata 4 flip 0 | Invalid argument
    VMDK length in a marker | vmdk footer | block_front 2 set 0 | reading
    VMDK length in a marker | vmdk footer | block_front 10 boundary 1 | reading
    VMDK zlib header | vmdk footer | block_front 4 add 1 | reading
    VMDK zlib header | vmdk no markers | block_front 0 set 0 | reading
    seSparse version | vmdk seSparse | header 2 add 1 | version
    seSparse grain | vmdk seSparse | header 6 set 16 | grain size
    seSparse table | vmdk seSparse | header 8 set 128 | grain table size
    seSparse flags | vmdk seSparse | header 10 flip 1 | flags
    seSparse reserved field | vmdk seSparse | header 12 flip 0 | reserved
    seSparse reserved field | vmdk seSparse | header 18 flip 63 | reserved
    seSparse padding | vmdk seSparse | header 52 flip 0 | padding
    seSparse volatile header | vmdk seSparse | header 20 add 1 | volatile
    seSparse volatile header | vmdk seSparse | header 54 flip 0 | volatile
    seSparse journal to replay | vmdk seSparse | header 60 set 1 | journal
    seSparse padding | vmdk seSparse | header 62 flip 0 | padding
    seSparse directory above 256 MiB | vmdk seSparse | header 34 flip 20 | L1 size too big
    seSparse directory past 2^63 | vmdk seSparse | header 32 flip 54 |
    VDI size above 512 TiB | vdi | header 18 boundary 17 | image size
    VDI signature | vdi | header 2 flip 0 | bad signature
    VDI version | vdi | header 4 add 1 | version 1.2
    VDI offset of the block map | vdi | header 12 add 1 | unaligned block map
    VDI offset of the data | vdi | header 14 add 1 | unaligned data offset
    VDI sector size | vdi | header 16 set 1024 | sector size 1024
    VDI block size | vdi | header 20 set 4096 | block size 4096
    VDI block map below the size | vdi | header 24 set 0 | has room for 0
    VDI link | vdi | header 34 flip 63 | non-NULL link
    VDI parent | vdi | header 36 flip 0 | non-NULL parent
    VDI number of blocks | vdi | header 24 flip 30 | too many blocks
";

/// Returns all cases.
pub fn format_cases() -> impl Iterator<Item = BrokenFormat> {
    rows(FORMAT_CASES).map(|[rule, kind, damage, qemu]| {
        let (format, forms) = forms_of(kind);
        let is_extent = kind == "vmdk seSparse";
        let extent = if is_extent { "extent kind=se_sparse length=1<<5 lead=0\n" } else { "" };
        BrokenFormat { rule, format, forms, extent, damage, qemu }
    })
}

/// A rule, and a change of bytes that breaks it. Programs cannot make as many attacks, or not these.
pub struct BrokenBytes {
    pub rule: &'static str,
    pub format: ImageFormat,
    pub forms: &'static [u16],
    pub change: fn(&mut Vec<u8>),
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

/// Returns changes of bytes.
pub fn byte_cases() -> [BrokenBytes; 3] {
    [
        BrokenBytes {
            rule: "VHDX region that occurs twice",
            format: ImageFormat::Vhdx,
            forms: forms_of("vhdx").1,
            change: |file| {
                for table in REGION_TABLE_OFFSETS.map(|at| at as usize) {
                    file.copy_within(table + 16..table + 32, table + 48);
                    let table = &mut file[table..table + REGION_TABLE_BYTES];
                    let checksum = SealKind::Crc32c.of(table, 4);
                    table[4..8].copy_from_slice(&checksum);
                }
            },
            qemu: "Invalid argument",
        },
        BrokenBytes {
            rule: "VHDX metadata item that occurs twice",
            format: ImageFormat::Vhdx,
            forms: forms_of("vhdx").1,
            change: |file| {
                let at = file.windows(8).position(|bytes| bytes == METADATA_SIGNATURE).unwrap();
                file.copy_within(at + 32..at + 48, at + 64);
            },
            qemu: "Invalid argument",
        },
        BrokenBytes {
            rule: "VMDK parentFileNameHint",
            format: ImageFormat::Vmdk,
            forms: forms_of("vmdk plain").1,
            change: |file| {
                let hint = b"parentFileNameHint=\"a\n\0";
                let at = file.windows(11).position(|bytes| bytes == b"createType=").unwrap();
                file[at..at + hint.len()].copy_from_slice(hint);
            },
            qemu: "Invalid argument",
        },
    ]
}

/// Returns a program with an image of a format and a form.
fn program(format: ImageFormat, form: u16, extent: &str, attacks: &str) -> Program {
    let size = match format {
        ImageFormat::Vhdx => "cluster_bits=9 size=16<<20+0",
        _ => "cluster_bits=12 size=64<<12+0",
    };
    let operations = format!(
        "{extent}write at=start+1 clusters=3\ncompress at=start+8 clusters=2 shape=half skew=packed\n{attacks}"
    );
    lines::program(&format!("{size} base={} form={form}", format.name()), &operations)
}

impl BrokenFormat {
    /// Returns the programs that damage their images.
    pub fn programs(&self) -> impl Iterator<Item = Program> {
        let Self { format, forms, extent, .. } = *self;
        let attacks = attacks(self.damage);
        forms.iter().map(move |form| program(format, *form, extent, &attacks))
    }
}

impl BrokenBytes {
    /// Returns the programs of the images before the change.
    pub fn programs(&self) -> impl Iterator<Item = Program> {
        self.forms.iter().map(|form| program(self.format, *form, "", ""))
    }

    /// Returns the changed bytes of the image of a program.
    pub fn changed(&self, program: &Program) -> Vec<u8> {
        let mut harness = Harness::new(Walker::default());
        harness.build(&program.encode());
        let image = harness.image();
        let mut bytes = vec![0; image.length_bytes() as usize];
        image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
        (self.change)(&mut bytes);
        bytes
    }
}

/// Returns the same program without its attacks.
pub fn sound(program: &Program) -> Program {
    let mut program = program.clone();
    program.operations.retain(|one| !matches!(one, Operation::Patch { .. }));
    program
}
