//! Draws the questions: which answers the two sides compare after a step.

use crate::disk::image_format::ImageFormat;

use crate::recipes::recipe::DiskQuestion;

use super::Draft;

/// The unit of aligned windows in bytes, if the format's own is not larger.
const WINDOW_UNIT_BYTES: u64 = 64 << 10;
/// The largest disk whose data both sides write to a raw file, in bytes.
const MAX_READ_BYTES: u64 = 4 << 30;

impl Draft<'_> {
    /// Adds the map and one other question to the last step.
    pub(super) fn ask_two(&mut self) {
        let map = self.map();
        let other = match self.choices.below(10) {
            0 | 1 => self.map(),
            2..=4 => DiskQuestion::Check,
            5 | 6 => DiskQuestion::Info,
            7 => DiskQuestion::Measure,
            _ => DiskQuestion::Read,
        };
        let other = Some(other).filter(|other| *other != map);
        let questions = [map].into_iter().chain(other);
        let questions: Vec<_> = questions.filter(|question| self.can_ask(question)).collect();
        if let Some(step) = self.steps.last_mut() {
            step.questions.extend(questions);
        }
    }

    /// Asks all questions after the last step, some of them for the map of a window, too.
    pub(super) fn ask_everything(&mut self) {
        use DiskQuestion::{Check, Info, Measure, Read};
        let window = Some(self.map()).filter(|map| *map != DiskQuestion::MAP);
        let all = [DiskQuestion::MAP].into_iter().chain(window).chain([Check, Info, Measure, Read]);
        let all = all.filter(|question| self.can_ask(question)).collect();
        if let Some(step) = self.steps.last_mut() {
            step.questions = all;
        }
    }

    fn can_ask(&self, question: &DiskQuestion) -> bool {
        let is_small = self.top.size <= MAX_READ_BYTES;
        is_small || !matches!(question, DiskQuestion::Read | DiskQuestion::Measure)
    }

    /// Draws the map of a window: in a quarter of the draws it has a start, and in a quarter a length.
    fn map(&mut self) -> DiskQuestion {
        let size = self.top.size;
        let start = self.percent(25).then(|| self.point(0, size / 2));
        let length = self.percent(25).then(|| self.point(WINDOW_UNIT_BYTES, size));
        DiskQuestion::Map { start, length }
    }

    /// Draws a number of bytes between two numbers. Half of them are aligned to 64 KiB, or to the format's unit if that
    /// is larger. A few are zero or past the end.
    fn point(&mut self, least: u64, most: u64) -> u64 {
        let at = least.saturating_add(self.choices.below(most.saturating_sub(least).max(1)));
        // The unit of a raw file is that of its file system.
        let unit = match self.top.format {
            ImageFormat::Raw => WINDOW_UNIT_BYTES,
            _ => self.top.unit.max(WINDOW_UNIT_BYTES),
        };
        match self.choices.below(20) {
            0 => 0,
            1 => self.top.size.saturating_add(self.choices.below(3) * 512),
            2..=10 => at / unit * unit,
            _ => at,
        }
    }
}
