//! All power cuts of a log that leave different files. A choice is 16 bits, so it selects some files by chance; this
//! module tries each of them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::content::entropy::Entropy;
use crate::images::files::{LayerFile, LayerFiles};
use crate::programs::CutKind;

use super::{CutChoices, FileChange, SECTOR_BYTES, WriteLog};

/// The most choices of a log.
const MOST_CUTS: usize = 256;

impl WriteLog {
    /// Returns the choices of cuts since the last guest flush, or after the first `since` changes, as in
    /// [`WriteLog::cut_since`]. `files` are the current files.
    pub(crate) fn choices(&self, files: &LayerFiles, since: Option<usize>) -> CutChoices {
        let (mut drawn, mut left, mut choices) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let sectors = self.sectors();
        for choice in 0..=u16::MAX {
            let mut entropy = Entropy::new(choice.into());
            let moment = match since {
                None => Some(self.moment(&mut entropy)),
                Some(since) => self.moment_since(since, &mut entropy),
            };
            let Some(moment) = moment else { break };
            // The rest of the choice, from which the files are drawn once more.
            let before = entropy.state();
            let mut bits = DefaultHasher::new();
            self.each_piece(moment, CutKind::Power, &mut entropy, |_, is_kept| {
                bits.write_u8(is_kept.into());
            });
            if !drawn.insert((moment, bits.finish())) {
                continue;
            }
            if choices.len() == MOST_CUTS {
                return CutChoices { choices, has_more: true };
            }
            let files = self.left(files, moment, CutKind::Power, &mut Entropy::new(before));
            if left.insert(content_of(&files, &sectors)) {
                choices.push(choice);
            }
        }
        let first = since.map_or(self.settled, |since| self.first_since(since) + 1);
        let moments = (first..=self.changes.len()).map(|moment| self.cuts_at(moment));
        let all = moments.fold(0u64, u64::saturating_add);
        CutChoices { choices, has_more: drawn.len() as u64 != all }
    }

    /// Returns the number of ways in which a cut at a moment can keep and lose sectors.
    fn cuts_at(&self, moment: usize) -> u64 {
        let mut pieces = 0;
        self.each_piece(moment, CutKind::Process, &mut Entropy::new(0), |_, _| pieces += 1);
        1u64.checked_shl(pieces).unwrap_or(u64::MAX)
    }

    /// Returns the sectors to which the log has a write.
    fn sectors(&self) -> BTreeSet<(LayerFile, u64)> {
        let mut sectors = BTreeSet::new();
        for logged in &self.changes {
            let FileChange::Write { offset, length, .. } = logged.change else { continue };
            let end = (offset + length as u64).get().div_ceil(SECTOR_BYTES);
            sectors.extend((offset.get() / SECTOR_BYTES..end).map(|sector| (logged.file, sector)));
        }
        sectors
    }
}

/// Returns a checksum of the lengths of files, and of their bytes in some sectors.
fn content_of(files: &LayerFiles, sectors: &BTreeSet<(LayerFile, u64)>) -> u64 {
    let mut sum = DefaultHasher::new();
    for file in [LayerFile::Image, LayerFile::DataFile] {
        sum.write_u64(files.file(file).length_bytes());
    }
    for (file, sector) in sectors {
        let mut bytes = [0; SECTOR_BYTES as usize];
        // Reads from memory do not fail.
        let _ = files.file(*file).read_at(HostOffset::new(sector * SECTOR_BYTES), &mut bytes);
        sum.write(&bytes);
    }
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::super::tests::LoggedFiles;
    use super::*;

    #[test]
    fn each_choice_leaves_other_files_and_no_cut_leaves_more() {
        let mut logged = LoggedFiles::new();
        logged.write(0..2, 1);
        logged.write(1..2, 2);
        // The same bytes again: no file shows whether they were kept.
        logged.write(0..1, 1);
        let CutChoices { choices, has_more } = logged.log.choices(&logged.files, None);
        assert!(!has_more);
        let left = logged.after_cuts(CutKind::Power, choices.iter().copied());
        assert_eq!(left, logged.after_cuts(CutKind::Power, 0..=u16::MAX));
        // 0 or 1 in the first sector; 0, 1 or 2 in the second.
        assert_eq!((choices.len(), left.len()), (6, 6));
    }

    #[test]
    fn many_sectors_have_more_cuts_than_choices_and_a_settled_log_has_one() {
        let mut logged = LoggedFiles::new();
        logged.write(0..6, 1);
        logged.write(0..6, 2);
        let CutChoices { choices, has_more } = logged.log.choices(&logged.files, None);
        assert_eq!((choices.len(), has_more), (MOST_CUTS, true));
        logged.log.settle();
        let CutChoices { choices, has_more } = logged.log.choices(&logged.files, Some(2));
        assert!(choices.is_empty() && !has_more);
    }
}
