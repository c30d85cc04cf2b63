//! The bugs of vhdx-core in the replay of a log. No program builds a log that must be replayed, because QEMU opens such
//! an image for writing only. `findings/vhdx_core.toml` says what QEMU makes of these two images.

use qcowfuzz::harness::{Harness, Walker};
use qcowfuzz::internal::images::files::Images;
use qcowfuzz::prelude::*;
use qcowfuzz::programs::text::assemble;
use qcowfuzz_engines::vhdx_core::VhdxCore;
use vhdx::header::{
    HEADER_SIZE, HEADER1_OFFSET, HEADER2_OFFSET, REGION_TABLE1_OFFSET, crc32c, parse_active_header,
};
use vhdx::region::parse_region_table;

/// A disk of one block, which was written.
const PROGRAM: &str = "image version=3 cluster_bits=9 refcount_order=4 features=none size=1<<20+0 rng_seed=0 \
                       blocks=append table=append tolerance=0 base=vhdx\nwrite at=start+0 clusters=1\n";
/// The identity of the log.
const LOG: [u8; 16] = *b"a log to replay.";
/// The length of a sector of a log.
const SECTOR: usize = 4096;

/// A file in memory, with the offsets of its log and of its block allocation table.
struct LogFile {
    bytes: Vec<u8>,
    log: usize,
    table: usize,
}

impl LogFile {
    /// Builds the image of the program. Its headers say that the log is not empty.
    fn new() -> Self {
        let mut harness = Harness::new(Walker::default());
        harness.build(&assemble(PROGRAM).unwrap().encode());
        let file = &harness.images().top().image;
        let mut bytes = vec![0; file.length_bytes() as usize];
        file.read_at(HostOffset::ZERO, &mut bytes).unwrap();
        for header in [HEADER1_OFFSET, HEADER2_OFFSET] {
            let header = &mut bytes[header as usize..][..HEADER_SIZE];
            header[48..64].copy_from_slice(&LOG);
            seal(header);
        }
        let log = parse_active_header(&bytes).unwrap().log_offset as usize;
        let regions = parse_region_table(&bytes, REGION_TABLE1_OFFSET as usize, bytes.len() as u64);
        Self { log, table: regions.unwrap().bat.file_offset as usize, bytes }
    }

    /// Writes a log entry of `length` bytes with one descriptor, in front of the bytes of `rest`.
    fn write_entry(&mut self, length: usize, rest: &[u8]) {
        let mut entry = vec![0; length];
        entry[..4].copy_from_slice(b"loge");
        entry[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        // The sequence number, the number of descriptors, and the lengths of the file.
        entry[16..24].copy_from_slice(&1_u64.to_le_bytes());
        entry[24..28].copy_from_slice(&1_u32.to_le_bytes());
        entry[32..48].copy_from_slice(&LOG);
        for at in [48, 56] {
            entry[at..at + 8].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        }
        entry[64..64 + rest.len()].copy_from_slice(rest);
        seal(&mut entry);
        self.bytes[self.log..self.log + length].copy_from_slice(&entry);
    }

    /// Moves the first sector of the table into the log: the file itself has zeros there.
    fn move_table_to_log(&mut self) {
        let sector = self.bytes[self.table..self.table + SECTOR].to_vec();
        self.bytes[self.table..self.table + SECTOR].fill(0);
        let mut rest = vec![0; 2 * SECTOR - 64];
        let (descriptor, data) = rest.split_at_mut(SECTOR - 64);
        descriptor[..4].copy_from_slice(b"desc");
        descriptor[4..8].copy_from_slice(&sector[SECTOR - 4..]);
        descriptor[8..16].copy_from_slice(&sector[..8]);
        descriptor[16..24].copy_from_slice(&(self.table as u64).to_le_bytes());
        descriptor[24..32].copy_from_slice(&1_u64.to_le_bytes());
        data[..4].copy_from_slice(b"data");
        data[8..SECTOR - 4].copy_from_slice(&sector[8..SECTOR - 4]);
        data[SECTOR - 4..].copy_from_slice(&1_u32.to_le_bytes());
        self.write_entry(2 * SECTOR, &rest);
    }

    /// Returns the first bytes of the disk in the crate.
    fn read(&self) -> [u8; 16] {
        let mut images = Images::default();
        images.resize(1);
        let file = &mut images.layer_mut(0).image;
        file.write(HostOffset::ZERO, &self.bytes);
        file.seal(self.bytes.len() as u64);
        let chain = Chain::new(&images);
        let (mut engine, mut into) = (VhdxCore, [0xA5; 16]);
        engine.open(&chain).unwrap().read(GuestOffset::ZERO, &mut into).unwrap();
        into
    }
}

/// Corrects the checksum of a header or of a log entry.
fn seal(part: &mut [u8]) {
    part[4..8].fill(0);
    let checksum = crc32c(part).to_le_bytes();
    part[4..8].copy_from_slice(&checksum);
}

#[test]
fn the_log_is_not_replayed() {
    let mut file = LogFile::new();
    assert_ne!(file.read(), [0; 16], "without an entry in the log, the disk has its data");
    file.move_table_to_log();
    // The right answer is the same as before.
    assert_eq!(file.read(), [0; 16]);
}

#[test]
#[should_panic(expected = "out of range for slice of length 64")]
fn a_short_entry_is_a_panic() {
    let mut file = LogFile::new();
    // QEMU ignores the entry: its length is no multiple of a sector.
    file.write_entry(64, &[]);
    file.read();
}
