//! Damage that no reader may read through: for each rule, a program that breaks just this rule, and the answer of
//! qemu-img.

use qcowfuzz::programs::text::assemble;
use qcowfuzz::programs::{Operation, Program};

/// A rule, and damage that breaks it.
pub struct Broken {
    pub rule: &'static str,
    /// The differences from the usual prologue.
    pub image: &'static str,
    /// The operations that build the image.
    pub build: &'static str,
    /// The attacks: the operands of `patch`, without `part=`. If there are several values, each makes an attack.
    pub damage: &'static str,
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

const USUAL: &str = "cluster_bits=16 refcount_order=4 features=compression_field size=300<<16+0";
const WRITE: &str = "write at=start+1 clusters=3";
const BITMAP: &str = "write at=start+1 clusters=3\nbitmap granularity=16 flags=none name=5";

/// A field of the header, and the message of QEMU.
const fn header(rule: &'static str, damage: &'static str, qemu: &'static str) -> Broken {
    Broken { rule, image: "", build: WRITE, damage, qemu }
}

const fn bitmaps(rule: &'static str, damage: &'static str, qemu: &'static str) -> Broken {
    Broken { rule, image: "", build: BITMAP, damage, qemu }
}

/// `nth` is twice the number of the field in the specification, from 0.
pub const CASES: &[Broken] = &[
    header("magic", "header nth=0 transform=flip value=0", "Image is not in qcow2 format"),
    header("version", "header nth=2 transform=set value=4", "Unsupported qcow2 version 4"),
    header("version", "header nth=2 transform=set value=1", "Unsupported qcow2 version 1"),
    header("cluster_bits", "header nth=8 transform=set value=22", "Unsupported cluster size: 2^22"),
    header("cluster_bits", "header nth=8 transform=set value=8", "Unsupported cluster size: 2^8"),
    header("header_length", "header nth=34 transform=set value=103", "qcow2 header too short"),
    header(
        "header_length",
        "header nth=34 transform=boundary value=10",
        "qcow2 header exceeds cluster size",
    ),
    header(
        "backing_file_offset",
        "header nth=4 transform=boundary value=11",
        "Invalid backing file offset",
    ),
    header(
        "incompatible_features",
        "header nth=26 transform=flip value=5",
        "Unsupported qcow2 feature",
    ),
    header(
        "compression_type",
        "header nth=36 transform=set value=1",
        "incompatible feature bit must be set",
    ),
    header(
        "compression_type",
        "header nth=26 transform=flip value=3",
        "incompatible feature bit must not be set",
    ),
    Broken {
        rule: "subclusters below 512 bytes",
        image: "cluster_bits=13",
        build: WRITE,
        damage: "header nth=26 transform=flip value=4",
        qemu: "Unsupported subcluster size: 256",
    },
    header(
        "refcount_order",
        "header nth=32 transform=set value=7",
        "Reference count entry width too large",
    ),
    header(
        "crypt_method above 2",
        "header nth=12 transform=set value=3",
        "Unsupported encryption method 3",
    ),
    header("AES encryption", "header nth=12 transform=set value=1", "key-secret' is required"),
    header("LUKS encryption", "header nth=12 transform=set value=2", "Missing CRYPTO header"),
    header(
        "refcount_table_clusters 0",
        "header nth=20 transform=set value=0",
        "does not contain a reference count table",
    ),
    header(
        "refcount table above 8 MiB",
        "header nth=20 transform=set value=129",
        "Reference count table too large",
    ),
    header(
        "refcount_table_offset",
        "header nth=18 transform=misalign value=0",
        "Reference count table offset invalid",
    ),
    header("nb_snapshots", "header nth=22 transform=boundary value=11", "Snapshot table too large"),
    header(
        "snapshots_offset",
        "header nth=24 transform=set value=512",
        "Snapshot table offset invalid",
    ),
    header(
        "l1_size above 32 MiB",
        "header nth=14 transform=boundary value=12",
        "Active L1 table too large",
    ),
    header(
        "l1_table_offset",
        "header nth=16 transform=misalign value=0",
        "Active L1 table offset invalid",
    ),
    header(
        "size of 2^63 or more",
        "header nth=10 transform=boundary value=1",
        "Could not refresh total sector count",
    ),
    header(
        "l1_size below the size",
        "header nth=14 transform=set value=0",
        "L1 table is too small",
    ),
    Broken {
        rule: "backing_file_size",
        image: "",
        build: "write at=start+1 clusters=3\nheader length=104+8 order=0 unknown=0 bytes=0 flags=empty_name",
        damage: "header nth=6 transform=set value=1024",
        qemu: "Backing file name too long",
    },
    header(
        "raw data file without a data file",
        "header nth=30 transform=flip value=1",
        "data-file-raw requires a data file",
    ),
    Broken {
        rule: "extension's length",
        image: "features=feature_names",
        build: WRITE,
        damage: "extension nth=2 transform=set value=65535",
        qemu: "Header extension too large",
    },
    // From 6803F857, the feature name table, to E2792ACA.
    Broken {
        rule: "backing format's length",
        image: "features=feature_names",
        build: WRITE,
        damage: "extension nth=0 transform=add value=12915\nextension nth=0 transform=flip value=16,18,19,20,21,22,25,27,31",
        qemu: "ext_backing_format: len=144 too large",
    },
    Broken {
        rule: "crypto extension without LUKS",
        image: "features=feature_names",
        build: WRITE,
        damage: "extension nth=0 transform=add value=50720\nextension nth=0 transform=flip value=18,20,21,24,26,27,29,30",
        qemu: "CRYPTO header extension only expected",
    },
    bitmaps(
        "bitmaps extension's length",
        "extension nth=2 transform=set value=16",
        "bitmaps_ext: Invalid extension length",
    ),
    bitmaps(
        "bitmaps extension's reserved field",
        "extension nth=4 transform=add value=1",
        "bitmaps_ext: Reserved field is not zero",
    ),
    bitmaps(
        "nb_bitmaps",
        "extension nth=4 transform=set value=0",
        "bitmaps extension with zero bitmaps",
    ),
    bitmaps(
        "bitmap_directory_size",
        "extension nth=6 transform=set value=0",
        "bitmap directory size is zero",
    ),
    bitmaps(
        "bitmap_directory_size",
        "extension nth=6 transform=boundary value=15",
        "exceeds the maximum supported size",
    ),
    bitmaps(
        "bitmap_directory_offset",
        "extension nth=8 transform=misalign value=0",
        "invalid bitmap directory offset",
    ),
    Broken {
        rule: "snapshot's extra data above 1024 bytes",
        image: "",
        build: "write at=start+1 clusters=3\nsnapshot",
        damage: "snapshot nth=16 transform=set value=1025",
        qemu: "Too much extra metadata",
    },
    header(
        "L2 table off a cluster boundary",
        "l1 nth=0 transform=misalign value=0",
        "L2 table offset 0x20200 unaligned",
    ),
    header(
        "cluster off a cluster boundary",
        "l2 nth=0 transform=misalign value=0",
        "Cluster allocation offset 0x30200 unaligned",
    ),
    Broken {
        rule: "cluster off a cluster boundary",
        image: "",
        build: "write at=start+1 clusters=3\nzero at=start+1 clusters=3 keep=yes",
        damage: "l2 nth=2 transform=misalign value=4",
        qemu: "Cluster allocation offset 0x40a00 unaligned",
    },
    Broken {
        rule: "zero flag in version 2",
        image: "version=2",
        build: WRITE,
        damage: "l2 nth=0 transform=flip value=0",
        qemu: "Zero cluster entry found in pre-v3 image",
    },
    Broken {
        rule: "contradictory subcluster bitmap",
        image: "features=extended_l2",
        build: WRITE,
        damage: "bitmap nth=0 transform=flip value=37",
        qemu: "Invalid cluster entry found",
    },
    Broken {
        rule: "contradictory subcluster bitmap",
        image: "features=extended_l2",
        build: "zero at=start+1 clusters=3 keep=no",
        damage: "bitmap nth=0 transform=set value=1",
        qemu: "Invalid cluster entry found",
    },
    Broken {
        rule: "cluster at another offset of the data file",
        image: "data_in=file",
        build: WRITE,
        damage: "l2 nth=0 transform=add_clusters value=1",
        qemu: "does not match guest cluster offset",
    },
    Broken {
        rule: "compressed cluster with a data file",
        image: "data_in=file",
        build: WRITE,
        damage: "l2 nth=0 transform=flip value=62",
        qemu: "Compressed cluster entry found",
    },
    // A layer below.
    Broken {
        rule: "cluster_bits",
        image: "",
        build: "write at=start+1 clusters=3\noverlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same\nwrite at=start+3 clusters=1",
        damage: "header depth=1 nth=8 transform=set value=22",
        qemu: "Could not open backing file: Unsupported cluster size",
    },
    Broken {
        rule: "cluster off a cluster boundary",
        image: "",
        build: "write at=start+1 clusters=3\noverlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same\nwrite at=start+3 clusters=1",
        damage: "l2 depth=1 nth=0 transform=misalign value=0",
        qemu: "Cluster allocation offset 0x30200 unaligned",
    },
];

impl Broken {
    /// Returns the program that damages its image.
    pub fn program(&self) -> Program {
        let given = |key: &str| self.image.split(' ').find(|it| it.starts_with(key));
        let mut line = format!("image {}", given("version").unwrap_or("version=3"));
        for one in USUAL.split(' ') {
            let (key, _) = one.split_once('=').unwrap();
            line = format!("{line} {}", given(key).unwrap_or(one));
        }
        line += " rng_seed=0 blocks=append table=append tolerance=0 ";
        line += given("data_in").unwrap_or_default();
        let patches = |attack: &str| -> String {
            let depth = if attack.contains("depth=") { "" } else { "depth=0 " };
            let (change, values) = attack.split_once(" value=").unwrap();
            let patch = |value| format!("patch part={change} {depth}value={value}\n");
            values.split(',').map(patch).collect()
        };
        let attacks: String = self.damage.lines().map(patches).collect();
        let text = format!("{line}\n{}\n{attacks}", self.build);
        assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Returns the same program without its attacks.
    pub fn sound(&self) -> Program {
        let mut program = self.program();
        program.operations.retain(|one| !matches!(one, Operation::Patch { .. }));
        program
    }
}
