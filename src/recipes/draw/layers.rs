//! Draws the operations that change which image backs which.

use crate::recipes::recipe::Command;

use super::changes::MAX_FILLED_BYTES;
use super::writes::WriteKind;
use super::{Draft, DraftImage};

impl Draft<'_> {
    /// Changes the backing file of the top image. An image without one gets an overlay before.
    pub(super) fn rebase(&mut self) {
        if self.below.is_empty() {
            self.put_overlay();
            self.requests(3, |_| WriteKind::Data);
        }
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        // A safe rebase reads, and may write, the whole disk.
        let is_large = self.top.size > MAX_FILLED_BYTES;
        match self.choices.below(4) {
            0 if !is_large => {
                self.img(["rebase", "-q", "-f", format, "-b", "", &file]);
                self.below.clear();
            }
            0 | 1 => {
                self.img(["rebase", "-q", "-u", "-f", format, "-b", "", &file]);
                self.below.clear();
            }
            kind => self.rebase_to_another(kind == 2 && !is_large),
        }
    }

    fn rebase_to_another(&mut self, is_safe: bool) {
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        // The image two layers down, or a copy of the one below.
        let (other, from) = match self.below.get(1) {
            Some(lower) if self.choices.one_in(2) => (lower.clone(), 1),
            _ => {
                let Some(lower) = self.below.first().cloned() else { return };
                (self.copy_of(&lower), 0)
            }
        };
        let name = self.backing_name(&file, &other.file);
        let mut words = vec!["rebase", "-q", "-f", format];
        if !is_safe {
            words.push("-u");
        }
        words.extend(["-b", &name, "-F", other.format.name(), &file]);
        self.commands.push(Command::QemuImg(words.into_iter().map(str::to_string).collect()));
        self.below.drain(..from);
        if let Some(lower) = self.below.first_mut() {
            *lower = other;
        }
    }

    /// Has an image copied, with all below it, to one image of the same format.
    fn copy_of(&mut self, image: &DraftImage) -> DraftImage {
        let file = self.name(image.format);
        let format = image.format.name();
        self.img(["convert", "-q", "-t", "unsafe", "-f", format, "-O", format, &image.file, &file]);
        DraftImage {
            file,
            unit: image.unit,
            size: image.size,
            format: image.format,
            ..DraftImage::default()
        }
    }

    /// Moves the content of the top image down. Later operations go on with the lower image, or with the emptied one.
    pub(super) fn commit(&mut self) {
        if self.below.is_empty() {
            self.put_overlay();
            self.requests(5, |_| WriteKind::Data);
        }
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        match self.choices.below(3) {
            0 => self.img(["commit", "-q", "-d", "-t", "unsafe", "-f", format, &file]),
            _ => self.img(["commit", "-q", "-t", "unsafe", "-f", format, &file]),
        }
        if self.choices.one_in(2) {
            let lower = self.below.remove(0);
            let size = lower.size.max(self.top.size);
            self.top = DraftImage { size, ..lower };
        }
    }
}
