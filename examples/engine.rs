//! An engine for another implementation: a small reader of qcow2 images. The reader ignores the zero flag of L2
//! entries, so that the oracles find a bug.
//!
//!     cargo run --release --example engine            runs generated programs
//!     cargo run --release --example engine -- INPUT   replays and minimizes the input in a file

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::ops::ControlFlow;
use std::process::ExitCode;

use qcowfuzz::findings::minimizer::{MinimizeProgress, MinimizeSettings, minimize};
use qcowfuzz::harness::cases::target::Inputs;
use qcowfuzz::harness::{Checks, Harness};
use qcowfuzz::images::Limits;
use qcowfuzz::prelude::*;
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::generate_any;

/// The engine: opens images with the reader below. It answers only `map`: the harness reports that look-ups, reads and
/// snapshots have no answer.
#[derive(Clone)]
pub struct Small {
    /// The reader respects bit 0 of an L2 entry, the zero flag. If this is false, the reader has its bug.
    pub sees_zero_flag: bool,
}

impl Engine for Small {
    // The harness folds each program into the other features, so no image has one of these.
    describe!("small", no: [ExtendedL2, Qcow2Backing, RawBacking, DataFile]);

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        // The chain has one layer, because this engine does not claim backing files.
        let storage = chain.image();
        let disk = reader::open(storage)?;
        Ok(Box::new(SmallDisk { storage, disk, sees_zero_flag: self.sees_zero_flag }))
    }
}

/// An open image.
struct SmallDisk<'s> {
    storage: &'s ChainFile,
    disk: reader::Disk,
    sees_zero_flag: bool,
}

impl OpenDisk for SmallDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.disk.size
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let mut extents: Vec<Extent> = Vec::new();
        for (start, length_bytes, entry) in reader::clusters(self.storage, &self.disk)? {
            let mapping = mapping(entry, self.sees_zero_flag);
            match extents.last_mut() {
                Some(last) if last.mapping.continues_as(last.length_bytes, &mapping) => {
                    last.length_bytes += length_bytes;
                }
                _ => extents.push(Extent { start: GuestOffset::new(start), length_bytes, mapping }),
            }
        }
        let range = window.clipped(self.disk.size);
        for extent in extents {
            let start = extent.start.max(range.start);
            let end = (extent.start + extent.length_bytes).min(range.end);
            let Some(length_bytes) = end.distance_from(start).filter(|length| *length > 0) else {
                continue;
            };
            let skipped = start.saturating_distance_from(extent.start);
            let Some(mapping) = extent.mapping.advanced(skipped) else { break };
            if visitor.extent(Extent { start, length_bytes, mapping }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the mapping that `qemu-img map` prints for an L2 entry.
fn mapping(entry: u64, sees_zero_flag: bool) -> Mapping {
    let host = entry & reader::OFFSET;
    let zero = sees_zero_flag && entry & 1 != 0;
    let there = Mapping { present: true, ..Mapping::HOLE };
    match (entry & reader::COMPRESSED != 0, zero, host) {
        (true, ..) => Mapping { zero: false, data: true, compressed: true, ..there },
        (_, false, 0) => Mapping::HOLE,
        (_, true, 0) => there,
        (_, zero, _) => Mapping { zero, data: !zero, offset: Some(HostOffset::new(host)), ..there },
    }
}

/// The code under test. It uses nothing of the harness except `Storage`, which holds the bytes.
mod reader {
    use super::{HostOffset, Storage};
    use qcowfuzz::disk::error::StorageError;

    pub const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    pub const COMPRESSED: u64 = 1 << 62;

    pub struct Disk {
        pub size: u64,
        cluster_bits: u32,
        l1: u64,
        l1_entries: u64,
    }

    /// Reads the header.
    pub fn open(storage: &dyn Storage) -> Result<Disk, StorageError> {
        let mut header = [0; 48];
        storage.read_at(HostOffset::ZERO, &mut header)?;
        let field = |at: usize, bytes: usize| {
            header[at..at + bytes].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let (size, cluster_bits) = (field(24, 8) / 512 * 512, field(20, 4) as u32);
        Ok(Disk { size, cluster_bits, l1: field(40, 8), l1_entries: field(36, 4) })
    }

    /// Returns the disk as runs: guest offset, length, L2 entry. The entry of an unmapped run is 0.
    pub fn clusters(
        storage: &dyn Storage,
        disk: &Disk,
    ) -> Result<Vec<(u64, u64, u64)>, StorageError> {
        let (bits, cluster) = (disk.cluster_bits, 1 << disk.cluster_bits);
        let (mut runs, mut at) = (Vec::new(), 0);
        for (table, l1_entry) in entries(storage, disk.l1, disk.l1_entries)? {
            for (index, entry) in entries(storage, l1_entry & OFFSET, cluster / 8)? {
                let start = (table << (2 * bits - 3)) + (index << bits);
                if start < disk.size {
                    runs.push((at, start - at, 0));
                    runs.push((start, cluster.min(disk.size - start), entry));
                    at = start + cluster.min(disk.size - start);
                }
            }
        }
        runs.push((at, disk.size - at, 0));
        runs.retain(|(_, length, _)| *length > 0);
        Ok(runs)
    }

    /// Returns the entries of a table that are not 0, each with its index. Skips holes of the file.
    fn entries(
        storage: &dyn Storage,
        table: u64,
        count: u64,
    ) -> Result<Vec<(u64, u64)>, StorageError> {
        let (mut found, mut scratch) = (Vec::new(), [0; 4096]);
        let (mut from, end) = (table, table + count.next_multiple_of(2) * 8);
        while from < end
            && let Some(data) =
                storage.next_data(HostOffset::new(from), HostOffset::new(end), &mut scratch)?
        {
            let first = (data.offset.get() - table) / 8;
            let words = data.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
            found.extend((first..count).zip(words).filter(|(_, entry)| *entry != 0));
            from = data.offset.get() + data.bytes.len() as u64;
        }
        Ok(found)
    }
}

/// Runs a program, and returns the fingerprint of the violation, if any.
fn fingerprint(harness: &mut Harness, input: &[u8]) -> Option<String> {
    let found = harness.run(input, Checks::AtCheckpoints).err();
    found.map(|failure| failure.violation.fingerprint())
}

/// Runs generated programs. Returns how many of them the engine supports and, for each fingerprint, how many programs
/// show it and the first of these.
pub fn judge(harness: &mut Harness, programs: u64) -> (u64, BTreeMap<String, (u64, Vec<u8>)>) {
    let (mut judged, mut found) = (0, BTreeMap::new());
    for rng_seed in 0..programs {
        let input = generate_any(rng_seed, 4).encode();
        match harness.run(&input, Checks::AtCheckpoints) {
            Ok(outcome) => judged += u64::from(!outcome.unsupported),
            Err(failure) => {
                judged += 1;
                let fingerprint = failure.violation.fingerprint();
                found.entry(fingerprint).or_insert_with(|| (0, input)).0 += 1;
            }
        }
    }
    (judged, found)
}

/// Returns the smallest program that still shows the fingerprint.
pub fn minimized(harness: &mut Harness, shown: &str, input: &[u8]) -> Program {
    let (inputs, limits) = (Inputs::Programs, Limits::WALKED);
    let settings = MinimizeSettings { inputs, limits, tries: 10_000, rerolls: 0, runs_here: true };
    let judge = &mut |input: &[u8]| {
        let shows = fingerprint(harness, input).as_deref() == Some(shown);
        // A judge that runs other processes may fail. This one cannot.
        Ok::<_, Infallible>(shows)
    };
    let go_on = &mut |_: &MinimizeProgress| ControlFlow::Continue(());
    let Ok(minimized) = minimize(input, settings, judge, go_on);
    Program::decode(&minimized.input)
}

/// Runs the input in a file. Prints its violation, and the smallest program with the same fingerprint. The exit code is
/// 1 if there is a violation.
fn replay(harness: &mut Harness, path: &str) -> Result<ExitCode, Box<dyn Error>> {
    let input = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let Err(failure) = harness.run(&input, Checks::AtCheckpoints) else {
        println!("{path}: no violation was found");
        return Ok(ExitCode::SUCCESS);
    };
    println!("{}\n", failure.violation);
    print!("{}", minimized(harness, &failure.violation.fingerprint(), &input));
    Ok(ExitCode::FAILURE)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut harness = Harness::new(Small { sees_zero_flag: false });
    if let Some(path) = std::env::args().nth(1) {
        return replay(&mut harness, &path);
    }
    let (judged, found) = judge(&mut harness, 1000);
    println!("{judged} of 1000 programs have images that this engine supports");
    for (fingerprint, (count, input)) in found {
        let program = minimized(&mut harness, &fingerprint, &input);
        print!("\n{count} × {fingerprint}; minimized:\n{program}");
    }
    Ok(ExitCode::SUCCESS)
}
