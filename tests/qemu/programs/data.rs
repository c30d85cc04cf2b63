//! Data with given contents (`write_data`) are in the image exactly as documented: qemu-img and our walker read the
//! same bytes, in each format.

use qcowfuzz::harness::files::chain::ChainFolder;
use test_support::prelude::*;

/// The number of clusters of a disk.
const CLUSTERS: usize = 12;
/// The most bytes of the files of a chain.
const MAX_FOLDER_BYTES: u64 = 64 << 20;

/// Images of each kind: the options that differ from the usual ones, log2 of the size of a cluster, and the operations
/// behind the writes.
const IMAGES: [(&str, u32, &str); 11] = [
    ("cluster_bits=9", 9, ""),
    ("cluster_bits=12 base=raw", 12, OVERLAY),
    ("cluster_bits=16 data_in=file", 16, ""),
    ("cluster_bits=16 data_in=raw_file", 16, ""),
    ("cluster_bits=17", 17, "snapshot\nwrite_data at=start+7 clusters=1 content=same value=0\n"),
    ("cluster_bits=21", 21, ""),
    ("cluster_bits=18 base=vpc", 18, ""),
    ("cluster_bits=9 base=vhdx", 20, ""),
    ("cluster_bits=18 base=vmdk", 18, ""),
    ("cluster_bits=9 base=vdi", 20, ""),
    ("cluster_bits=12", 12, SAME),
];

const OVERLAY: &str =
    "overlay version=3 cluster_bits=9 refcount_order=4 features=none data_in=image size=same\n";
/// An overlay that writes the bytes of the layer below again.
const SAME: &str = "overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same\n\
                    write_data at=start+0 clusters=12 content=same value=0\n";

/// The first bytes of a qcow2 image, and some more.
const OWN: &str = "514649fb00000003deadbeef";
const WRITES: &str = "bytes kind=data data=514649fb00000003deadbeef\n\
                      write_data at=start+1 clusters=2 content=own value=9\n\
                      write_data at=start+3 clusters=1 content=repeat value=165\n\
                      write at=start+4 clusters=1\n\
                      write_data at=start+4 clusters=1 content=zeros value=0\n\
                      write_data at=start+5 clusters=1 content=entries value=250\n\
                      write_data at=start+6 clusters=1 content=counts value=1\n\
                      write_data at=start+7 clusters=2 content=deep value=0\n\
                      write_data at=start+7 clusters=1 content=same value=0\n";

/// Returns the bytes of a cluster with entries for the clusters from 250 on.
fn entries(format: ImageFormat, cluster_bits: u32) -> Vec<u8> {
    let entry = |cluster: u64| {
        let offset = cluster << cluster_bits;
        let sector = (offset >> 9) as u32;
        match format {
            ImageFormat::Qcow2 | ImageFormat::Raw => (offset | 1 << 63).to_be_bytes().to_vec(),
            ImageFormat::Vpc => sector.to_be_bytes().to_vec(),
            ImageFormat::Vhdx => (offset | 6).to_le_bytes().to_vec(),
            ImageFormat::Vmdk => sector.to_le_bytes().to_vec(),
            ImageFormat::Vdi => ((offset >> 20) as u32).to_le_bytes().to_vec(),
        }
    };
    cut((250..).flat_map(entry), cluster_bits)
}

/// Returns the first 4 KiB of some bytes, as a cluster.
fn cut(bytes: impl Iterator<Item = u8>, cluster_bits: u32) -> Vec<u8> {
    let mut cluster: Vec<u8> = bytes.take(4096.min(1 << cluster_bits)).collect();
    cluster.resize(1 << cluster_bits, 0);
    cluster
}

/// Reports whether bytes begin with the stamp of this guest offset.
fn is_stamped(bytes: &[u8], guest: usize) -> bool {
    bytes.starts_with(&(guest as u64).to_be_bytes())
}

/// Checks the clusters that [`WRITES`] has written.
fn check(bytes: &[u8], format: ImageFormat, cluster_bits: u32) {
    let size = 1 << cluster_bits;
    let cluster = |number: usize| &bytes[number * size..][..size];
    let own =
        cut(b"QFI\xfb\0\0\0\x03\xde\xad\xbe\xef".iter().copied().chain([0; 4096]), cluster_bits);
    assert!(cluster(1) == own && cluster(2) == own);
    assert!(cluster(3) == cut(std::iter::repeat(165), cluster_bits));
    assert!(cluster(4).iter().all(|byte| *byte == 0));
    assert!(cluster(5) == entries(format, cluster_bits));
    assert!(cluster(6) == cut([0, 1].into_iter().cycle(), cluster_bits));
    for number in [7, 8] {
        let deep = cluster(number);
        for part in (0..size).step_by(64 << 10) {
            assert!(is_stamped(&deep[part..], number * size + part), "{number}, {part:#x}");
        }
        let tail = &deep[size.saturating_sub(64 << 10) + 16..size - 16];
        assert!(tail.iter().all(|byte| *byte != 0));
    }
}

#[test]
fn qemu_reads_given_contents() {
    let Some(()) = qemu::tools() else { return };
    assert!(WRITES.contains(OWN));
    for (image, cluster_bits, behind) in IMAGES {
        let text = format!(
            "image version=3 refcount_order=4 features=none size={CLUSTERS}<<{cluster_bits}+0 rng_seed=0 \
             blocks=append table=append tolerance=0 {image}\n{WRITES}{behind}"
        );
        let mut harness = Harness::new(Walker::default());
        let run = harness.run(&assemble(&text).unwrap().encode(), Checks::AfterEach);
        run.unwrap_or_else(|failure| panic!("{text}{}", failure.violation));
        let lowest = harness.vm().journals().last().unwrap().format;
        let chain = Chain::new(harness.images());
        let mut walker = Walker::default();
        let mut disk = walker.open(&chain).unwrap();
        let mut bytes = vec![0; disk.virtual_size_bytes() as usize];
        disk.read(GuestOffset::ZERO, &mut bytes).unwrap();
        drop(disk);
        check(&bytes, lowest, cluster_bits);
        let dir = tempfile::tempdir().unwrap();
        let path = chain.write_to(&mut ChainFolder::new(dir.path(), MAX_FOLDER_BYTES)).unwrap();
        let theirs =
            qemu::convert_with(&["-f", chain.format().name()], &path, &dir.path().join("raw.out"));
        compare::same_bytes(image, 0, &bytes, &theirs.unwrap()).unwrap();
    }
}
