//! Guest data that commands write: noise, data with holes, and sectors that look like the beginning of another file.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::images::content::LOOK_BYTES;
use crate::images::content::entropy::Entropy;
use crate::images::format::looks;

/// The usual block of a file system in bytes.
const FILE_BLOCK_BYTES: u64 = 4096;
/// The number of bytes that are written at once.
const WRITTEN_BYTES: usize = 256 << 10;

/// [`Entropy`] in Python: SplitMix64.
const PYTHON_ENTROPY: &str = "
import sys
def random_bytes(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        yield (z ^ z >> 31) % 256
";
/// [`Pattern::Noise`] in Python.
const PYTHON_NOISE: &str = "
def noise(seed, length):
    data = random_bytes(seed)
    sys.stdout.buffer.write(bytes(next(data) if at % 64 < 36 else 0 for at in range(length)))
";
/// [`Pattern::Stripes`] in Python.
const PYTHON_STRIPES: &str = "
def stripes(seed, unit, count):
    data, out = random_bytes(seed), sys.stdout.buffer
    for at in range(count):
        out.seek(2 * unit * at)
        out.write(bytes(next(data) | 1 for _ in range(unit)))
    out.truncate(2 * unit * count)
";

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
    /// One sector that looks like the beginning of another file: the index in `looks::all`.
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

    /// Returns the shell command that writes the same content, so that a text with the command needs no other file.
    pub fn command(self, file: &str) -> String {
        match self {
            Self::Noise { rng_seed, length } => format!(
                "python3 -c '{}\nnoise({rng_seed}, {length})' >{file}",
                format_args!("{PYTHON_ENTROPY}{PYTHON_NOISE}")
            ),
            Self::Stripes { rng_seed, unit, count } => format!(
                "python3 -c '{}\nstripes({rng_seed}, {unit}, {count})' >{file}",
                format_args!("{PYTHON_ENTROPY}{PYTHON_STRIPES}")
            ),
            Self::Look(index) => {
                let sector = sector(index);
                let used =
                    sector.len() - sector.iter().rev().take_while(|byte| **byte == 0).count();
                let bytes = hex::encode(sector.get(..used).unwrap_or_default());
                format!("printf {bytes} | xxd -r -p >{file}; truncate -s {LOOK_BYTES} {file}")
            }
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
                let zeros = [0; FILE_BLOCK_BYTES as usize];
                let mut out = BufWriter::with_capacity(WRITTEN_BYTES, &file);
                for _ in 0..count {
                    let data: Vec<u8> = (0..unit).map(|_| entropy.next_u64() as u8 | 1).collect();
                    out.write_all(&data)?;
                    // A file system has no smaller holes. With zeros instead, one system call writes many stripes.
                    match unit < FILE_BLOCK_BYTES {
                        true => out.write_all(&zeros[..data.len()])?,
                        false => out.seek_relative(unit.cast_signed())?,
                    }
                }
                out.flush()?;
                file.set_len(self.length())
            }
            Self::Look(index) => file.write_all_at(sector(index), 0),
        }
    }
}

fn sector(index: usize) -> &'static [u8; LOOK_BYTES] {
    let all = looks::all();
    &all.get(index).unwrap_or(&all[0]).sector
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn commands_write_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let looks = (0..looks::all().len()).map(Pattern::Look);
        let noise = Pattern::Noise { rng_seed: 3, length: 1000 };
        let stripes =
            [512, 4096].map(|unit| Pattern::Stripes { rng_seed: u64::MAX, unit, count: 3 });
        for pattern in looks.chain([noise]).chain(stripes) {
            let written = dir.path().join("written");
            pattern.write(&written).unwrap();
            let command = pattern.command("by-command");
            let status =
                Command::new("sh").args(["-c", &command]).current_dir(dir.path()).status().unwrap();
            let bytes = std::fs::read(dir.path().join("by-command")).unwrap();
            assert!(status.success() && bytes == std::fs::read(&written).unwrap(), "{command}");
        }
    }
}
