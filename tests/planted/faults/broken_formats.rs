//! Damage of VHD, VHDX and VMDK images that no reader may read through: for each rule, programs that break just this
//! rule, and the answer of qemu-img.

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::anatomy::SealKind;
use qcowfuzz::formats::vhdx::constants::{
    METADATA_SIGNATURE, REGION_TABLE_BYTES, REGION_TABLE_OFFSETS,
};
use qcowfuzz::harness::{Harness, Walker};
use qcowfuzz::programs::text::assemble;
use qcowfuzz::programs::{Operation, Program};

/// A rule, and damage that breaks it.
pub struct BrokenFormat {
    pub rule: &'static str,
    pub format: ImageFormat,
    /// The forms of the images. Each makes a program.
    pub forms: &'static [u16],
    /// The operation that gives a VMDK image an extent in another file, or nothing.
    pub extent: &'static str,
    /// The attacks: the operands of `patch`, without `part=`.
    pub damage: &'static str,
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

/// Forms of VHD: with a footer at the end, and the dynamic header and the table in several places.
const TWO_FOOTERS: &[u16] = &[0, 0x20, 0x80, 0x1fc1];
/// Forms of VHD without a footer at the end.
const ONE_FOOTER: &[u16] = &[0x10, 0x30, 0x90, 0x1fd1];
/// Forms of fixed VHD.
const FIXED: &[u16] = &[0x08, 0x09, 0x0a, 0x400c];
/// Forms of VHDX without unknown regions and in the usual order.
const VHDX: &[u16] = &[0, 1, 0x40, 0x18c8];
/// Forms of VMDK with plain grains.
const PLAIN: &[u16] = &[0, 0x80, 0x2705, 0xc003];
/// Forms of VMDK without a redundant directory.
const ONE_DIRECTORY: &[u16] = &[0x40, 0xc0, 0x2745, 0xc043];
/// Forms of VMDK with markers and a footer.
const FOOTER: &[u16] = &[0x20, 0x60, 0x25, 0xc020];
/// Forms of VMDK with compressed grains without markers.
const NO_MARKERS: &[u16] = &[0x38, 0x78, 0x3d, 0xc038];
/// Forms of VMDK whose descriptors differ.
const DESCRIPTOR: &[u16] = &[0, 1024, 0x2400, 0xc400];
const SE_SPARSE: &str = "extent kind=se_sparse length=1<<5 lead=0\n";
const COWD: &[u16] = &[0x18, 0x98, 0x2018, 0xc018];

const fn vpc(
    rule: &'static str,
    forms: &'static [u16],
    damage: &'static str,
    qemu: &'static str,
) -> BrokenFormat {
    BrokenFormat { rule, format: ImageFormat::Vpc, forms, extent: "", damage, qemu }
}

const fn vhdx(rule: &'static str, damage: &'static str, qemu: &'static str) -> BrokenFormat {
    BrokenFormat { rule, format: ImageFormat::Vhdx, forms: VHDX, extent: "", damage, qemu }
}

const fn vmdk(
    rule: &'static str,
    forms: &'static [u16],
    damage: &'static str,
    qemu: &'static str,
) -> BrokenFormat {
    BrokenFormat { rule, format: ImageFormat::Vmdk, forms, extent: "", damage, qemu }
}

const fn sesparse(rule: &'static str, damage: &'static str, qemu: &'static str) -> BrokenFormat {
    BrokenFormat { extent: SE_SPARSE, ..vmdk(rule, DESCRIPTOR, damage, qemu) }
}

/// Forms of VDI: dynamic, static, and with gaps.
const VDI: &[u16] = &[0, 1, 0x1e, 0x81ff];

const fn vdi(rule: &'static str, damage: &'static str, qemu: &'static str) -> BrokenFormat {
    BrokenFormat { rule, format: ImageFormat::Vdi, forms: VDI, extent: "", damage, qemu }
}

const INVALID: &str = "Invalid argument";

/// `nth` is twice the number of the field in the part. If it is odd, the checksum is corrected.
pub const FORMAT_CASES: &[BrokenFormat] = &[
    vpc("VHD footer cookie", ONE_FOOTER, "header nth=0 transform=flip value=0", "invalid VPC"),
    vpc("VHD footer cookie", FIXED, "header nth=0 transform=flip value=0", "invalid VPC"),
    vpc(
        "VHD footer cookie",
        TWO_FOOTERS,
        "header nth=0 transform=flip value=0\nheader nth=40 transform=flip value=0",
        "invalid VPC",
    ),
    // The footer is that of a dynamic disk, and names no header.
    vpc("VHD dynamic header cookie", FIXED, "header nth=21 transform=set value=3", "invalid VPC"),
    vpc(
        "VHD copy of the footer",
        TWO_FOOTERS,
        "header nth=0 transform=flip value=0\nheader nth=42 transform=add value=1",
        "invalid VPC",
    ),
    vpc(
        "VHD footer checksum",
        ONE_FOOTER,
        "header nth=22 transform=flip value=9",
        "Incorrect header checksum",
    ),
    vpc("VHD footer checksum", FIXED, "header nth=2 transform=add value=1", "header checksum"),
    vpc(
        "VHD footer checksum",
        TWO_FOOTERS,
        "header nth=22 transform=add value=1\nheader nth=62 transform=add value=1",
        "Incorrect header checksum",
    ),
    vpc(
        "VHD size above 2040 GiB",
        &[0x10, 0x30, 0x90, 0xfd1],
        "header nth=13 transform=boundary value=17",
        "too large",
    ),
    vpc(
        "VHD dynamic header cookie",
        TWO_FOOTERS,
        "header nth=26 transform=flip value=0",
        "Invalid header magic",
    ),
    vpc(
        "VHD dynamic header cookie",
        ONE_FOOTER,
        "header nth=7 transform=past_end value=9",
        "Invalid header magic",
    ),
    vpc("VHD block size", TWO_FOOTERS, "header nth=37 transform=add value=1", "Invalid block size"),
    vpc("VHD block size", ONE_FOOTER, "header nth=36 transform=set value=256", "block size 256"),
    vpc(
        "VHD table below the size",
        TWO_FOOTERS,
        "header nth=35 transform=set value=63",
        "Page table too small",
    ),
    vpc(
        "VHD table of 2^29 entries",
        TWO_FOOTERS,
        "header nth=35 transform=boundary value=15",
        "Max Table Entries too large",
    ),
    vpc(
        "VHD table past the end of the file",
        TWO_FOOTERS,
        "header nth=31 transform=past_end value=0",
        "points after the end of file",
    ),
    vpc(
        "VHD block past the end of the file",
        TWO_FOOTERS,
        "table nth=2 transform=past_end value=100",
        "points after the end of file",
    ),
    vhdx("VHDX file signature", "header nth=0 transform=flip value=0", INVALID),
    vhdx(
        "VHDX header signature",
        "header nth=5 transform=flip value=0\nheader nth=27 transform=flip value=0",
        "No valid VHDX header found",
    ),
    vhdx(
        "VHDX header checksum",
        "header nth=6 transform=flip value=0\nheader nth=28 transform=flip value=0",
        "No valid VHDX header found",
    ),
    vhdx(
        "VHDX header version",
        "header nth=21 transform=set value=2\nheader nth=43 transform=set value=2",
        "No valid VHDX header found",
    ),
    vhdx(
        "VHDX headers with one sequence number",
        "header nth=9 transform=set value=7\nheader nth=31 transform=set value=7\n\
         header nth=11 transform=flip value=3",
        "No valid VHDX header found",
    ),
    vhdx(
        "VHDX log offset",
        "header nth=25 transform=misalign value=0\nheader nth=47 transform=misalign value=0",
        INVALID,
    ),
    vhdx(
        "VHDX log version",
        "header nth=15 transform=set value=1\nheader nth=37 transform=set value=1\n\
         header nth=19 transform=set value=1\nheader nth=41 transform=set value=1",
        INVALID,
    ),
    vhdx(
        "VHDX log length",
        "header nth=15 transform=set value=1\nheader nth=37 transform=set value=1\n\
         header nth=23 transform=add value=1\nheader nth=45 transform=add value=1",
        INVALID,
    ),
    vhdx(
        "VHDX region table signature",
        "directory nth=1 transform=flip value=0\ndirectory nth=27 transform=flip value=0",
        INVALID,
    ),
    vhdx(
        "VHDX region table checksum",
        "directory nth=2 transform=flip value=0\ndirectory nth=28 transform=flip value=0",
        INVALID,
    ),
    vhdx(
        "VHDX number of regions",
        "directory nth=5 transform=set value=2048\ndirectory nth=31 transform=set value=2048",
        INVALID,
    ),
    vhdx(
        "VHDX overlapping regions",
        "directory nth=13 transform=boundary value=15\ndirectory nth=39 transform=boundary value=15\n\
         directory nth=23 transform=boundary value=15\ndirectory nth=49 transform=boundary value=15",
        "",
    ),
    vhdx(
        "VHDX unknown required region",
        "directory nth=7 transform=flip value=0\ndirectory nth=33 transform=flip value=0",
        "not supported",
    ),
    vhdx(
        "VHDX missing region",
        "directory nth=7 transform=flip value=0\ndirectory nth=33 transform=flip value=0\n\
         directory nth=15 transform=set value=0\ndirectory nth=41 transform=set value=0",
        INVALID,
    ),
    vhdx("VHDX metadata signature", "metadata nth=0 transform=flip value=0", INVALID),
    vhdx("VHDX number of metadata items", "metadata nth=2 transform=set value=2048", INVALID),
    vhdx(
        "VHDX unknown required metadata item",
        "metadata nth=4 transform=flip value=0",
        "not supported",
    ),
    vhdx(
        "VHDX missing metadata item",
        "metadata nth=4 transform=flip value=0\nmetadata nth=12 transform=set value=0",
        "not supported",
    ),
    vhdx(
        "VHDX missing metadata item",
        "metadata nth=30 transform=flip value=0\nmetadata nth=38 transform=set value=0",
        "not supported",
    ),
    vhdx("VHDX parent without a locator", "metadata nth=16 transform=flip value=1", INVALID),
    vhdx("VHDX block size", "metadata nth=14 transform=add value=1", INVALID),
    vhdx("VHDX logical sector size", "metadata nth=54 transform=set value=1024", "not supported"),
    vhdx("VHDX table below the size", "metadata nth=28 transform=boundary value=16", INVALID),
    vhdx(
        "VHDX size of 2^63 or more",
        "metadata nth=28 transform=boundary value=3\nmetadata nth=28 transform=add_clusters value=1",
        "",
    ),
    vhdx(
        "VHDX block past the end of the file",
        "table nth=2 transform=past_end value=100",
        INVALID,
    ),
    vhdx("VHDX block over a region", "table nth=2 transform=structure value=70", ""),
    vhdx("VHDX block of state 4", "table nth=2 transform=flip value=1", "error while reading"),
    vhdx(
        "VHDX block in a parent that is not there",
        "table nth=2 transform=flip value=0",
        "error while reading",
    ),
    vmdk(
        "VMDK magic",
        PLAIN,
        "header nth=0 transform=flip value=0",
        "invalid VMDK image descriptor",
    ),
    vmdk(
        "VMDK magic",
        COWD,
        "header nth=0 transform=flip value=0",
        "invalid VMDK image descriptor",
    ),
    vmdk("VMDK capacity 0", PLAIN, "header nth=6 transform=set value=0", "Unsupported image type"),
    vmdk("VMDK footer", FOOTER, "header nth=34 transform=flip value=0", "Invalid footer"),
    vmdk("VMDK footer", FOOTER, "header nth=32 transform=set value=2", "Invalid footer"),
    vmdk("VMDK version", PLAIN, "header nth=2 transform=set value=4", "Unsupported VMDK version 4"),
    vmdk(
        "VMDK version",
        FOOTER,
        "header nth=2 transform=set value=4\nheader nth=36 transform=set value=4",
        "Unsupported VMDK version 4",
    ),
    vmdk(
        "VMDK table of more than 512 entries",
        PLAIN,
        "header nth=14 transform=set value=513",
        "L2 table size too big",
    ),
    vmdk(
        "VMDK table that maps no sector",
        PLAIN,
        "header nth=8 transform=set value=0",
        "L1 entry size is invalid",
    ),
    vmdk(
        "VMDK overhead past the end of the file",
        PLAIN,
        "header nth=20 transform=boundary value=14",
        "File truncated",
    ),
    vmdk(
        "VMDK grain above 1 GiB",
        PLAIN,
        "header nth=8 transform=boundary value=12",
        "Invalid granularity",
    ),
    vmdk(
        "VMDK grain above 1 GiB",
        COWD,
        "header nth=8 transform=boundary value=12",
        "Invalid granularity",
    ),
    vmdk(
        "VMDK directory above 128 MiB",
        PLAIN,
        "header nth=6 transform=boundary value=16",
        "L1 size too big",
    ),
    vmdk(
        "VMDK directory above 128 MiB",
        COWD,
        "header nth=12 transform=boundary value=15",
        "L1 size too big",
    ),
    vmdk("VMDK directory past 2^63", ONE_DIRECTORY, "header nth=18 transform=flip value=54", ""),
    vmdk("VMDK CID", PLAIN, "metadata nth=8 transform=set value=31354", INVALID),
    vmdk("VMDK CID", COWD, "metadata nth=2 transform=set value=31354", INVALID),
    vmdk("VMDK parentCID", COWD, "metadata nth=4 transform=flip value=0", INVALID),
    vmdk("VMDK length in a marker", FOOTER, "block_front nth=2 transform=set value=0", "reading"),
    vmdk(
        "VMDK length in a marker",
        FOOTER,
        "block_front nth=10 transform=boundary value=1",
        "reading",
    ),
    vmdk("VMDK zlib header", FOOTER, "block_front nth=4 transform=add value=1", "reading"),
    vmdk("VMDK zlib header", NO_MARKERS, "block_front nth=0 transform=set value=0", "reading"),
    sesparse("seSparse version", "header nth=2 transform=add value=1", "version"),
    sesparse("seSparse grain", "header nth=6 transform=set value=16", "grain size"),
    sesparse("seSparse table", "header nth=8 transform=set value=128", "grain table size"),
    sesparse("seSparse flags", "header nth=10 transform=flip value=1", "flags"),
    sesparse("seSparse reserved field", "header nth=12 transform=flip value=0", "reserved"),
    sesparse("seSparse reserved field", "header nth=18 transform=flip value=63", "reserved"),
    sesparse("seSparse padding", "header nth=52 transform=flip value=0", "padding"),
    sesparse("seSparse volatile header", "header nth=20 transform=add value=1", "volatile"),
    sesparse("seSparse volatile header", "header nth=54 transform=flip value=0", "volatile"),
    sesparse("seSparse journal to replay", "header nth=60 transform=set value=1", "journal"),
    sesparse("seSparse padding", "header nth=62 transform=flip value=0", "padding"),
    sesparse(
        "seSparse directory above 256 MiB",
        "header nth=34 transform=flip value=20",
        "L1 size too big",
    ),
    sesparse("seSparse directory past 2^63", "header nth=32 transform=flip value=54", ""),
    vdi("VDI size above 512 TiB", "header nth=18 transform=boundary value=17", "image size"),
    vdi("VDI signature", "header nth=2 transform=flip value=0", "bad signature"),
    vdi("VDI version", "header nth=4 transform=add value=1", "version 1.2"),
    vdi(
        "VDI offset of the block map",
        "header nth=12 transform=add value=1",
        "unaligned block map",
    ),
    vdi("VDI offset of the data", "header nth=14 transform=add value=1", "unaligned data offset"),
    vdi("VDI sector size", "header nth=16 transform=set value=1024", "sector size 1024"),
    vdi("VDI block size", "header nth=20 transform=set value=4096", "block size 4096"),
    vdi("VDI block map below the size", "header nth=24 transform=set value=0", "has room for 0"),
    vdi("VDI link", "header nth=34 transform=flip value=63", "non-NULL link"),
    vdi("VDI parent", "header nth=36 transform=flip value=0", "non-NULL parent"),
    vdi("VDI number of blocks", "header nth=24 transform=flip value=30", "too many blocks"),
];

/// A rule, and a change of bytes that breaks it. Programs cannot make as many attacks, or not these.
pub struct BrokenBytes {
    pub rule: &'static str,
    pub format: ImageFormat,
    pub forms: &'static [u16],
    pub change: fn(&mut Vec<u8>),
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

/// Changes of bytes.
pub const BYTE_CASES: &[BrokenBytes] = &[
    BrokenBytes {
        rule: "VHDX region that occurs twice",
        format: ImageFormat::Vhdx,
        forms: VHDX,
        change: |file| {
            for table in REGION_TABLE_OFFSETS.map(|at| at as usize) {
                file.copy_within(table + 16..table + 32, table + 48);
                let table = &mut file[table..table + REGION_TABLE_BYTES];
                let checksum = SealKind::Crc32c.of(table, 4);
                table[4..8].copy_from_slice(&checksum);
            }
        },
        qemu: INVALID,
    },
    BrokenBytes {
        rule: "VHDX metadata item that occurs twice",
        format: ImageFormat::Vhdx,
        forms: VHDX,
        change: |file| {
            let at = file.windows(8).position(|bytes| bytes == METADATA_SIGNATURE).unwrap();
            file.copy_within(at + 32..at + 48, at + 64);
        },
        qemu: INVALID,
    },
    BrokenBytes {
        rule: "VMDK parentFileNameHint",
        format: ImageFormat::Vmdk,
        forms: PLAIN,
        change: |file| {
            let hint = b"parentFileNameHint=\"a\n\0";
            let at = file.windows(11).position(|bytes| bytes == b"createType=").unwrap();
            file[at..at + hint.len()].copy_from_slice(hint);
        },
        qemu: INVALID,
    },
];

/// Returns a program with an image of a format and a form.
fn program(format: ImageFormat, form: u16, extent: &str, attacks: &str) -> Program {
    let (bits, size) = match format {
        ImageFormat::Vhdx => (9, "16<<20+0"),
        _ => (12, "64<<12+0"),
    };
    let text = format!(
        "image version=3 cluster_bits={bits} refcount_order=4 features=none size={size} rng_seed=0 \
         blocks=append table=append tolerance=0 base={} form={form}\n{extent}\
         write at=start+1 clusters=3\ncompress at=start+8 clusters=2 shape=half skew=packed\n{attacks}",
        format.name(),
    );
    assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

impl BrokenFormat {
    /// Returns the programs that damage their images.
    pub fn programs(&self) -> impl Iterator<Item = Program> {
        let attacks = self.damage.lines().map(|line| format!("patch part={line} depth=0\n"));
        let attacks: String = attacks.collect();
        self.forms.iter().map(move |form| program(self.format, *form, self.extent, &attacks))
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
