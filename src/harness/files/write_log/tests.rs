//! Tests of the files that cuts leave.

use std::collections::BTreeSet;

use super::*;

const SECTORS: usize = 6;

/// An image and a data file with their log.
pub(super) struct LoggedFiles {
    pub(super) files: LayerFiles,
    pub(super) log: WriteLog,
}

impl LoggedFiles {
    pub(super) fn new() -> Self {
        let mut image = Image::default();
        image.write(HostOffset::ZERO, &[0; SECTORS * 512]);
        image.seal(0);
        let files = LayerFiles { data_file: image.clone(), image, ..LayerFiles::default() };
        Self { files, log: WriteLog::default() }
    }

    /// Fills sectors of the image with a value.
    pub(super) fn write(&mut self, sectors: std::ops::Range<usize>, value: u8) {
        self.write_to(LayerFile::Image, sectors, value);
    }

    /// Fills sectors of a file with a value.
    fn write_to(&mut self, file: LayerFile, sectors: std::ops::Range<usize>, value: u8) {
        let offset = HostOffset::new(sectors.start as u64 * 512);
        let bytes = vec![value; sectors.len() * 512];
        let image = self.files.file_mut(file);
        self.log.note_write(file, image, offset, &bytes);
        let end = offset.get() + bytes.len() as u64;
        image.set_length(image.length_bytes().max(end));
        image.overwrite(offset, &bytes);
    }

    fn set_length(&mut self, file: LayerFile, length_bytes: u64) {
        let image = self.files.file_mut(file);
        self.log.note_length(file, image, length_bytes);
        image.set_length(length_bytes);
    }

    /// Returns the first byte of the image and of the data file, in each state that a cut can leave.
    fn first_sectors_after(&self, kind: CutKind) -> BTreeSet<[u8; 2]> {
        let cuts = (0..4000).map(|choice| {
            let left = self.log.cut(&self.files, kind, choice);
            [first_byte(&left, LayerFile::Image), first_byte(&left, LayerFile::DataFile)]
        });
        cuts.collect()
    }

    /// Returns the values of the sectors in each image that a cut can leave.
    fn after(&self, kind: CutKind) -> BTreeSet<Vec<u8>> {
        self.after_cuts(kind, 0..4000)
    }

    /// Returns the same for the cuts of some choices.
    pub(super) fn after_cuts(
        &self,
        kind: CutKind,
        choices: impl IntoIterator<Item = u16>,
    ) -> BTreeSet<Vec<u8>> {
        let cuts = choices.into_iter().map(|choice| {
            let left = self.log.cut(&self.files, kind, choice).image;
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

fn first_byte(files: &LayerFiles, file: LayerFile) -> u8 {
    let mut byte = [0];
    files.file(file).read_at(HostOffset::ZERO, &mut byte).unwrap();
    byte[0]
}

#[test]
fn a_power_cut_loses_any_sectors_that_were_not_flushed() {
    let mut file = LoggedFiles::new();
    file.write(0..2, 1);
    file.log.note_flush(LayerFile::Image);
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
    let mut file = LoggedFiles::new();
    file.write(0..1, 1);
    file.log.note_flush(LayerFile::Image);
    file.write(1..2, 2);
    let expected = [[0, 0], [1, 0], [1, 2]].map(|[one, two]| vec![one, two, 0, 0, 0, 0]);
    assert_eq!(file.after(CutKind::Power), BTreeSet::from(expected));
}

#[test]
fn a_cut_since_a_moment_comes_after_a_later_change() {
    let mut file = LoggedFiles::new();
    file.write(0..1, 1);
    let before = file.log.changes();
    assert!(file.log.cut_since(&file.files, before, CutKind::Power, 1).is_none());
    file.write(1..2, 2);
    file.write(2..3, 3);
    let cuts = (0..400).map(|choice| {
        let left = file.log.cut_since(&file.files, before, CutKind::Process, choice).unwrap();
        let left = left.image;
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
    let mut file = LoggedFiles::new();
    file.log.note_flush(LayerFile::Image);
    file.log.settle();
    file.write(7..8, 1);
    let lengths: BTreeSet<usize> = file.after(CutKind::Power).iter().map(Vec::len).collect();
    assert_eq!(lengths, BTreeSet::from([SECTORS, 8]));
    // To shorten the file is a flush.
    file.set_length(LayerFile::Image, 512);
    assert_eq!(file.after(CutKind::Power), BTreeSet::from([vec![0]]));
}

#[test]
fn the_end_of_a_process_is_one_moment_for_both_files() {
    let mut files = LoggedFiles::new();
    files.write_to(LayerFile::DataFile, 0..1, 1);
    files.write_to(LayerFile::Image, 0..1, 2);
    files.write_to(LayerFile::DataFile, 0..1, 3);
    files.write_to(LayerFile::Image, 0..1, 4);
    let expected = BTreeSet::from([[0, 0], [0, 1], [2, 1], [2, 3], [4, 3]]);
    assert_eq!(files.first_sectors_after(CutKind::Process), expected);
}

#[test]
fn a_flush_of_one_file_keeps_nothing_of_the_other() {
    for (flushed, expected) in
        [(LayerFile::Image, [[1, 0], [1, 2]]), (LayerFile::DataFile, [[0, 2], [1, 2]])]
    {
        let mut files = LoggedFiles::new();
        files.write_to(LayerFile::Image, 0..1, 1);
        files.write_to(LayerFile::DataFile, 0..1, 2);
        files.log.note_flush(flushed);
        files.log.settle();
        assert_eq!(files.first_sectors_after(CutKind::Power), BTreeSet::from(expected));
    }
}

#[test]
fn a_shorter_file_keeps_nothing_of_the_other_and_no_earlier_moment() {
    let mut files = LoggedFiles::new();
    files.write_to(LayerFile::DataFile, 0..1, 1);
    files.write_to(LayerFile::Image, 0..1, 2);
    let before = files.log.changes();
    files.set_length(LayerFile::Image, 512);
    assert!(files.log.cut_since(&files.files, before, CutKind::Process, 1).is_none());
    assert_eq!(files.first_sectors_after(CutKind::Process), BTreeSet::from([[2, 1]]));
    assert_eq!(files.first_sectors_after(CutKind::Power), BTreeSet::from([[2, 0], [2, 1]]));
    files.write_to(LayerFile::Image, 0..1, 3);
    let expected = BTreeSet::from([[2, 1], [3, 1]]);
    assert_eq!(files.first_sectors_after(CutKind::Process), expected);
    let closing = (0..100)
        .filter_map(|choice| files.log.cut_since(&files.files, before, CutKind::Process, choice));
    let closing = closing.map(|left| first_byte(&left, LayerFile::Image));
    assert_eq!(BTreeSet::from_iter(closing), BTreeSet::from([3]));
}
