//! Persistent bitmaps: the ones that qemu refuses.

use test_support::prelude::*;

use qcowfuzz::formats::error::MapError;
use qcowfuzz::formats::qcow2::bitmap::{BitmapCluster, BitmapEntry, BitmapTableEntry};
use qcowfuzz::formats::qcow2::constants::{AUTOCLEAR_BITMAPS, BITMAP_FIXED_BYTES};
use qcowfuzz::internal::harness::oracles::qcow2::recount::Recount;

use super::info::{self, Compared};
use test_support::qemu::Findings;

const IMAGE: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none \
                     size=3000<<12+0 rng_seed=0 blocks=append table=append tolerance=0\n";

/// Returns the bytes of an image with these operations.
pub fn built(operations: &str) -> Vec<u8> {
    lines::file(&format!("{IMAGE}{operations}"))
}

/// An image with two bitmaps, and their offsets in it.
#[derive(Clone)]
struct Patched {
    bytes: Vec<u8>,
    extension: usize,
    directory: usize,
    tables: [usize; 2],
}

/// The offset of the second entry of the directory. The first has a name of three bytes.
const SECOND: usize = 32;

impl Patched {
    /// Returns an image whose first bitmap is consistent and whose second is in use.
    fn new() -> Self {
        let bytes = built(
            "write at=start+5 clusters=3\nbitmap granularity=9 flags=auto name=3\n\
             bitmap granularity=16 flags=in_use name=0\n\
             fill_bitmap index=0 entry=0 entries=1 fill=bits\n\
             fill_bitmap index=1 entry=0 entries=1 fill=bits\n",
        );
        let directory = Head::read(&bytes[..]).unwrap().bitmaps.unwrap().directory_offset;
        let directory = directory.get() as usize;
        let mut patched = Self { bytes, extension: 104, directory, tables: [0; 2] };
        patched.tables = [directory, directory + SECOND].map(|at| patched.word(at) as usize);
        patched
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, at: usize, word: u64) {
        self.put(at, &word.to_be_bytes());
    }

    fn add(&mut self, at: usize, delta: i64) {
        self.put_word(at, self.word(at).wrapping_add_signed(delta));
    }

    fn extension(&mut self, field: usize, bytes: &[u8]) {
        self.put(self.extension + field, bytes);
    }

    fn table_entry(&mut self, bitmap: usize, word: u64) {
        self.put_word(self.tables[bitmap], word);
    }
}

type Patch = fn(&mut Patched);

/// The damage with which qemu neither maps nor checks the image.
const REFUSED: &[(&str, Patch)] = &[
    ("length 23", |it| it.extension(4, &[0, 0, 0, 23])),
    ("length 32", |it| it.extension(4, &[0, 0, 0, 32])),
    ("length 23, the bit clear", |it| {
        it.extension(4, &[0, 0, 0, 23]);
        it.put_word(88, 0);
    }),
    ("no bitmaps", |it| it.extension(8, &[0, 0, 0, 0])),
    ("65536 bitmaps", |it| it.extension(8, &[0, 1, 0, 0])),
    ("fewer bitmaps than there are", |it| it.extension(8, &[0, 0, 0, 1])),
    ("more bitmaps than there are", |it| it.extension(8, &[0, 0, 0, 3])),
    ("reserved", |it| it.extension(15, &[1])),
    ("an empty directory", |it| it.put_word(it.extension + 16, 0)),
    ("a directory that is too long", |it| it.put_word(it.extension + 16, 65_535 * 1024 + 1)),
    ("a directory with a little more", |it| it.add(it.extension + 16, 8)),
    ("a directory with room for an entry more", |it| it.add(it.extension + 16, 32)),
    ("a directory with a little less", |it| it.add(it.extension + 16, -1)),
    ("a directory that is not on a cluster boundary", |it| it.add(it.extension + 24, 512)),
    ("a directory past the end of the file", |it| it.put_word(it.extension + 24, 1 << 40)),
    ("a directory past 2^63", |it| it.put_word(it.extension + 24, 1 << 63)),
    ("a directory in the header", |it| it.put_word(it.extension + 24, 0)),
    ("a table at 0", |it| it.put_word(it.directory, 0)),
    ("a table that is not on a cluster boundary", |it| it.add(it.directory, 512)),
    ("a table past 2^63", |it| it.put_word(it.directory, 1 << 63)),
    ("a table of no entries", |it| it.put(it.directory + 8, &[0; 4])),
    ("a table that is too long for the disk", |it| it.put(it.directory + 11, &[2])),
    ("a table in use of more than 512 MiB", |it| {
        it.put(it.directory + SECOND + 8, &[0, 2, 0, 1]);
    }),
    ("a reserved flag", |it| it.put(it.directory + 15, &[8])),
    ("extra data compatible", |it| it.put(it.directory + 15, &[6])),
    ("another type", |it| it.put(it.directory + 16, &[2])),
    ("granularity 8", |it| it.put(it.directory + 17, &[8])),
    ("granularity 32", |it| it.put(it.directory + 17, &[32])),
    ("a name of 1024 bytes", |it| it.put(it.directory + 18, &[4, 0])),
    ("extra data", |it| it.put(it.directory + 23, &[3])),
    ("a table entry with reserved bits", |it| it.table_entry(0, 2)),
    ("a table entry with a reserved bit above", |it| it.table_entry(0, 1 << 56)),
    ("a table entry of both kinds", |it| it.add(it.tables[0], 1)),
    ("bits that are not on a cluster boundary", |it| it.add(it.tables[0], 512)),
    ("a disk of no size", |it| it.put_word(24, 0)),
    ("a longer disk", |it| it.put_word(24, (3000 << 12) * 2)),
];

/// The damage with which qemu maps the image, but does not check it: it reads bitmaps in use only for the check.
const UNCHECKED: &[(&str, Patch)] = &[
    ("in use, a table entry with reserved bits", |it| it.table_entry(1, 2)),
    ("in use, a table entry of both kinds", |it| it.add(it.tables[1], 1)),
    ("in use, bits that are not on a cluster boundary", |it| it.add(it.tables[1], 512)),
];

/// The damage with which qemu maps and checks the image, with findings or without.
const ACCEPTED: &[(&str, Patch)] = &[
    ("as built", |_| {}),
    ("the bit is clear", |it| it.put_word(88, 0)),
    ("the bit is clear, and nothing is right", |it| {
        it.put_word(88, 0);
        it.extension(8, &[0xFF; 24]);
    }),
    ("the bit without the extension", |it| it.extension(0, &[0x12])),
    ("in use, a longer table", |it| it.put(it.directory + SECOND + 11, &[77])),
    ("no flags", |it| it.put(it.directory + 15, &[0])),
    ("granularity 31", |it| it.put(it.directory + 17, &[31])),
    ("a padding of ones", |it| it.put(it.directory + 27, &[0xFF; 5])),
    ("zeroes, the cluster is leaked", |it| it.table_entry(0, 0)),
    ("ones, the cluster is leaked", |it| it.table_entry(0, 1)),
    ("bits past the end of the file", |it| it.table_entry(1, 1 << 40)),
    ("bits of both", |it| it.table_entry(1, it.word(it.tables[0]))),
    ("a table past the end of the file", |it| it.put_word(it.directory, 1 << 40)),
    ("the directory is not counted", |it| {
        let counts = it.word(it.word(48) as usize) as usize;
        let cluster = it.directory >> 12;
        it.put(counts + cluster * 2, &[0, 0]);
    }),
];

#[test]
fn we_refuse_of_bitmaps_what_qemu_refuses() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let sound = Patched::new();
    let run = |tool: &str, words: &str| {
        Command::new(tool).args(words.split(' ')).arg(&path).output().unwrap()
    };
    let ours = env!("CARGO_BIN_EXE_qcowfuzz");
    let rows = [(REFUSED, false, false), (UNCHECKED, true, false), (ACCEPTED, true, true)];
    for (patches, mapped, checked) in rows {
        for (name, patch) in patches {
            let mut patched = sound.clone();
            patch(&mut patched);
            fs::write(&path, &patched.bytes).unwrap();
            let map = run("qemu-img", "map -f qcow2");
            assert_eq!(map.status.success(), mapped, "{name}: {map:?}");
            let expected = if mapped { Compared::Same } else { Compared::Refused };
            assert_eq!(info::compare_json(&path, ImageFormat::Qcow2), Ok(expected), "{name}");
            // The walker does not read the directory, because its answer does not depend on it.
            let our_map = run(ours, "map -f qcow2");
            let head = Head::read(&patched.bytes[..]);
            assert_eq!(our_map.status.success(), head.is_ok(), "{name}: {our_map:?}");
            assert!(mapped <= head.is_ok(), "{name}: {head:?}");
            let [theirs, ours] = ["qemu-img", ours].map(|tool| run(tool, "check --output=json"));
            assert_eq!(theirs.status.code() != Some(1), checked, "{name}: {theirs:?}");
            assert_eq!(theirs.status.code(), ours.status.code(), "{name}: {theirs:?}\n{ours:?}");
            if checked {
                let findings = |output: Output| -> Findings {
                    serde_json::from_slice(&output.stdout).unwrap()
                };
                assert_eq!(findings(theirs), findings(ours), "{name}");
            }
        }
    }
}

/// QEMU refuses a second bitmap of the same name, unless that one is in use.
#[test]
fn info_refuses_two_bitmaps_of_one_name_as_qemu_does() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let sound =
        built("bitmap granularity=9 flags=auto name=3\nbitmap granularity=16 flags=auto name=3\n");
    let directory = Head::read(&sound[..]).unwrap().bitmaps.unwrap().directory_offset;
    let directory = directory.get() as usize;
    let (auto, both) = (2, 3);
    for (flags, same, expected) in [
        ([auto, auto], false, Compared::Same),
        ([both, both], false, Compared::Same),
        ([auto, auto], true, Compared::Refused),
        ([both, auto], true, Compared::Refused),
        ([auto, both], true, Compared::Same),
        ([both, both], true, Compared::Same),
    ] {
        let mut bytes = sound.clone();
        [bytes[directory + 15], bytes[directory + SECOND + 15]] = flags;
        let name = directory + 24;
        if same {
            bytes.copy_within(name..name + 3, name + SECOND);
        }
        fs::write(&path, bytes).unwrap();
        let compared = info::compare_json(&path, ImageFormat::Qcow2);
        assert_eq!(compared, Ok(expected), "{flags:?}, {same}");
    }
}

/// Reports whether qemu refuses to open the bitmaps of an image.
pub fn refused(storage: &dyn Storage) -> bool {
    let found = Recount::new().recount(storage).map(drop);
    matches!(found, Err(MapError::BitmapDirectory { .. } | MapError::Bitmap { .. }))
}

/// Damages the bitmaps of an image that qemu made, in one way after the other, and compares our check with qemu-img
/// check. Restores the image, and returns the number of kinds of damage.
pub fn judge_damaged(path: &Path) -> Checked<u64> {
    let sound = fs::read(path).described()?;
    let Head { header, bitmaps, .. } = Head::read(&sound[..]).described()?;
    let Some(extension) = bitmaps else { return Ok(0) };
    let directory = extension.directory_offset.get();
    let table = u64::from_be_bytes(sound[directory as usize..][..8].try_into().unwrap());
    let cluster = header.geometry.cluster_size.bytes();
    let damage = [
        ("the autoclear bit is cleared", 88, header.autoclear & !AUTOCLEAR_BITMAPS),
        ("a cluster of bits is all zeroes, or was", table, 0),
        ("a cluster of bits is all ones", table, 1),
        ("bits are where the directory is", table, directory),
        ("bits are where the table is", table, table),
        ("bits are where the header is", table, table % cluster),
        ("bits are past the end", table, (sound.len() as u64).next_multiple_of(cluster) + cluster),
    ];
    for (name, at, word) in damage {
        let mut damaged = sound.clone();
        damaged[at as usize..][..8].copy_from_slice(&word.to_be_bytes());
        fs::write(path, &damaged).described()?;
        let (theirs, said) = qemu::check(path).map_err(|what| format!("{name}: {what}"))?;
        let mut ours = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
        let ours = ours.args(["check", "--output=json"]).arg(path).output().unwrap();
        let printed = String::from_utf8_lossy(&ours.stderr);
        let found: Findings = serde_json::from_slice(&ours.stdout)
            .map_err(|error| format!("{name}: {error}: {printed}"))?;
        if found != theirs {
            return Err(format!("{name}: ours {found:?}, theirs {theirs:?}\n{printed}\n{said}"));
        }
    }
    fs::write(path, sound).described()?;
    Ok(damage.len() as u64)
}

/// If a bitmap would have more than 2^41 bits, an assertion ends qemu (seen in QEMU 10.0.2: `hbitmap_alloc`,
/// `hbitmap_truncate`). When qemu opens an image, it does not check the length of a bitmap in use; after a resize, it
/// checks the length only when it stores the bitmap. So `limits` bounds the bits of every bitmap, in use or not, and a
/// resize past the bound has no effect.
#[test]
fn qemu_still_aborts_where_a_bitmap_is_too_long() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let run = |before: &str, after: &[&str]| {
        let mut command = Command::new("qemu-img");
        command.args(before.split(' ')).arg(&path).args(after).output().unwrap().status
    };
    assert!(run("create -q -f qcow2 -o cluster_size=2M", &["1G"]).success());
    assert!(run("bitmap --add -g 512", &["one"]).success());
    assert_eq!(run("resize -q -f qcow2", &["4096T"]).code(), None);
    // The disk has grown and the bitmap is in use. No tool opens the image any more.
    assert_eq!(run("check -f qcow2", &[]).code(), None);
    assert_eq!(run("map -f qcow2", &[]).code(), None);
}

/// A bitmap of a file: its name, its flags, its granularity, and its bits.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    name: String,
    flags: u32,
    granularity_bits: u8,
    bits: Vec<u8>,
}

/// Returns the bitmaps of the file at `path`. A cluster of bits is 4096 bytes.
fn bitmaps(path: &Path) -> Vec<Read> {
    let bytes = fs::read(path).unwrap();
    let Head { header, bitmaps, .. } = Head::read(&bytes[..]).unwrap();
    let extension = bitmaps.unwrap();
    let mut at = extension.directory_offset.get() as usize;
    let mut found = Vec::new();
    for _ in 0..extension.bitmaps {
        let (fixed, rest) = bytes[at..].split_first_chunk::<BITMAP_FIXED_BYTES>().unwrap();
        let entry = BitmapEntry::parse(fixed);
        let name = String::from_utf8(rest[..usize::from(entry.name_bytes)].to_vec()).unwrap();
        let table = entry.table_offset.get() as usize;
        let mut bits = Vec::new();
        for word in bytes[table..].as_chunks().0.iter().take(entry.table_entries as usize) {
            let word = BitmapTableEntry(u64::from_be_bytes(*word));
            match word.cluster(header.geometry.cluster_size).unwrap() {
                BitmapCluster::AllZeroes => bits.extend([0; 4096]),
                BitmapCluster::AllOnes => bits.extend([0xFF; 4096]),
                BitmapCluster::Data(host) => {
                    bits.extend(&bytes[host.get() as usize..][..4096]);
                }
            }
        }
        // Bits past the end of the disk have no meaning.
        let count = header.virtual_size_bytes().div_ceil(1 << entry.granularity_bits);
        bits.truncate(count.div_ceil(8) as usize);
        if !count.is_multiple_of(8) {
            *bits.last_mut().unwrap() &= (1 << (count % 8)) - 1;
        }
        let (flags, granularity_bits) = (entry.flags, entry.granularity_bits);
        found.push(Read { name, flags, granularity_bits, bits });
        at += entry.length_bytes() as usize;
    }
    found
}

/// `qemu-img convert --bitmaps` reads every bitmap and writes it again.
#[test]
fn qemu_reads_the_bits_that_we_write() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (ours, copy) = (dir.path().join("ours.qcow2"), dir.path().join("copy.qcow2"));
    let bitmap = |granularity: u8| {
        let name = 17 * (u16::from(granularity) - 8);
        let flags = if granularity.is_multiple_of(2) { "auto" } else { "none" };
        format!("bitmap granularity={granularity} flags={flags} name={name}\n")
    };
    // 256 MiB: 16 clusters of bits at granularity 9, half a bit at 29.
    let mut operations = "resize size=1<<28+512\n".to_string();
    for granularity in [9, 10, 12, 16, 20, 22, 26, 29] {
        operations += &bitmap(granularity);
    }
    for index in 0..8 {
        operations += &format!("fill_bitmap index={index} entry=0 entries=1 fill=bits\n");
    }
    operations += "fill_bitmap index=0 entry=3 entries=5 fill=ones\n\
                   fill_bitmap index=0 entry=15 entries=2 fill=bits\n\
                   fill_bitmap index=1 entry=7 entries=2 fill=ones\n\
                   fill_bitmap index=7 entry=0 entries=1 fill=ones\n";
    // The disk grows and shrinks again. The tables follow.
    for resized in ["", "resize size=1<<29+0\n", "resize size=3<<22+5120\n"] {
        operations += resized;
        fs::write(&ours, built(&operations)).unwrap();
        let options = "convert --bitmaps -f qcow2 -O qcow2 -o cluster_size=4096";
        let words = options.split(' ').map(OsStr::new);
        let paths = [ours.as_os_str(), copy.as_os_str()];
        qemu::img(&words.chain(paths).collect::<Vec<_>>()).unwrap();
        let (mut ours, mut copied) = (bitmaps(&ours), bitmaps(&copy));
        // A copy has another order, and keeps only the bits of disabled bitmaps.
        for all in [&mut ours, &mut copied] {
            all.sort_by(|one, other| one.name.cmp(&other.name));
        }
        assert_eq!(ours.len(), 8);
        assert!(
            ours.iter().all(|one| one.bits.len() < 2 || one.bits.iter().any(|byte| *byte != 0))
        );
        assert_eq!(ours, copied, "{operations}");
    }
}
