//! The bits of persistent bitmaps: qemu must read the bits that our build writes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use qcowfuzz::formats::qcow2::bitmap::BitmapCluster;
use qcowfuzz::formats::qcow2::bitmap::BitmapEntry;
use qcowfuzz::formats::qcow2::bitmap::BitmapTableEntry;
use qcowfuzz::formats::qcow2::constants::BITMAP_FIXED_BYTES;
use qcowfuzz::formats::qcow2::head::Head;

use crate::bitmaps::built;
use crate::qemu;

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
    if !qemu::tools_are_there("qemu_reads_the_bits_that_we_write") {
        return;
    }
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
