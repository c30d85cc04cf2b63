//! Images that qemu-img and qemu-io make, by a recipe that a seed decides.

use test_support::prelude::*;

const COMPRESSED_WRITE: &str = "write -q -c";

/// An image that is being made.
pub struct Making {
    recipe: Recipe,
    pub entropy: Entropy,
    pub path: PathBuf,
    /// A file of noise and zeros, which compresses to about half.
    noise: PathBuf,
    size_bytes: u64,
    /// The guest clusters that were written: qemu refuses a compressed write to an allocated cluster.
    touched: BTreeSet<u64>,
    compressed: bool,
    snapshots: Vec<u64>,
    bitmaps: Vec<String>,
    /// All commands, for the message about a disagreement.
    pub story: Vec<String>,
}

impl Making {
    /// Creates the empty image in `dir`.
    pub fn begin(recipe: &Recipe, dir: &Path) -> Checked<Self> {
        let mut entropy = Entropy::new(recipe.rng_seed ^ 0x5EED);
        let noise = dir.join("noise");
        let byte = |at: usize| if at % 64 < 36 { entropy.next_u64() as u8 } else { 0 };
        let bytes: Vec<u8> = (0..16 << 10).map(byte).collect();
        fs::write(&noise, bytes).described()?;
        let mut making = Self {
            path: dir.join("made.qcow2"),
            noise,
            size_bytes: recipe.size_bytes,
            touched: BTreeSet::new(),
            compressed: false,
            snapshots: Vec::new(),
            bitmaps: Vec::new(),
            story: Vec::new(),
            entropy,
            recipe: recipe.clone(),
        };
        let preallocation = recipe.preallocation;
        let options = format!("{},preallocation={preallocation}", recipe.format_options());
        let size = recipe.size_bytes.to_string();
        making.img(&["create", "-f", "qcow2", "-o", &options], &[&size])?;
        if preallocation != "off" {
            let clusters = making.clusters();
            making.touched.extend(0..clusters);
        }
        Ok(making)
    }

    /// Runs one qemu-io with a handful of commands.
    pub fn change(&mut self) -> Checked<()> {
        if self.size_bytes == 0 {
            return Ok(());
        }
        let count = 2 + self.entropy.below(14);
        let commands = self.commands(count);
        self.story.push(format!("qemu-io {commands:?}"));
        qemu::io_with(&self.path, &["-f", "qcow2", "-t", "unsafe"], &commands)?;
        Ok(())
    }

    /// Returns the commands of a last qemu-io, which crashes before it writes its refcounts back.
    pub fn crash(&mut self) -> Vec<String> {
        let mut commands = self.commands(6);
        commands.push("abort".to_string());
        self.story.push(format!("qemu-io {commands:?}"));
        commands
    }

    /// Runs qemu-img to change snapshots or the size, or does nothing.
    pub fn manage(&mut self) -> Checked<()> {
        match self.entropy.below(8) {
            0..=2 => self.take_snapshot(),
            3 => self.use_snapshot("-a"),
            4 => self.use_snapshot("-d"),
            5 | 6 => self.resize(),
            _ => Ok(()),
        }
    }

    /// Reports whether the image has bitmaps.
    pub fn with_bitmaps(&self) -> bool {
        self.recipe.rng_seed.is_multiple_of(3)
    }

    /// Runs qemu-img to change bitmaps. Later writes set the bits of enabled ones.
    pub fn manage_bitmaps(&mut self) -> Checked<()> {
        // Version 2 has no bitmaps, and qemu does not store a bitmap of an empty disk.
        if self.recipe.version_2 || self.size_bytes == 0 {
            return Ok(());
        }
        let index = self.entropy.below(self.bitmaps.len() as u64) as usize;
        let Some(name) = self.bitmaps.get(index).cloned().filter(|_| self.entropy.one_in(2)) else {
            return self.add_bitmap();
        };
        let action =
            ["--clear", "--disable", "--enable", "--remove"][self.entropy.below(4) as usize];
        if action == "--remove" {
            self.bitmaps.remove(index);
        }
        self.img(&["bitmap", action], &[&name])
    }

    fn add_bitmap(&mut self) -> Checked<()> {
        // The number of bits keeps qemu-img quick, even if the disk grows later.
        let fewest = self.size_bytes.ilog2().saturating_sub(22).max(9);
        let granularity = (1u64 << (fewest + self.entropy.below(8) as u32).min(31)).to_string();
        let name = "n".repeat(1 + self.entropy.below(60) as usize) + &self.story.len().to_string();
        let disabled: &[&str] = if self.entropy.one_in(4) { &["--disable"] } else { &[] };
        let words = [&["bitmap", "--add", "-g", &granularity], disabled].concat();
        self.img(&words, &[&name])?;
        self.bitmaps.push(name);
        Ok(())
    }

    /// Makes a compressed copy of the image.
    pub fn compressed_copy(&mut self) -> Checked<PathBuf> {
        let copy = self.path.with_file_name("copy.qcow2");
        let options = self.recipe.format_options();
        let to = copy.to_string_lossy().into_owned();
        let words = ["convert", "-t", "unsafe", "-c", "-f", "qcow2", "-O", "qcow2", "-o", &options];
        self.img(&words, &[&to])?;
        Ok(copy)
    }

    fn img(&mut self, before: &[&str], after: &[&str]) -> Checked<()> {
        self.story.push(format!("qemu-img {} {} {}", before.join(" "), "made", after.join(" ")));
        qemu::img_at(before, &self.path, after).map(drop)
    }

    fn cluster(&self) -> u64 {
        1 << self.recipe.cluster_bits
    }

    fn clusters(&self) -> u64 {
        self.size_bytes.div_ceil(self.cluster())
    }

    /// Returns up to `count` commands for one qemu-io. The compressed writes come first, because they may damage the
    /// image after others (`qemu_still_writes_compressed_data_over_other_data`).
    fn commands(&mut self, count: u64) -> Vec<String> {
        let mut commands: Vec<String> = (0..count).filter_map(|_| self.command()).collect();
        commands.sort_by_key(|command| !command.starts_with(COMPRESSED_WRITE));
        commands
    }

    /// Returns one command of qemu-io, or `None` if qemu-io would refuse it.
    fn command(&mut self) -> Option<String> {
        if self.entropy.one_in(5) {
            return self.compressed_write();
        }
        let (start, length) = self.place();
        let what = match self.entropy.below(9) {
            0..=2 => format!("write -q -P {}", 1 + self.entropy.below(255)),
            3 => format!("write -q -s {}", self.noise.display()),
            4 | 5 => "write -q -z".to_string(),
            6 => "write -q -z -u".to_string(),
            _ => "discard -q".to_string(),
        };
        let clusters = start / self.cluster()..(start + length).div_ceil(self.cluster());
        self.touched.extend(clusters);
        Some(format!("{what} {start} {length}"))
    }

    fn compressed_write(&mut self) -> Option<String> {
        let cluster = self.cluster();
        let first = self.entropy.below(self.clusters().min(200));
        // qemu-io accepts only whole clusters here. The last one may be incomplete.
        let free = (first..first + 1 + self.entropy.below(5))
            .take_while(|at| (at + 1) * cluster <= self.size_bytes && !self.touched.contains(at));
        let clusters: Vec<u64> = free.collect();
        let count = clusters.len() as u64;
        if count == 0 {
            return None;
        }
        self.touched.extend(clusters);
        self.compressed = true;
        let pattern = match self.entropy.one_in(2) {
            true => format!("-P {}", self.entropy.below(256)),
            false => format!("-s {}", self.noise.display()),
        };
        Some(format!("{COMPRESSED_WRITE} {pattern} {} {}", first * cluster, count * cluster))
    }

    /// Returns a range of guest bytes, near the start or anywhere, in whole clusters, whole sectors or neither.
    fn place(&mut self) -> (u64, u64) {
        let (cluster, entropy) = (1u64 << self.recipe.cluster_bits, &mut self.entropy);
        let reach =
            if entropy.one_in(4) { self.size_bytes } else { self.size_bytes.min(64 * cluster) };
        let start = entropy.below(reach);
        let most = match entropy.below(8) {
            0 => 40 * cluster,
            1..=4 => 4 * cluster,
            _ => cluster / 4,
        };
        let length = 1 + entropy.below(most.min(4 << 20));
        let grain = [1, 512, cluster / 32, cluster, cluster][entropy.below(5) as usize].max(1);
        let start = start / grain * grain;
        (start, length.next_multiple_of(grain).min(self.size_bytes - start))
    }

    fn take_snapshot(&mut self) -> Checked<()> {
        // Each snapshot adds a reference to every cluster, and payloads share clusters. Refcounts of few bits would
        // overflow, which qemu-img refuses.
        let order = self.recipe.refcount_order;
        let most = match (order, self.compressed) {
            (0, _) | (1 | 2, true) => 0,
            (1, false) => 1,
            _ => 3,
        };
        if self.snapshots.len() >= most {
            return Ok(());
        }
        let name = self.story.len() as u64;
        self.img(&["snapshot", "-c", &name.to_string()], &[])?;
        self.snapshots.push(name);
        Ok(())
    }

    fn use_snapshot(&mut self, how: &str) -> Checked<()> {
        // qemu-img refuses to apply a snapshot while there are bitmaps.
        if how == "-a" && !self.bitmaps.is_empty() {
            return Ok(());
        }
        let index = self.entropy.below(self.snapshots.len() as u64) as usize;
        let Some(name) = self.snapshots.get(index).copied() else { return Ok(()) };
        if how == "-d" {
            self.snapshots.remove(index);
        }
        self.img(&["snapshot", how, &name.to_string()], &[])
    }

    fn resize(&mut self) -> Checked<()> {
        // Version 2 does not store the size of a snapshot's disk.
        if !self.snapshots.is_empty() {
            return Ok(());
        }
        let size = match self.entropy.one_in(2) {
            // qemu-img refuses an empty disk.
            true => 512 + self.entropy.below(self.size_bytes),
            false => self.size_bytes + self.entropy.below(20 * self.cluster()),
        };
        let size = size / 512 * 512;
        let grows = size > self.size_bytes;
        // The last cluster may be incomplete.
        let before = self.size_bytes / self.cluster();
        self.size_bytes = size;
        let size = self.size_bytes.to_string();
        let preallocation = match self.entropy.below(3) {
            0 if grows => "--preallocation=metadata",
            _ => "--preallocation=off",
        };
        self.img(&["resize", "-q", "--shrink", "-f", "qcow2", preallocation], &[&size])?;
        self.touched.extend(before..self.clusters());
        Ok(())
    }
}

/// The options for `qemu-img create`.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub rng_seed: u64,
    pub version_2: bool,
    pub cluster_bits: u32,
    pub refcount_order: u32,
    pub extended_l2: bool,
    pub zstd: bool,
    pub lazy_refcounts: bool,
    pub preallocation: &'static str,
    pub size_bytes: u64,
}

impl Recipe {
    /// Returns the recipe of `rng_seed`. Any 91 seeds in a row have every pair of a cluster size and a
    /// refcount order.
    pub fn new(rng_seed: u64) -> Self {
        let mut entropy = Entropy::new(rng_seed);
        let version_2 = entropy.one_in(8);
        let cluster_bits = 9 + (rng_seed % 13) as u32;
        let cluster = 1u64 << cluster_bits;
        let large = entropy.one_in(8);
        // The number of clusters keeps qemu-img quick, the number of bytes keeps preallocation small.
        let clusters = match large {
            false => 1 + entropy.below((24u64 << 20 >> cluster_bits).clamp(8, 3000)),
            true => 1 + entropy.below((cluster / 8) << 8),
        };
        let tail = entropy.below(cluster / 512) * 512;
        let size_bytes = match entropy.below(20) {
            0 => 0,
            1 => tail,
            _ => clusters * cluster - if entropy.one_in(2) { tail } else { 0 },
        };
        let preallocations = ["off", "off", "off", "metadata", "falloc", "full"];
        let preallocation = match large {
            true => "off",
            false => preallocations[entropy.below(6) as usize],
        };
        Self {
            rng_seed,
            version_2,
            cluster_bits,
            refcount_order: if version_2 { 4 } else { (rng_seed % 7) as u32 },
            extended_l2: !version_2 && cluster_bits >= 14 && entropy.one_in(2),
            zstd: !version_2 && entropy.one_in(2),
            lazy_refcounts: !version_2 && entropy.one_in(4),
            preallocation,
            size_bytes,
        }
    }

    /// Returns the options of the format that a copy of the image also needs.
    fn format_options(&self) -> String {
        let switch = |on| if on { "on" } else { "off" };
        let cluster_size = 1u32 << self.cluster_bits;
        if self.version_2 {
            return format!("compat=0.10,cluster_size={cluster_size}");
        }
        format!(
            "compat=1.1,cluster_size={cluster_size},refcount_bits={},extended_l2={},\
             compression_type={},lazy_refcounts={}",
            1u32 << self.refcount_order,
            switch(self.extended_l2),
            if self.zstd { "zstd" } else { "zlib" },
            switch(self.lazy_refcounts),
        )
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
