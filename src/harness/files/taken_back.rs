//! The way back of files that an implementation has changed by their paths: the bytes that differ are written to the
//! files of the chain.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, PIECE_BYTES, Storage, each_data};

use super::chain::ChainFile;

/// The unit in which files are compared.
const SECTOR_BYTES: usize = 512;

impl ChainFile {
    /// Gives the file the length and the bytes of `content`. Writes only sectors that differ.
    ///
    /// # Errors
    /// A read of `content` fails; or the file differs, and is not open for writing.
    pub(crate) fn become_like(&self, content: &impl Storage) -> Result<(), StorageError> {
        let differing = self.untraced(|file| file.differing_sectors(content));
        if self.length_bytes() != content.length_bytes() {
            self.set_length(content.length_bytes())?;
        }
        let differing = differing?.into_iter().filter(|sector| sector.get() < self.length_bytes());
        for sector in differing {
            let mut bytes = [0; SECTOR_BYTES];
            content.read_at(sector, &mut bytes)?;
            let left = usize::try_from(self.length_bytes() - sector.get()).unwrap_or(SECTOR_BYTES);
            self.write_at(sector, &bytes[..left.min(SECTOR_BYTES)])?;
        }
        Ok(())
    }

    /// Returns the offsets of the sectors in which the file differs from `content`.
    fn differing_sectors(
        &self,
        content: &impl Storage,
    ) -> Result<BTreeSet<HostOffset>, StorageError> {
        let (mut differing, mut other) = (BTreeSet::new(), vec![0; PIECE_BYTES]);
        let mut note = |data: Data<'_>, storage: &dyn Storage| {
            for (piece, at) in data.bytes.chunks(SECTOR_BYTES).zip((0u64..).step_by(SECTOR_BYTES)) {
                let at = data.offset + at;
                let other = &mut other[..piece.len()];
                storage.read_at(at, other)?;
                if piece != other {
                    // Data may begin inside a sector.
                    let ends = [at, at + (piece.len() as u64 - 1)];
                    differing.extend(ends.map(|it| {
                        HostOffset::new(it.get() / SECTOR_BYTES as u64 * SECTOR_BYTES as u64)
                    }));
                }
            }
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        };
        let end = HostOffset::new(self.length_bytes().max(content.length_bytes()));
        let mut scratch = vec![0; PIECE_BYTES];
        // A hole of one file may be data in the other. Nothing ends these walks early.
        let _ = each_data(content, HostOffset::ZERO..end, &mut scratch, |data| note(data, self))?;
        let _ = each_data(self, HostOffset::ZERO..end, &mut scratch, |data| note(data, content))?;
        Ok(differing)
    }
}
