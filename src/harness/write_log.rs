//! The writes to a file since the last flush that a guest knows of, and the files that a cut could leave.
//!
//! If the process of a writer is killed, the file has all that was written up to then.
//!
//! In a power cut, a disk keeps all that was written before its last flush. It has kept any of the later writes: each
//! sector of 512 bytes is old or new, and each write may have reached the disk after the next. The length of the file
//! is that of the moment. To shorten the file counts as a flush, and so does a write for which the log has no room.
//!
//! # Arithmetic
//! An offset that saturates lies past the end of every file.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::entropy::Entropy;
use crate::images::image::Image;
use crate::programs::CutKind;

/// The unit that a disk writes as a whole.
const SECTOR_BYTES: u64 = 512;

/// The most bytes of a log, with the old and the new ones of each write. A single write may be longer.
const MAX_LOG_BYTES: usize = 16 << 20;

/// The changes of a file, in their order.
#[derive(Debug, Default)]
pub(super) struct WriteLog {
    changes: Vec<FileChange>,
    /// The old bytes of each write, and its new ones.
    bytes: Vec<u8>,
    /// The number of changes before the last flush that the guest knows of.
    settled: usize,
}

/// A change of a file.
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
    /// Notes a write to `image`, which has not happened yet.
    pub(super) fn note_write(&mut self, image: &Image, offset: HostOffset, new: &[u8]) {
        if self.bytes.len().saturating_add(new.len().saturating_mul(2)) > MAX_LOG_BYTES {
            self.clear();
        }
        let (position, length) = (self.bytes.len(), new.len());
        self.bytes.resize(position + length, 0);
        // Reads from memory do not fail.
        let _ = image.read_at(offset, &mut self.bytes[position..]);
        self.bytes.extend_from_slice(new);
        let length_before = image.length_bytes();
        self.changes.push(FileChange::Write { offset, length, position, length_before });
    }

    /// Notes another length of `image`, which has the old one still.
    pub(super) fn note_length(&mut self, image: &Image, length_bytes: u64) {
        let length_before = image.length_bytes();
        match length_bytes < length_before {
            true => self.clear(),
            false => self.changes.push(FileChange::Growth { length_before, length_bytes }),
        }
    }

    /// Notes a flush of the file.
    pub(super) fn note_flush(&mut self) {
        self.changes.push(FileChange::Flush);
    }

    /// Notes that the guest relies on all that was written so far. It may not have been flushed.
    pub(super) fn settle(&mut self) {
        self.settled = self.changes.len();
    }

    /// Forgets all changes: they are on the disk.
    pub(super) fn clear(&mut self) {
        self.changes.clear();
        self.bytes.clear();
        self.settled = 0;
    }

    /// Returns the number of changes in the log.
    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Returns a file that a cut could have left, at a moment since the last flush that the guest knows of. `image` is
    /// the file as it is now. Half of all cuts come now.
    pub(super) fn cut(&self, image: &Image, kind: CutKind, choice: u16) -> Image {
        let mut entropy = Entropy::new(choice.into());
        let latest = self.changes.len();
        let moments = (latest - self.settled) as u64 + 1;
        let moment = match entropy.one_in(2) {
            true => latest,
            false => self.settled + entropy.below(moments) as usize,
        };
        self.left(image, moment, kind, &mut entropy)
    }

    /// Returns a file that a cut could have left while the changes behind the first `changes` happened: at least one of
    /// them has begun. Returns `None` if there are none.
    pub(super) fn cut_since(
        &self,
        image: &Image,
        changes: usize,
        kind: CutKind,
        choice: u16,
    ) -> Option<Image> {
        let latest = self.changes.len();
        // A log with fewer changes began again in between.
        let first = if changes > latest { 0 } else { changes };
        let mut entropy = Entropy::new(choice.into());
        let moments = (latest - first) as u64;
        let moment = first + 1 + entropy.below(moments) as usize;
        (moments > 0).then(|| self.left(image, moment, kind, &mut entropy))
    }

    /// Returns a file that a cut after the first `moment` changes could have left.
    fn left(&self, image: &Image, moment: usize, kind: CutKind, entropy: &mut Entropy) -> Image {
        let kept = match (kind, entropy.below(4)) {
            (CutKind::Process, _) => Kept::All,
            (CutKind::Power, 0) => Kept::None,
            (CutKind::Power, 1) => Kept::Writes,
            (CutKind::Power, _) => Kept::Sectors,
        };
        let before = &self.changes[..moment];
        let flushed = before.iter().rposition(|it| matches!(it, FileChange::Flush));
        // Without a flush, the log begins with the state on the disk.
        let flushed = flushed.unwrap_or(0);
        let mut left = image.clone();
        for change in self.changes[flushed..].iter().rev() {
            self.undo(change, &mut left);
        }
        for change in &self.changes[flushed..moment] {
            left.set_length(left.length_bytes().max(change.end()));
            self.redo(change, kept, entropy, &mut left);
        }
        left
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

    /// Repeats the parts of a change that the disk has kept.
    fn redo(&self, change: &FileChange, kept: Kept, entropy: &mut Entropy, image: &mut Image) {
        let FileChange::Write { offset, length, position, .. } = *change else { return };
        if kept == Kept::None || kept == Kept::Writes && entropy.one_in(2) {
            return;
        }
        let (mut at, mut left) = (offset, &self.bytes[position + length..position + 2 * length]);
        while !left.is_empty() {
            // Up to the end of a sector, or all of it.
            let sector = SECTOR_BYTES - at.get() % SECTOR_BYTES;
            let count = match kept {
                Kept::Sectors => left.len().min(sector as usize),
                _ => left.len(),
            };
            let (piece, rest) = left.split_at(count);
            if kept != Kept::Sectors || entropy.one_in(2) {
                image.overwrite(at, piece);
            }
            at = at.saturating_add(count as u64);
            left = rest;
        }
    }
}

impl FileChange {
    /// Returns the length that the file has at least after the change.
    fn end(&self) -> u64 {
        match *self {
            Self::Write { offset, length, .. } => offset.saturating_add(length as u64).get(),
            Self::Growth { length_bytes, .. } => length_bytes,
            Self::Flush => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECTORS: usize = 6;

    /// A file with its log.
    struct LoggedFile {
        image: Image,
        log: WriteLog,
    }

    impl LoggedFile {
        fn new() -> Self {
            let mut image = Image::default();
            image.write(HostOffset::ZERO, &[0; SECTORS * 512]);
            image.seal(0);
            Self { image, log: WriteLog::default() }
        }

        /// Fills sectors with a value.
        fn write(&mut self, sectors: std::ops::Range<usize>, value: u8) {
            let offset = HostOffset::new(sectors.start as u64 * 512);
            let bytes = vec![value; sectors.len() * 512];
            self.log.note_write(&self.image, offset, &bytes);
            let end = offset.get() + bytes.len() as u64;
            self.image.set_length(self.image.length_bytes().max(end));
            self.image.overwrite(offset, &bytes);
        }

        /// Returns the values of the sectors in each file that a cut can leave.
        fn after(&self, kind: CutKind) -> BTreeSet<Vec<u8>> {
            let cuts = (0..4000).map(|choice| {
                let left = self.log.cut(&self.image, kind, choice);
                let mut bytes = vec![0; left.length_bytes() as usize];
                left.read_at(HostOffset::ZERO, &mut bytes).unwrap();
                let sectors = bytes.chunks(512);
                sectors
                    .map(|sector| {
                        assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
                        sector[0]
                    })
                    .collect()
            });
            cuts.collect()
        }
    }

    #[test]
    fn a_power_cut_loses_any_sectors_that_were_not_flushed() {
        let mut file = LoggedFile::new();
        file.write(0..2, 1);
        file.log.note_flush();
        file.write(1..3, 2);
        file.write(2..4, 3);
        let mut expected = BTreeSet::new();
        // Without the guest's reliance, the cut can also come before the flush.
        file.log.settle();
        for one in [1, 2] {
            for two in [0, 2, 3] {
                for three in [0, 3] {
                    expected.insert(vec![1, one, two, three, 0, 0]);
                }
            }
        }
        assert_eq!(file.after(CutKind::Power), expected);
    }

    #[test]
    fn a_power_cut_before_a_flush_loses_what_came_before_it() {
        let mut file = LoggedFile::new();
        file.write(0..1, 1);
        file.log.note_flush();
        file.write(1..2, 2);
        let expected = [[0, 0], [1, 0], [1, 2]].map(|[one, two]| vec![one, two, 0, 0, 0, 0]);
        assert_eq!(file.after(CutKind::Power), BTreeSet::from(expected));
    }

    #[test]
    fn the_end_of_a_process_loses_only_what_it_has_not_written() {
        let mut file = LoggedFile::new();
        file.write(0..2, 1);
        file.write(1..3, 2);
        let expected = [[0, 0, 0], [1, 1, 0], [1, 2, 2]];
        let expected = expected.map(|[one, two, three]| vec![one, two, three, 0, 0, 0]);
        assert_eq!(file.after(CutKind::Process), BTreeSet::from(expected));
    }

    #[test]
    fn a_guest_that_relies_on_writes_without_a_flush_can_lose_them() {
        let mut file = LoggedFile::new();
        file.write(0..1, 1);
        file.log.settle();
        file.write(1..2, 2);
        let lost = vec![0, 2, 0, 0, 0, 0];
        assert!(file.after(CutKind::Power).contains(&lost));
    }

    #[test]
    fn a_cut_since_a_moment_comes_after_a_later_change() {
        let mut file = LoggedFile::new();
        file.write(0..1, 1);
        let before = file.log.changes();
        assert!(file.log.cut_since(&file.image, before, CutKind::Power, 1).is_none());
        file.write(1..2, 2);
        file.write(2..3, 3);
        let cuts = (0..400).map(|choice| {
            let left = file.log.cut_since(&file.image, before, CutKind::Process, choice).unwrap();
            [0, 1, 2].map(|sector| {
                let mut byte = [0];
                left.read_at(HostOffset::new(sector * 512), &mut byte).unwrap();
                byte[0]
            })
        });
        assert_eq!(BTreeSet::from_iter(cuts), BTreeSet::from([[1, 2, 0], [1, 2, 3]]));
    }

    #[test]
    fn the_file_has_the_length_of_the_moment() {
        let mut file = LoggedFile::new();
        file.log.note_flush();
        file.log.settle();
        file.write(7..8, 1);
        let lengths: BTreeSet<usize> = file.after(CutKind::Power).iter().map(Vec::len).collect();
        assert_eq!(lengths, BTreeSet::from([SECTORS, 8]));
        // To shorten the file is a flush.
        file.log.note_length(&file.image, 512);
        file.image.set_length(512);
        assert_eq!(file.after(CutKind::Power), BTreeSet::from([vec![0]]));
    }
}
