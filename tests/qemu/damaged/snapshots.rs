//! Damaged snapshot tables: we open an image if qemu-img opens it, and `check` exits with the same code.

use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use qcowfuzz::internal::images::export;

/// The cluster size of the damaged image.
const CLUSTER: u64 = 1 << 16;
/// The length of the longest file that QEMU reads.
const LONGEST_FILE: u64 = (1 << 63) - (1 << 30);

/// The image of a disk with two snapshots, and the path of its file.
struct Damaged {
    file: File,
    /// The host offset of the snapshot table.
    table: u64,
}

impl Damaged {
    fn new(path: &Path) -> Self {
        let program = assemble(
            "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 \
             rng_seed=0 blocks=append table=append tolerance=0\n\
             write at=start+1 clusters=3\n\
             snapshot_with extra=24 vm=1 spread=0 id=1 name=7\n\
             write at=start+2 clusters=1\n\
             snapshot",
        );
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.unwrap().encode());
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.unwrap();
        export::write(image, &file, Holes::Fill).unwrap();
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 64).unwrap();
        Self { file, table: u64::from_be_bytes(word) }
    }

    /// Writes into the header.
    fn header(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    /// Writes into the first entry of the table.
    fn first(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, self.table + at).unwrap();
    }

    /// Writes into the second entry. It follows the 40 bytes, the extra data, the id and the name of the first.
    fn second(&self, at: u64, bytes: &[u8]) {
        self.first(40 + 24 + 8 + at, bytes);
    }

    /// Replaces the table by one of `count` entries with the longest ids and names, at the end of the image.
    fn long_table(&self, count: u32) {
        let table = 1 << 24;
        self.header(60, &count.to_be_bytes());
        self.header(64, &u64::to_be_bytes(table));
        for index in 0..u64::from(count) {
            let at = table + index * (40u64 + 16 + 65_535 * 2).next_multiple_of(8);
            self.file.write_all_at(&[0xFF; 4], at + 12).unwrap();
            self.file.write_all_at(&16u32.to_be_bytes(), at + 36).unwrap();
        }
    }
}

/// A kind of damage: its name, whether the image opens, and the function that applies it.
type Case = (&'static str, bool, &'static dyn Fn(&Damaged));

const CASES: &[Case] = &[
    ("sound", true, &|_| {}),
    ("extra data of 1024 bytes", true, &|it| it.second(36, &1024u32.to_be_bytes())),
    ("extra data of 1025 bytes", false, &|it| it.second(36, &1025u32.to_be_bytes())),
    ("the most extra data", false, &|it| it.first(36, &[0xFF; 4])),
    ("extra data that version 3 does not allow", true, &|it| it.second(36, &8u32.to_be_bytes())),
    ("no extra data", true, &|it| it.second(36, &[0; 4])),
    ("an L1 table off the clusters", true, &|it| it.second(6, &[2])),
    ("an L1 table past 2^63", true, &|it| it.first(0, &[0x80, 0, 0, 0, 0, 0, 0, 0])),
    ("the longest L1 table", true, &|it| it.second(8, &(4u32 << 20).to_be_bytes())),
    ("an L1 table that is too long", true, &|it| it.second(8, &[0xFF; 4])),
    ("the longest strings", true, &|it| it.second(12, &[0xFF; 4])),
    ("a table off the clusters", false, &|it| it.header(70, &[2])),
    ("no snapshots, and a table off the clusters", false, &|it| {
        it.header(60, &[0; 4]);
        it.header(70, &[2]);
    }),
    ("a table past the end", true, &|it| it.header(64, &(1u64 << 40).to_be_bytes())),
    ("65,536 snapshots past the end", true, &|it| {
        it.header(60, &65_536u32.to_be_bytes());
        it.header(64, &(1u64 << 40).to_be_bytes());
    }),
    ("65,537 snapshots", false, &|it| it.header(60, &65_537u32.to_be_bytes())),
    ("a table at the end of the longest file", true, &|it| {
        it.header(60, &1638u32.to_be_bytes());
        it.header(64, &(LONGEST_FILE - CLUSTER).to_be_bytes());
    }),
    ("a table past the end of the longest file", false, &|it| {
        it.header(60, &1639u32.to_be_bytes());
        it.header(64, &(LONGEST_FILE - CLUSTER).to_be_bytes());
    }),
    ("a table past the end of all offsets", false, &|it| {
        it.header(60, &1639u32.to_be_bytes());
        it.header(64, &((1 << 63) - CLUSTER).to_be_bytes());
    }),
    ("a table of less than 64 MiB", true, &|it| it.long_table(511)),
    ("a table of more than 64 MiB", false, &|it| it.long_table(512)),
];

#[test]
fn qemu_opens_and_checks_the_same_snapshot_tables() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let ours = Path::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    let theirs = Path::new("qemu-img");
    let there = qemu::tools().is_some();
    let code = |program: &Path, command: &str| {
        let mut run = Command::new(program);
        let output = run.args([command, "--output=json"]).arg(&path).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, opened, damage) in CASES {
        damage(&Damaged::new(&path));
        let (map, said) = code(ours, "map");
        assert_eq!(map == Some(0), *opened, "{name}: {said}");
        if there {
            assert_eq!(code(theirs, "map").0 == Some(0), *opened, "{name}");
            if name.starts_with("65,536") {
                // qemu-img takes ten seconds to print a line for each of them.
                continue;
            }
            let (checked, said) = code(ours, "check");
            let (expected, printed) = code(theirs, "check");
            assert_eq!(checked, expected, "{name}: ours {said}\ntheirs {printed}");
        }
    }
}
