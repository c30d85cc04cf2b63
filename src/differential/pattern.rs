//! Guest data that commands write: noise, data with holes, and sectors that look like the beginning of another file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::images::entropy::Entropy;
use crate::images::look::{LOOK_BYTES, Look};

/// The content of a file of guest data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Random bytes and zeros in turn, which compress to about half.
    Noise {
        /// The seed of the bytes.
        rng_seed: u64,
        /// The length in bytes.
        length: u64,
    },
    /// Random bytes after which a hole follows, again and again.
    Stripes {
        /// The seed of the bytes.
        rng_seed: u64,
        /// The length of each piece of data in bytes. A hole is as long.
        unit: u64,
        /// The number of pieces of data.
        count: u64,
    },
    /// One sector that looks like the beginning of another file: the index in [`Look::ALL`].
    Look(usize),
}

impl Pattern {
    /// Returns the number of bytes.
    pub fn length(self) -> u64 {
        match self {
            Self::Noise { length, .. } => length,
            Self::Stripes { unit, count, .. } => unit.saturating_mul(count).saturating_mul(2),
            Self::Look(_) => LOOK_BYTES as u64,
        }
    }

    /// Describes the content in a few words.
    pub fn name(self) -> String {
        match self {
            Self::Noise { length, .. } => format!("{length} bytes of noise"),
            Self::Stripes { unit, count, .. } => {
                format!("{count} pieces of {unit} random bytes, each before a hole")
            }
            Self::Look(index) => format!("a sector that looks like {:?}", look(index)),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        match self {
            Self::Noise { rng_seed, length } => {
                let mut entropy = Entropy::new(rng_seed);
                let byte = |at: u64| if at % 64 < 36 { entropy.next_u64() as u8 } else { 0 };
                file.write_all_at(&(0..length).map(byte).collect::<Vec<u8>>(), 0)
            }
            Self::Stripes { rng_seed, unit, count } => {
                let mut entropy = Entropy::new(rng_seed);
                for at in 0..count {
                    let bytes: Vec<u8> = (0..unit).map(|_| entropy.next_u64() as u8 | 1).collect();
                    file.write_all_at(&bytes, at.saturating_mul(unit).saturating_mul(2))?;
                }
                file.set_len(self.length())
            }
            Self::Look(index) => file.write_all_at(look(index).sector(), 0),
        }
    }
}

fn look(index: usize) -> Look {
    Look::ALL.get(index).copied().unwrap_or_default()
}
