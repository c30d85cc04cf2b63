//! The options of an image that qemu-img creates.

use std::fmt;

use qcowfuzz::internal::images::entropy::Entropy;

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
    pub fn format_options(&self) -> String {
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
