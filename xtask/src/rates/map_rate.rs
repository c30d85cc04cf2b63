//! Compares `qcowfuzz map` with `qemu-img map` on images whose every second block is stored, in each format whose
//! blocks QEMU reports. Every 256th stored block has some bytes on the host's disk, and the others are holes, so that
//! extents end at host holes, too. Both programs must print the same text. They take turns, and the CPU time of the
//! fastest round counts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use clap::Args;

use crate::check;
use crate::measured::{cpu_seconds, head, publish, row};
use crate::process::{attached, command, output, quiet, target_folder};

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// The virtual size in GiB
    #[arg(long, default_value_t = FULL_GIB, value_parser = clap::value_parser!(u64).range(1..=FULL_GIB))]
    disk_gib: u64,
    /// The number of runs of each program
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

const FULL_GIB: u64 = 64;
/// The lowest ratio of the CPU time of `qemu-img map` to ours for qcow2, on a disk of the full size.
const LEAST_RATIO: f64 = 20.0;
const SECTOR: u64 = 512;
const KIB64: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

/// A sparse image with tables that a test writes.
struct Image {
    file: File,
    disk: u64,
}

impl Image {
    fn create(path: &Path, format: &str, options: &str, disk: u64) -> Result<Self> {
        let mut create = command("qemu-img");
        create.args(["create", "-q", "-f", format, "-o", options]).arg(path).arg(disk.to_string());
        quiet(&mut create)?;
        Ok(Self { file: File::options().read(true).write(true).open(path)?, disk })
    }

    fn bytes<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn be64(&self, offset: u64) -> Result<u64> {
        Ok(u64::from_be_bytes(self.bytes(offset)?))
    }

    fn le64(&self, offset: u64) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(offset)?))
    }

    fn le32(&self, offset: u64) -> Result<u64> {
        Ok(u32::from_le_bytes(self.bytes(offset)?).into())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.file.write_all_at(bytes, offset)?)
    }

    fn length(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Writes a table whose every second entry names a block: `entry` makes it from the block's number among those that
    /// are stored.
    fn put_table<const N: usize>(
        &self,
        offset: u64,
        entries: std::ops::Range<u64>,
        absent: [u8; N],
        entry: impl Fn(u64) -> [u8; N],
    ) -> Result<()> {
        let entries = entries.map(|index| if index % 2 == 0 { entry(index / 2) } else { absent });
        self.put(offset, &entries.collect::<Vec<_>>().concat())
    }

    /// Ends the file behind its stored blocks, `stride` bytes each from `first`, and writes some bytes to every
    /// 256th.
    fn store(&self, first: u64, stride: u64, blocks: u64) -> Result<()> {
        let stored = blocks.div_ceil(2);
        self.file.set_len(first + stored * stride)?;
        (0..stored).step_by(256).try_for_each(|block| self.put(first + block * stride, &[1; 4096]))
    }
}

/// Clusters of 64 KiB. All are counted, because QEMU looks for host holes only where fewer are on the host's disk.
fn qcow2(path: &Path, disk: u64) -> Result<()> {
    let image = Image::create(path, "qcow2", "cluster_size=64k", disk)?;
    let (l1_table, refcount_table, copied) = (image.be64(40)?, image.be64(48)?, 1 << 63);
    let (clusters, per_table, per_block) = (disk / KIB64, KIB64 / 8, KIB64 / 2);
    let l2_tables = image.length()?.next_multiple_of(KIB64);
    // Behind the L2 tables lie the refcount blocks but the first one, which is there already.
    let refcount_blocks = l2_tables + clusters.div_ceil(per_table) * KIB64;
    let blocks = (refcount_blocks / KIB64 + clusters.div_ceil(2)).div_ceil(per_block - 1);
    let first = refcount_blocks + (blocks - 1) * KIB64;
    for index in 0..clusters.div_ceil(per_table) {
        let table = l2_tables + index * KIB64;
        image.put(l1_table + index * 8, &(table | copied).to_be_bytes())?;
        let entries = index * per_table..clusters.min((index + 1) * per_table);
        image.put_table(table, entries, [0; 8], |it| {
            ((first + it * KIB64) | copied).to_be_bytes()
        })?;
    }
    image.store(first, KIB64, clusters)?;
    let first_block = image.be64(refcount_table)?;
    for index in 0..blocks {
        let block = if index == 0 { first_block } else { refcount_blocks + (index - 1) * KIB64 };
        image.put(refcount_table + index * 8, &block.to_be_bytes())?;
        let counted = (image.length()? / KIB64).saturating_sub(index * per_block).min(per_block);
        image.put(block, &[0, 1].repeat(counted as usize))?;
    }
    Ok(())
}

/// Blocks of 64 KiB, each behind a bitmap of one sector. QEMU makes larger blocks, but reads these, too.
fn vpc(path: &Path, disk: u64) -> Result<()> {
    let image = Image::create(path, "vpc", "subformat=dynamic,force_size=on", disk)?;
    let (header, blocks) = (image.be64(16)?, disk / KIB64);
    let table = image.be64(header + 16)?;
    let sizes = [blocks as u32, KIB64 as u32, 0].map(u32::to_be_bytes);
    image.put(header + 28, &sizes.concat())?;
    let sum: u32 = image.bytes::<1024>(header)?.into_iter().map(u32::from).sum();
    image.put(header + 36, &(!sum).to_be_bytes())?;
    let (first, stride) = ((table + blocks * 4).next_multiple_of(SECTOR), KIB64 + SECTOR);
    let entry = |it| (((first + it * stride) / SECTOR) as u32).to_be_bytes();
    image.put_table(table, 0..blocks, [0xff; 4], entry)?;
    image.store(first + SECTOR, stride, blocks)?;
    let footer = image.bytes::<512>(0)?;
    image.put(first + blocks.div_ceil(2) * stride, &footer)
}

/// Grains of 64 KiB. Both directories name all tables.
fn vmdk(path: &Path, disk: u64) -> Result<()> {
    let image = Image::create(path, "vmdk", "subformat=monolithicSparse", disk)?;
    let (grain, per_table) = (image.le64(20)? * SECTOR, image.le32(44)?);
    let (first, grains) = (image.length()?.next_multiple_of(grain), disk / grain);
    for directory in [image.le64(48)?, image.le64(56)?] {
        for index in 0..grains.div_ceil(per_table) {
            let table = image.le32(directory * SECTOR + index * 4)? * SECTOR;
            let entries = index * per_table..grains.min((index + 1) * per_table);
            let entry = |it| (((first + it * grain) / SECTOR) as u32).to_le_bytes();
            image.put_table(table, entries, [0; 4], entry)?;
        }
    }
    image.store(first, grain, grains)
}

/// Blocks of 1 MiB.
fn vdi(path: &Path, disk: u64) -> Result<()> {
    let image = Image::create(path, "vdi", "static=off", disk)?;
    let (map, first, blocks) = (image.le32(340)?, image.le32(344)?, disk / MIB);
    image.put(388, &(blocks.div_ceil(2) as u32).to_le_bytes())?;
    image.put_table(map, 0..blocks, [0xff; 4], |it| (it as u32).to_le_bytes())?;
    image.store(first, MIB, blocks)
}

/// 128 pieces of 4 KiB in each GiB, between holes.
fn raw(path: &Path, disk: u64) -> Result<()> {
    let image = Image { file: File::create(path)?, disk };
    image.file.set_len(disk)?;
    (0..image.disk).step_by(8 << 20).try_for_each(|offset| image.put(offset, &[1; 4096]))
}

/// Fails unless two maps are the same, byte for byte. Each line is an extent.
fn check_same(format: &str, ours: &str, theirs: &str) -> Result<()> {
    let differing = || ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
    check!(
        ours == theirs && !ours.is_empty(),
        "{format}: qcowfuzz and qemu-img map it differently, or not as far: {:?}",
        differing()
    );
    Ok(())
}

/// Returns the CPU seconds of the fastest round of each command.
fn fastest<const N: usize>(commands: &mut [Command; N], rounds: usize) -> Result<[f64; N]> {
    let mut least = [f64::INFINITY; N];
    for _ in 0..rounds.max(1) {
        for (command, least) in commands.iter_mut().zip(&mut least) {
            *least = least.min(cpu_seconds(command.stdout(Stdio::null()))?);
        }
    }
    Ok(least)
}

/// Compares both programs on an image of each format, and prints the table.
pub fn measure(options: &Options) -> Result<()> {
    quiet(command("cargo").args(["build", "--release", "--locked", "--bin", "qcowfuzz"]))?;
    let qcowfuzz = target_folder("").join("release/qcowfuzz");
    let work = target_folder("").join("map-rate");
    fs::create_dir_all(&work)?;
    let mut is_fast = true;
    let mut text = head(&["image", "extents", "qcowfuzz", "qemu-img", "ratio"]);
    for format in ["qcow2", "vpc", "vmdk", "vdi", "raw"] {
        let path = work.join(format);
        let make = match format {
            "qcow2" => qcow2,
            "vpc" => vpc,
            "vmdk" => vmdk,
            "vdi" => vdi,
            _ => raw,
        };
        make(&path, options.disk_gib << 30)?;
        let (mut ours, mut theirs) = (attached(&qcowfuzz), attached("qemu-img"));
        ours.args(["map", "--output", "json", "-f", format]).arg(&path);
        theirs.args(["map", "--output=json", "-f", format]).arg(&path);
        let map = output(&mut ours)?;
        check_same(format, &map, &output(&mut theirs)?)?;
        let [own, other] = fastest(&mut [ours, theirs], options.rounds)?;
        fs::remove_file(&path)?;
        let ratio = other / own;
        let seconds = [own, other].map(|it| format!("{it:.3} s"));
        let count = map.lines().count().to_string();
        text += &row(&[format, &count, &seconds[0], &seconds[1], &format!("{ratio:.1} ×")]);
        is_fast &= format != "qcow2" || options.disk_gib < FULL_GIB || ratio >= LEAST_RATIO;
    }
    let title = format!("The command map beside qemu-img, disks of {} GiB", options.disk_gib);
    publish(options.results.as_deref(), &title, &text)?;
    check!(is_fast, "qcow2: expected a ratio of {LEAST_RATIO} ×");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_differ_fail() {
        assert!(check_same("raw", "one\ntwo\n", "one\ntwo\n").is_ok());
        assert!(check_same("raw", "one\ntwo\n", "one\nthree\n").is_err());
        assert!(check_same("raw", "one\ntwo\n", "one\n").is_err());
        assert!(check_same("raw", "", "").is_err());
    }
}
