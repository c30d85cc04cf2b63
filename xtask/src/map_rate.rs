//! Compares `qcowfuzz map` with `qemu-img map` on a qcow2 image whose every second cluster is stored. Every 256th of
//! these has some bytes on the host's disk, and the others are holes, so that extents end at host holes, too. Both
//! programs must print the same text. They take turns, and the CPU time of the fastest round counts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use clap::Args;

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
}

const FULL_GIB: u64 = 64;
/// The lowest ratio of the CPU time of `qemu-img map` to ours, on a disk of the full size.
const LEAST_RATIO: f64 = 20.0;
const CLUSTER: u64 = 64 << 10;

/// Creates an image with all clusters, and takes every second one out of the L2 tables. The clusters stay counted,
/// because QEMU looks for host holes only where fewer clusters are on the host's disk than are counted.
fn create(path: &Path, gib: u64) -> Result<()> {
    let mut create = command("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-o", "cluster_size=64k,preallocation=metadata"]);
    quiet(create.arg(path).arg(format!("{gib}G")))?;
    let image = File::options().read(true).write(true).open(path)?;
    let be64 = |offset| {
        let mut bytes = [0; 8];
        image.read_exact_at(&mut bytes, offset)?;
        // Without the bit "copied" of an entry.
        Ok::<_, anyhow::Error>(u64::from_be_bytes(bytes) & !(1 << 63))
    };
    let (l1_table, per_table) = (be64(40)?, CLUSTER / 8);
    for cluster in 0..(gib << 30) / CLUSTER {
        let entry = be64(l1_table + cluster / per_table * 8)? + cluster % per_table * 8;
        if cluster % 2 == 1 {
            image.write_all_at(&[0; 8], entry)?;
        } else if cluster % 512 == 0 {
            image.write_all_at(&[1; 4096], be64(entry)?)?;
        }
    }
    Ok(())
}

/// Compares both programs, and prints the table.
pub fn measure(options: &Options) -> Result<()> {
    quiet(command("cargo").args(["build", "--release", "--locked", "--bin", "qcowfuzz"]))?;
    let work = tempfile::tempdir_in(target_folder(""))?;
    let path = work.path().join("image");
    create(&path, options.disk_gib)?;
    let mut programs = [target_folder("").join("release/qcowfuzz"), "qemu-img".into()].map(|it| {
        let mut map = attached(it);
        map.args(["map", "--output=json", "-f", "qcow2"]).arg(&path);
        map
    });
    let [own, other] = programs.each_mut().map(output);
    let (own, other) = (own?, other?);
    let differing = || own.lines().zip(other.lines()).find(|(own, other)| own != other);
    ensure!(own == other && !own.is_empty(), "the maps differ: {:?}", differing());
    let mut least = [f64::INFINITY; 2];
    for _ in 0..options.rounds.max(1) {
        for (map, least) in programs.iter_mut().zip(&mut least) {
            *least = least.min(cpu_seconds(map.stdout(Stdio::null()))?);
        }
    }
    let ratio = least[1] / least[0];
    let [count, qcowfuzz, qemu_img, ratio_text] = [
        own.lines().count().to_string(),
        format!("{:.3} s", least[0]),
        format!("{:.3} s", least[1]),
        format!("{ratio:.1} ×"),
    ];
    let table = head(&["extents", "qcowfuzz", "qemu-img", "ratio"])
        + &row(&[count, qcowfuzz, qemu_img, ratio_text]);
    publish(&format!("map beside qemu-img map, a qcow2 disk of {} GiB", options.disk_gib), &table);
    let is_fast = options.disk_gib < FULL_GIB || ratio >= LEAST_RATIO;
    ensure!(is_fast, "expected a ratio of at least {LEAST_RATIO} ×");
    Ok(())
}
