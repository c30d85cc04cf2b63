//! Copies the changes that an implementation has made to lent files into the files of the chain.

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
        let differing = self.untraced(|file| file.differing_sectors(content))?;
        if self.length_bytes() != content.length_bytes() {
            self.set_length(content.length_bytes())?;
        }
        let differing = differing.into_iter().filter(|sector| sector.get() < self.length_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::engine::{Answer, EngineError};
    use crate::harness::engines::chain_files::ChainFiles;
    use crate::harness::files::chain::Chain;
    use crate::images::files::Images;
    use crate::images::files::image::Image;

    /// Returns an image with bytes in two sectors, and a hole between them.
    fn image() -> Image {
        let mut image = Image::default();
        image.write(HostOffset::new(0), &[1; 100]);
        image.write(HostOffset::new(4096), &[2; 600]);
        image.seal(8000);
        image
    }

    fn chain(is_writable: bool) -> Chain {
        let alone = Chain::alone(image());
        if !is_writable {
            return alone;
        }
        let mut images = Images::default();
        images.resize(1);
        images.layer_mut(0).image = image();
        images.layer_mut(0).set_names(&Default::default(), 0, Default::default());
        Chain::new(&images).writable(None, false)
    }

    /// Lends the files of a chain, changes the image by its path, and passes it back. Returns the content of the lent
    /// file, and of the file of the chain.
    fn passed_back(chain: &Chain, change: impl FnOnce(&mut Vec<u8>)) -> Answer<(Vec<u8>, Vec<u8>)> {
        let mut files = ChainFiles::default();
        let lent = files.lend(chain)?;
        let mut content = std::fs::read(lent.path()).unwrap();
        change(&mut content);
        std::fs::write(lent.path(), &content).unwrap();
        lent.flush()?;
        let mut read = vec![0; chain.image().length_bytes() as usize];
        chain.image().read_at(HostOffset::ZERO, &mut read)?;
        // The next files are those of their chain, and nothing of the changes.
        let next = files.write(&Chain::alone(image()))?;
        assert_eq!(std::fs::read(next).unwrap().len(), 8000);
        Ok((content, read))
    }

    #[test]
    fn every_change_comes_back() {
        let changes: [fn(&mut Vec<u8>); 6] = [
            |_| (),
            // In one sector, across two, and where there was a hole.
            |bytes| bytes[50] = 9,
            |bytes| bytes[4600..4700].fill(7),
            |bytes| bytes[2000..2001].fill(5),
            // Data become zeros, and the file ends inside a sector; then it grows.
            |bytes| {
                bytes[..100].fill(0);
                bytes.truncate(4300);
            },
            |bytes| bytes.extend([3; 700]),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let (lent, chain) = passed_back(&chain(true), change).unwrap();
            assert!(lent == chain, "change {at}");
        }
    }

    #[test]
    fn a_chain_for_reading_takes_no_changes_back() {
        passed_back(&chain(false), |_| ()).unwrap_err();
        let chain = chain(false);
        let mut files = ChainFiles::default();
        files.lend(&chain).unwrap().pass_back().unwrap();
        let lent = files.lend(&chain).unwrap();
        std::fs::write(lent.path(), [1]).unwrap();
        assert!(matches!(lent.pass_back(), Err(EngineError::Storage(_))));
    }
}
