//! Damage that no reader may read through: for each rule, a program that breaks just this rule, and the answer of
//! qemu-img.

use crate::prelude::*;

/// A rule, and damage that breaks it.
pub struct Broken {
    pub rule: &'static str,
    /// The differences from the usual image.
    pub image: &'static str,
    /// The operations that build the image; see [`Broken::operations`].
    pub build: &'static str,
    /// The attacks; see [`attacks`].
    pub damage: &'static str,
    /// A part of the error that qemu-img prints.
    pub qemu: &'static str,
}

/// The fields of [`Broken`]. The number of an element is twice that of the field in the specification, from 0.
const CASES: &str = r"
    magic | | | header 0 flip 0 | Image is not in qcow2 format
    version | | | header 2 set 4 | Unsupported qcow2 version 4
    version | | | header 2 set 1 | Unsupported qcow2 version 1
    cluster_bits above 21 | | | header 8 set 22 | Unsupported cluster size: 2^22
    cluster_bits | | | header 8 set 8 | Unsupported cluster size: 2^8
    header_length | | | header 34 set 103 | qcow2 header too short
    header_length | | | header 34 boundary 10 | qcow2 header exceeds cluster size
    backing_file_offset | | | header 4 boundary 11 | Invalid backing file offset
    incompatible_features | | | header 26 flip 5 | Unsupported qcow2 feature
    compression_type | | | header 36 set 1 | incompatible feature bit must be set
    compression_type | | | header 26 flip 3 | incompatible feature bit must not be set
    subclusters below 512 bytes | cluster_bits=13 | | header 26 flip 4 | Unsupported subcluster size: 256
    refcount_order | | | header 32 set 7 | Reference count entry width too large
    crypt_method above 2 | | | header 12 set 3 | Unsupported encryption method 3
    AES encryption | | | header 12 set 1 | key-secret' is required
    LUKS encryption | | | header 12 set 2 | Missing CRYPTO header
    refcount_table_clusters 0 | | | header 20 set 0 | does not contain a reference count table
    refcount table above 8 MiB | | | header 20 set 129 | Reference count table too large
    refcount_table_offset | | | header 18 misalign 0 | Reference count table offset invalid
    nb_snapshots | | | header 22 boundary 11 | Snapshot table too large
    snapshots_offset | | | header 24 set 512 | Snapshot table offset invalid
    l1_size above 32 MiB | | | header 14 boundary 12 | Active L1 table too large
    l1_table_offset | | | header 16 misalign 0 | Active L1 table offset invalid
    size of 2^63 or more | | | header 10 boundary 1 | Could not refresh total sector count
    l1_size below the size | | | header 14 set 0 | L1 table is too small
    backing_file_size | | + header length=104+8 order=0 unknown=0 bytes=0 flags=empty_name | header 6 set 1024 | Backing file name too long
    raw data file without a data file | | | header 30 flip 1 | data-file-raw requires a data file
    extension's length | features=feature_names | | extension 2 set 65535 | Header extension too large
    # From 6803F857, the feature name table, to E2792ACA.
    backing format's length | features=feature_names | | extension 0 add 12915; extension 0 flip 16,18,19,20,21,22,25,27,31 | ext_backing_format: len=144 too large
    crypto extension without LUKS | features=feature_names | | extension 0 add 50720; extension 0 flip 18,20,21,24,26,27,29,30 | CRYPTO header extension only expected
    bitmaps extension's length | | bitmap | extension 2 set 16 | bitmaps_ext: Invalid extension length
    bitmaps extension's reserved field | | bitmap | extension 4 add 1 | bitmaps_ext: Reserved field is not zero
    nb_bitmaps | | bitmap | extension 4 set 0 | bitmaps extension with zero bitmaps
    bitmap_directory_size | | bitmap | extension 6 set 0 | bitmap directory size is zero
    nb_bitmaps above 65535 | | bitmap | extension 4 flip 48 | bitmaps
    bitmap directory above 64 MiB | | bitmap | extension 6 boundary 15 | exceeds the maximum supported size
    bitmap_directory_offset | | bitmap | extension 8 misalign 0 | invalid bitmap directory offset
    snapshot's extra data above 1024 bytes | | + snapshot | snapshot 16 set 1025 | Too much extra metadata
    L2 table off a cluster boundary | | | l1 0 misalign 0 | L2 table offset 0x20200 unaligned
    cluster off a cluster boundary | | | l2 0 misalign 0 | Cluster allocation offset 0x30200 unaligned
    cluster off a cluster boundary | | + zero at=start+1 clusters=3 keep=yes | l2 2 misalign 4 | Cluster allocation offset 0x40a00 unaligned
    zero flag in version 2 | version=2 | | l2 0 flip 0 | Zero cluster entry found in pre-v3 image
    contradictory subcluster bitmap | features=extended_l2 | | bitmap 0 flip 37 | Invalid cluster entry found
    contradictory subcluster bitmap | features=extended_l2 | zero at=start+1 clusters=3 keep=no | bitmap 0 set 1 | Invalid cluster entry found
    cluster at another offset of the data file | data_in=file | | l2 0 add_clusters 1 | does not match guest cluster offset
    compressed cluster with a data file | data_in=file | | l2 0 flip 62 | Compressed cluster entry found
    # A layer below.
    cluster_bits above 21 | | overlay | header@1 8 set 22 | Could not open backing file: Unsupported cluster size
    cluster off a cluster boundary | | overlay | l2@1 0 misalign 0 | Cluster allocation offset 0x30200 unaligned
";

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = Broken> {
    rows(CASES).map(|[rule, image, build, damage, qemu]| Broken {
        rule,
        image,
        build,
        damage,
        qemu,
    })
}

/// Returns the lines of attacks: `PART@DEPTH NUMBER TRANSFORM VALUES`, with `;` between two of them. Each of several
/// values makes a line, and without a depth, the attack changes the image at the top.
pub fn attacks(damage: &str) -> String {
    let patches = |attack: &str| -> String {
        let words: Vec<&str> = attack.split_whitespace().collect();
        let [place, nth, transform, values] = words[..] else { panic!("not an attack: {attack}") };
        let (part, depth) = place.split_once('@').unwrap_or((place, "0"));
        let patch = |value| {
            format!(
                "patch part={part} depth={depth} nth={nth} transform={transform} value={value}\n"
            )
        };
        values.split(',').map(patch).collect()
    };
    damage.split(';').map(patches).collect()
}

impl Broken {
    /// Returns the operations that build the image: nothing stands for a write, `bitmap` for a write and a bitmap, and
    /// `overlay` for a write and a layer above it. `+` stands for a write before other operations.
    fn operations(&self) -> String {
        let write = "write at=start+1 clusters=3\n";
        match (self.build, self.build.strip_prefix('+')) {
            ("", _) => write.to_string(),
            ("bitmap", _) => format!("{write}bitmap granularity=16 flags=none name=5\n"),
            ("overlay", _) => format!(
                "{write}overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same\n\
                 write at=start+3 clusters=1\n"
            ),
            (_, Some(more)) => format!("{write}{}\n", more.trim()),
            (all, None) => format!("{}\n", all.replace("; ", "\n")),
        }
    }

    /// Returns the program that damages its image.
    pub fn program(&self) -> Program {
        let image = format!("features=compression_field size=300<<16+0 {}", self.image);
        lines::program(&image, &(self.operations() + &attacks(self.damage)))
    }

    /// Returns the same program without its attacks.
    pub fn sound(&self) -> Program {
        let mut program = self.program();
        program.operations.retain(|one| !matches!(one, Operation::Patch { .. }));
        program
    }
}
