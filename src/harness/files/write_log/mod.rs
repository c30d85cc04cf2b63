//! The changes to an image and to its data file since the last guest flush, and the files that a cut could leave. A
//! *guest flush* is a flush that the guest has requested; opening and closing the image count as one. Both files share
//! a log, because a cut happens at one moment for both.
//!
//! If the engine's process is killed, the files have everything that was written up to that moment.
//!
//! If the power is cut, a file has everything that was written before the engine's last flush of it. It has any
//! sectors of 512 bytes of the later writes: a later write may survive although an earlier one is lost. Each file has
//! the length that it had at the moment. Shortening a file counts as a guest flush of it. A write that does not fit
//! into the log counts as a guest flush of both files.
//!
//! # Arithmetic
//! An offset that saturates lies past the end of every file.

mod choices;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::content::entropy::Entropy;
use crate::images::files::image::Image;
use crate::images::files::{LayerFile, LayerFiles};
use crate::programs::CutKind;

/// The unit that a disk writes as a whole.
const SECTOR_BYTES: u64 = 512;

/// The most bytes of a log, which has the old and the new bytes of each write. A single write may be longer.
const MAX_LOG_BYTES: usize = 16 << 20;
/// The bytes for which a log has room at first. Most logs need no more, so that they do not move while they grow.
const FIRST_LOG_BYTES: usize = 1 << 20;

/// The changes of the files, in their order.
#[derive(Debug, Default)]
pub(crate) struct WriteLog {
    changes: Vec<LoggedChange>,
    /// The old bytes of each write, and its new ones.
    bytes: Vec<u8>,
    /// The number of changes before the last guest flush. No cut comes before it.
    settled: usize,
    /// The number of changes that the log has forgotten.
    forgotten: usize,
}

#[derive(Clone, Copy, Debug)]
struct LoggedChange {
    file: LayerFile,
    change: FileChange,
}

#[derive(Clone, Copy, Debug)]
enum FileChange {
    /// A write.
    Write {
        offset: HostOffset,
        length: usize,
        /// The place of the old bytes in [`WriteLog::bytes`]. The new ones are behind them.
        position: usize,
        /// The length of the file before.
        length_before: u64,
    },
    /// The file grows.
    Growth {
        /// The length of the file before.
        length_before: u64,
        /// The length of the file from now on.
        length_bytes: u64,
    },
    /// A flush.
    Flush,
}

/// Choices of power cuts, each of which leaves files that no other one leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CutChoices {
    /// The choices: at most 256.
    pub(crate) choices: Vec<u16>,
    /// Other power cuts leave other files: more than 256, or no choice selects them.
    pub(crate) has_more: bool,
}

/// A part of a write, inside one sector.
struct SectorPiece<'l> {
    file: LayerFile,
    offset: HostOffset,
    /// The new bytes.
    bytes: &'l [u8],
}

/// The writes after the last flush that a disk has kept at the moment of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    None,
    All,
    /// Half of the writes.
    Writes,
    /// Half of the sectors.
    Sectors,
}

impl WriteLog {
    /// Notes a write to a file with the bytes of `image`. It has not happened yet.
    pub(crate) fn note_write(
        &mut self,
        file: LayerFile,
        image: &Image,
        offset: HostOffset,
        new: &[u8],
    ) {
        if self.bytes.len().saturating_add(new.len().saturating_mul(2)) > MAX_LOG_BYTES {
            self.clear();
        }
        if self.bytes.is_empty() {
            self.bytes.reserve(FIRST_LOG_BYTES);
        }
        let (position, length) = (self.bytes.len(), new.len());
        self.bytes.resize(position + length, 0);
        // Reads from memory do not fail.
        let _ = image.read_at(offset, &mut self.bytes[position..]);
        self.bytes.extend_from_slice(new);
        let length_before = image.length_bytes();
        let change = FileChange::Write { offset, length, position, length_before };
        self.changes.push(LoggedChange { file, change });
    }

    /// Notes another length of a file with the bytes of `image`, which has the old one still.
    pub(crate) fn note_length(&mut self, file: LayerFile, image: &Image, length_bytes: u64) {
        let length_before = image.length_bytes();
        match length_bytes < length_before {
            true => self.forget(file),
            false => {
                let change = FileChange::Growth { length_before, length_bytes };
                self.changes.push(LoggedChange { file, change });
            }
        }
    }

    /// Notes a flush of a file. It saves nothing of the other file.
    pub(crate) fn note_flush(&mut self, file: LayerFile) {
        self.changes.push(LoggedChange { file, change: FileChange::Flush });
    }

    /// Notes that the guest relies on all that was written so far. It may not have been flushed.
    pub(crate) fn settle(&mut self) {
        self.settled = self.changes.len();
    }

    /// Forgets the changes of one file, which are on the disk. The log can no longer restore an earlier state of this
    /// file, so no later cut goes back behind this moment in either file.
    fn forget(&mut self, file: LayerFile) {
        let before = self.changes.len();
        self.changes.retain(|logged| logged.file != file);
        self.forgotten += before - self.changes.len();
        match self.changes.is_empty() {
            true => self.clear(),
            false => self.settle(),
        }
    }

    /// Forgets all changes: they are on the disk.
    pub(crate) fn clear(&mut self) {
        self.forgotten += self.changes.len();
        self.changes.clear();
        self.bytes.clear();
        self.settled = 0;
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> usize {
        self.forgotten + self.changes.len()
    }

    /// Returns files that a cut at some moment since the last guest flush could have left. `files` are the current
    /// files. For half of all choices, the moment is now.
    pub(crate) fn cut(&self, files: &LayerFiles, kind: CutKind, choice: u16) -> LayerFiles {
        let mut entropy = Entropy::new(choice.into());
        let moment = self.moment(&mut entropy);
        self.left(files, moment, kind, &mut entropy)
    }

    /// Draws the moment of a cut: the number of changes before it.
    fn moment(&self, entropy: &mut Entropy) -> usize {
        let latest = self.changes.len();
        let moments = (latest - self.settled) as u64 + 1;
        match entropy.one_in(2) {
            true => latest,
            false => self.settled + entropy.below(moments) as usize,
        }
    }

    /// Returns the files as a cut could leave them. The cut comes after the first `changes` changes and at least one
    /// more; `None` if there is no later change.
    pub(crate) fn cut_since(
        &self,
        files: &LayerFiles,
        changes: usize,
        kind: CutKind,
        choice: u16,
    ) -> Option<LayerFiles> {
        let mut entropy = Entropy::new(choice.into());
        let moment = self.moment_since(changes, &mut entropy)?;
        Some(self.left(files, moment, kind, &mut entropy))
    }

    /// Draws the moment of a cut after the first `changes` changes and at least one more.
    fn moment_since(&self, changes: usize, entropy: &mut Entropy) -> Option<usize> {
        let first = self.first_since(changes);
        let moments = (self.changes.len() - first) as u64;
        (moments > 0).then(|| first + 1 + entropy.below(moments) as usize)
    }

    /// Returns the number of changes of the log before which no cut since the first `changes` changes comes. If the log
    /// has forgotten changes in between, no cut comes before that.
    fn first_since(&self, changes: usize) -> usize {
        changes.saturating_sub(self.forgotten).max(self.settled)
    }

    /// Returns the files that a cut after the first `moment` changes could have left.
    fn left(
        &self,
        files: &LayerFiles,
        moment: usize,
        kind: CutKind,
        entropy: &mut Entropy,
    ) -> LayerFiles {
        let mut left = files.clone();
        for (_, LoggedChange { file, change }) in self.behind_flushes(moment).rev() {
            self.undo(change, left.file_mut(*file));
        }
        for (_, LoggedChange { file, change }) in
            self.behind_flushes(moment).take_while(|(at, _)| *at < moment)
        {
            let image = left.file_mut(*file);
            image.set_length(image.length_bytes().max(change.end()));
        }
        self.each_piece(moment, kind, entropy, |piece, is_kept| {
            if is_kept {
                left.file_mut(piece.file).overwrite(piece.offset, piece.bytes);
            }
        });
        left
    }

    /// Returns the changes of each file that come after its last flush before the moment, with their places.
    fn behind_flushes(
        &self,
        moment: usize,
    ) -> impl DoubleEndedIterator<Item = (usize, &LoggedChange)> {
        // The number of changes before the last flush of a file. Without a flush, the log begins with the state on the
        // disk.
        let flushed = |of: LayerFile| {
            let is_flush =
                |it: &LoggedChange| it.file == of && matches!(it.change, FileChange::Flush);
            self.changes[..moment].iter().rposition(is_flush).unwrap_or(0)
        };
        let (image, data_file) = (flushed(LayerFile::Image), flushed(LayerFile::DataFile));
        let first_of = move |file| if file == LayerFile::Image { image } else { data_file };
        self.changes.iter().enumerate().filter(move |(at, it)| *at >= first_of(it.file))
    }

    /// Passes the pieces of the writes that a cut after the first `moment` changes may lose, in their order, to `take`,
    /// each up to the end of a sector, and whether the disk has kept it.
    fn each_piece<'l>(
        &'l self,
        moment: usize,
        kind: CutKind,
        entropy: &mut Entropy,
        mut take: impl FnMut(SectorPiece<'l>, bool),
    ) {
        let kept = match (kind, entropy.below(4)) {
            (CutKind::Process, _) => Kept::All,
            (CutKind::Power, 0) => Kept::None,
            (CutKind::Power, 1) => Kept::Writes,
            (CutKind::Power, _) => Kept::Sectors,
        };
        for (_, LoggedChange { file, change }) in
            self.behind_flushes(moment).take_while(|(at, _)| *at < moment)
        {
            let FileChange::Write { offset, length, position, .. } = *change else { continue };
            let is_kept = match kept {
                Kept::None => false,
                Kept::Writes => !entropy.one_in(2),
                Kept::All | Kept::Sectors => true,
            };
            let new = &self.bytes[position + length..position + 2 * length];
            let (mut offset, mut rest) = (offset, new);
            while !rest.is_empty() {
                let sector = SECTOR_BYTES - offset.get() % SECTOR_BYTES;
                let (bytes, behind) = rest.split_at(rest.len().min(sector as usize));
                let is_kept = is_kept && (kept != Kept::Sectors || entropy.one_in(2));
                take(SectorPiece { file: *file, offset, bytes }, is_kept);
                offset += bytes.len() as u64;
                rest = behind;
            }
        }
    }

    fn undo(&self, change: &FileChange, image: &mut Image) {
        match *change {
            FileChange::Write { offset, length, position, length_before } => {
                image.overwrite(offset, &self.bytes[position..position + length]);
                image.set_length(length_before);
            }
            FileChange::Growth { length_before, .. } => image.set_length(length_before),
            FileChange::Flush => {}
        }
    }
}

impl FileChange {
    /// Returns the length that the file has at least after the change.
    fn end(&self) -> u64 {
        match *self {
            Self::Write { offset, length, .. } => (offset + length as u64).get(),
            Self::Growth { length_bytes, .. } => length_bytes,
            Self::Flush => 0,
        }
    }
}

#[cfg(test)]
mod tests;
