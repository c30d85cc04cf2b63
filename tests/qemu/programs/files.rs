//! The files of a program: writes them and checks each.

use std::os::unix::fs::MetadataExt;
use test_support::prelude::*;

use qcowfuzz::internal::harness::oracles::qcow2::recount::Recount;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::files::{Deviation, LayerFiles};

use super::Case;
use crate::parts::{self, Part, Trace};

/// Writes an image to the file at `path`.
pub fn write_to(path: &Path, image: &Image, holes: Holes) -> Checked<()> {
    let file = File::create(path).described()?;
    export::write(image, &file, holes).described()
}

/// The lengths of the longest file that the file systems of most machines can hold, and of the longest that is written
/// without holes.
pub const MAX_FILE_BYTES: u64 = 15 << 40;
const MAX_FILLED_BYTES: u64 = 64 << 20;

/// The largest number of counts that qemu-img reads for one file. It takes a second for some hundred millions.
const MAX_COUNTED_CLUSTERS: u64 = 1 << 22;

/// Returns the length of a file that cannot be written, if there is one, and the longest possible length. It is longer
/// than the file system allows, or a raw layer that is too long to be written without holes, which `qemu-img map` would
/// report.
pub fn too_long(images: &Images, most_bytes: u64) -> Option<(u64, u64)> {
    let mut lengths = images.layers().flat_map(|files| {
        let most = if files.format == ImageFormat::Raw { MAX_FILLED_BYTES } else { most_bytes };
        [(files.image.length_bytes(), most), (files.data_file.length_bytes(), most_bytes)]
    });
    lengths.find(|(length, most)| length > most)
}

/// Returns the number of clusters of the longest image.
fn most_clusters(images: &Images) -> Checked<u64> {
    let clusters = |files: &LayerFiles| {
        let head = Head::read(&files.image).described()?;
        Ok(head.header.geometry.cluster_size.clusters_for(files.image.length_bytes()))
    };
    images.layers().filter(|files| files.format == ImageFormat::Qcow2).try_fold(0, |most, files| {
        let clusters: Checked<u64> = clusters(files);
        Ok(most.max(clusters?))
    })
}

/// Reports whether qemu-img can check the images: it reads the count of every cluster of a file, and a file with a far
/// gap may have 2^35 clusters.
pub fn is_checkable(images: &Images) -> Checked<bool> {
    Ok(most_clusters(images)? <= MAX_COUNTED_CLUSTERS)
}

/// Reports whether qemu-img can map the file of an image. Before it maps a file, it counts the allocated clusters,
/// until they are more than fit into the space that the file takes (QEMU `block/qcow2.c`,
/// `qcow2_detect_metadata_preallocation`). In a file with a far gap, they may be so few that it reads all counts.
fn is_mappable(path: &Path, image: &Image) -> Checked<bool> {
    let mut recount = Recount::new();
    recount.recount(image).described()?;
    let geometry = recount.take_head().ok_or("no head")?.header.geometry;
    let space = fs::metadata(path).described()?.blocks() * 512;
    let space = geometry.cluster_size.clusters_for(space);
    let mut left = (space * 10 / 9).max(space + 2);
    for run in recount.occupied().iter().filter(|run| run.on_disk > 0) {
        let clusters = run.end - run.first;
        if left <= clusters {
            return Ok(run.first + left <= MAX_COUNTED_CLUSTERS);
        }
        left -= clusters;
    }
    Ok(geometry.cluster_size.clusters_for(image.length_bytes()) <= MAX_COUNTED_CLUSTERS)
}

/// Reports whether qemu-img can map all files of a chain.
pub fn are_mappable(directory: &Path, images: &Images) -> Checked<bool> {
    for (path, files) in written_layers(directory, images) {
        if !is_mappable(&path, &files.image)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the layers that are images, each with the path of its file.
fn written_layers<'i>(
    directory: &Path,
    images: &'i Images,
) -> impl Iterator<Item = (PathBuf, &'i LayerFiles)> {
    let (names, top) = (FileNames::default(), images.layers().len() - 1);
    let directory = directory.to_path_buf();
    images.layers().enumerate().filter(|(_, files)| files.format == ImageFormat::Qcow2).map(
        move |(depth, files)| {
            let name = if depth == 0 {
                "layer.qcow2"
            } else {
                names.image(top - depth, ImageFormat::Qcow2)
            };
            (directory.join(name), &**files)
        },
    )
}

/// Two of three short chains are written without holes, so that the flag `zero` of data is compared too. Raw layers
/// have no holes but those that they have in memory.
pub fn export_to(path: &Path, images: &Images, entropy: &mut Entropy) -> Checked<Holes> {
    let names = FileNames::default();
    let longest = images.files(&names).map(|(_, image)| image.length_bytes()).max().unwrap();
    let short = longest <= 8 << 20;
    let holes = if short && !entropy.one_in(3) { Holes::Fill } else { Holes::Keep };
    for (name, image) in images.files(&names) {
        let raw = name.is_some_and(|name| name.ends_with(".raw"));
        let path = name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
        write_to(&path, image, if raw { Holes::Fill } else { holes })?;
    }
    Ok(holes)
}

/// Checks every layer that is an image.
pub fn check_layers(directory: &Path, images: &Images) -> Checked<()> {
    for (path, files) in written_layers(directory, images) {
        let file = FileStorage::open(&path).described()?;
        check(&path, &[&file, &files.image], &files.out_of_date)?;
        unchanged(&file, &files.image)?;
    }
    Ok(())
}

/// Asserts that both checks find nothing but the counts that are meant to be out of date, and that they agree on the
/// end of the last counted cluster.
fn check(path: &Path, storages: &[&dyn Storage], out_of_date: &[Deviation]) -> Checked<()> {
    let (theirs, said) = compare::counts(path, storages)?;
    let too_high = |one: &&Deviation| one.on_disk > one.references;
    let leaks = out_of_date.iter().filter(too_high).count() as u64;
    let flags: u64 = out_of_date.iter().map(|one| one.flags).sum();
    let expected = (out_of_date.len() as u64 - leaks + flags, leaks, 0);
    let quiet = said.is_empty() || !out_of_date.is_empty();
    if (theirs.corruptions, theirs.leaks, theirs.check_errors) != expected || !quiet {
        return Err(format!("qemu-img check: {theirs:?}, expected {out_of_date:?}\n{said}"));
    }
    Ok(())
}

/// Asserts that the tools did not change the file.
fn unchanged(file: &FileStorage, image: &Image) -> Checked<()> {
    let mut bytes = Vec::new();
    for data in image.written() {
        bytes.resize(data.bytes.len(), 0);
        file.read_at(data.offset, &mut bytes).described()?;
        compare::same_bytes("the file after it was read", data.offset.get(), data.bytes, &bytes)?;
    }
    Ok(())
}

/// The lowest number of programs that must have each part.
pub const ENOUGH: u32 = 20;
/// The number of programs of random parts that are always judged.
const RANDOM_PROGRAMS: u64 = 200;
/// The highest number of attempts to make a program for a missing pair.
const TRIES: u64 = 200;

/// Programs, and the number of programs that have each pair of parts.
pub struct Pairs {
    pub all: Vec<Part>,
    /// The number of programs that have both parts, for each pair of parts.
    pub had: Vec<Vec<u32>>,
    pub cases: Vec<Case>,
    entropy: Entropy,
    rng_seed: u64,
}

impl Pairs {
    /// Returns programs of random parts, and then programs for every part that is too rare and for every pair that is
    /// missing.
    pub fn chosen() -> Self {
        let all = parts::all();
        let had = vec![vec![0; all.len()]; all.len()];
        let entropy = Entropy::new(9);
        let mut pairs = Self { all, had, cases: Vec::new(), entropy, rng_seed: 0 };
        for _ in 0..RANDOM_PROGRAMS {
            let wanted = parts::some(&mut pairs.entropy);
            pairs.keep_if(&wanted, &[]);
        }
        for one in 0..pairs.all.len() {
            for other in 0..=one {
                let least = if one == other { ENOUGH } else { 1 };
                if !parts::allowed(&pairs.all[one], &pairs.all[other]) {
                    continue;
                }
                for _ in 0..TRIES {
                    if pairs.had[one][other] >= least {
                        break;
                    }
                    let mut wanted = parts::some(&mut pairs.entropy);
                    // Adds a few other parts, in any order.
                    wanted.truncate(pairs.entropy.below(4) as usize);
                    let at = pairs.entropy.below(wanted.len() as u64 + 1) as usize;
                    wanted.insert(at, pairs.all[one]);
                    wanted.push(pairs.all[other]);
                    pairs.keep_if(&wanted, &[one, other]);
                }
            }
        }
        pairs
    }

    /// Makes a program of the `wanted` parts, and keeps it if it has those that are `needed`.
    fn keep_if(&mut self, wanted: &[Part], needed: &[usize]) {
        let rng_seed = self.rng_seed;
        self.rng_seed += 1;
        let program = parts::program(rng_seed, wanted);
        let trace = Trace::of(&program);
        // tests/qemu/formats/mod.rs has the parts of images in other formats.
        if trace.images.top().format != ImageFormat::Qcow2 {
            return;
        }
        let had = |at: &usize| (self.all[*at].had)(&trace);
        if !needed.iter().all(had) || too_long(&trace.images, MAX_FILE_BYTES).is_some() {
            return;
        }
        let there: Vec<usize> = (0..self.all.len()).filter(had).collect();
        for one in &there {
            there.iter().for_each(|other| self.had[*one][*other] += 1);
        }
        let names: Vec<_> = there.iter().map(|at| self.all[*at].name).collect();
        let name = format!("parts of {rng_seed}: {}", names.join(", "));
        self.cases.push(Case { name, input: program.encode() });
    }

    /// Returns the pairs that the format allows and no program has, the pairs that it forbids and a program has, and
    /// the number of allowed pairs.
    pub fn missing(&self) -> (Vec<(usize, usize)>, usize) {
        let (mut missing, mut count) = (Vec::new(), 0);
        for one in 0..self.all.len() {
            for other in 0..one {
                let allowed = parts::allowed(&self.all[one], &self.all[other]);
                count += usize::from(allowed);
                if allowed != (self.had[one][other] > 0) {
                    missing.push((one, other));
                }
            }
        }
        (missing, count)
    }
}
