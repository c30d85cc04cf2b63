//! Public crates as engines, a file for each, and their shared helper: the files of a chain as files of a folder. Each
//! crate has a command in `bin/`: that of qcowfuzz, with the crate under test. Its known findings are in `known/`.
//!
//! ```text
//! cargo run --release --manifest-path engines/Cargo.toml --bin imago -- fuzz --seconds 60 --dir imago
//! cargo run --release --manifest-path engines/Cargo.toml --bin imago -- replay imago/artifacts/map_extents/FILE
//! ```

pub mod fstool;
pub mod imago;
pub mod qcow2_core;
pub mod qcow2_rs;
pub mod rust_img_qcow2;

use std::io;
use std::path::{Path, PathBuf};

use qcowfuzz::harness::chain::ChainFolder;
use qcowfuzz::prelude::*;
use tempfile::{TempDir, tempdir, tempdir_in};

/// The largest number of stored bytes of a chain that is written to files.
const MAX_STORED_BYTES: u64 = 256 << 20;

/// The files of a chain in a temporary folder, which is deleted with this value. A clone has a folder of its own.
#[derive(Debug, Default)]
pub struct ChainFiles(Option<(ChainFolder, TempDir)>);

impl Clone for ChainFiles {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ChainFiles {
    /// Writes the files of `chain` over those of the chain before. Returns the path of the image to open.
    ///
    /// # Errors
    /// A read of the chain fails, as the oracle `io` wants it to, or a file cannot be written.
    pub fn write(&mut self, chain: &Chain) -> Answer<PathBuf> {
        let (folder, _) = match &mut self.0 {
            Some(files) => files,
            none => none.insert(folder()?),
        };
        Ok(chain.write_to(folder)?)
    }
}

/// Creates a folder in memory, where the system has a place for that: disks that are longer than other file systems
/// allow are normal. [`MAX_STORED_BYTES`] bounds the memory.
fn folder() -> io::Result<(ChainFolder, TempDir)> {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempdir_in(memory)? } else { tempdir()? };
    Ok((ChainFolder::new(dir.path(), MAX_STORED_BYTES), dir))
}
