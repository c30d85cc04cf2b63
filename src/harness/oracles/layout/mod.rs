//! The structures of images whose format is not qcow2: their checksums and their tables, read from the bytes of the
//! file. No two structures lie in one place, and none past the end of the file. Does not check the mapping: the model
//! does.

mod reading;
mod vhdx;
mod vmdk;
mod vpc;

use std::fmt;
use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{Layer, Storage};
use crate::formats;
use crate::formats::anatomy::{Anatomy, Part};
use crate::harness::oracles::{Violation, violation};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;
use crate::images::format::list::drawer;

use reading::{ORACLE, refused};

/// The places of the structures of one file. The buffer is reused from file to file.
#[derive(Debug, Default)]
pub struct LayoutJudge {
    places: Vec<Range<u64>>,
    anatomy: Anatomy,
}

impl LayoutJudge {
    /// Judges an image that lies on `below`, and returns the bytes of its tables.
    pub fn check(
        &mut self,
        format: ImageFormat,
        image: &Image,
        below: Option<&LayerFiles>,
    ) -> Result<u64, Box<Violation>> {
        self.places.clear();
        let table_bytes = match format {
            ImageFormat::Vpc => vpc::check(image, &mut self.places)?,
            ImageFormat::Vhdx => vhdx::check(image, &mut self.places)?,
            ImageFormat::Vmdk => vmdk::check(image, below, &mut self.places)?,
            // A raw file has no structures, and the oracle `refcounts` judges qcow2 images.
            ImageFormat::Raw | ImageFormat::Qcow2 => 0,
            _ => self.check_by_rules(format, image)?,
        };
        self.check_places(image.length_bytes())?;
        Ok(table_bytes)
    }

    /// Judges a VMDK image on `below` and the files beside it, and returns the bytes of their tables.
    pub fn check_extents(
        &mut self,
        files: &LayerFiles,
        below: Option<&LayerFiles>,
    ) -> Result<u64, Box<Violation>> {
        let lines = vmdk::check_stated_extents(files, below)?;
        let mut table_bytes = 0;
        for (line, image) in lines.iter().zip(files.extents.all()) {
            self.places.clear();
            table_bytes += vmdk::check_extents(line, image, &mut self.places)?;
            self.check_places(image.length_bytes())?;
        }
        Ok(table_bytes)
    }

    /// Checks that a built image breaks no rule, and that the format's own check finds no fault. Notes the places of
    /// all structures and stored blocks, and returns the bytes of the tables.
    fn check_by_rules(
        &mut self,
        format: ImageFormat,
        image: &Image,
    ) -> Result<u64, Box<Violation>> {
        if let Some(rule) = drawer(format).broken_at_open(image) {
            violation(ORACLE, "rules", ("kept", "broken"), || rule.to_string())?;
        }
        let mut first = None;
        let mut report = |fault: &dyn fmt::Display| {
            first.get_or_insert_with(|| fault.to_string());
        };
        let checked = formats::check(format, &Layer::alone(image), &mut report);
        let ended = checked.and_then(Result::err).map(|error| error.to_string());
        if let Some(fault) = first.or(ended) {
            violation(ORACLE, "check", ("no fault", "a fault"), || fault)?;
        }
        self.anatomy.read(format, image).map_err(|error| refused("structures", &error))?;
        let structures = self.anatomy.structures();
        self.places.extend(structures.iter().map(|structure| structure.bytes.clone()));
        let tables = structures.iter().filter(|structure| structure.part == Part::Table);
        Ok(tables.map(|table| table.bytes.end - table.bytes.start).sum())
    }

    /// Checks that the structures do not overlap, and lie inside the file.
    fn check_places(&mut self, file_bytes: u64) -> Result<(), Box<Violation>> {
        // A table without entries may have the place of the structure behind it.
        self.places.retain(|place| !place.is_empty());
        self.places.sort_unstable_by_key(|place| place.start);
        for pair in self.places.windows(2) {
            if let [here, next] = pair
                && next.start < here.end
            {
                violation(ORACLE, "two structures", ("apart", "in one place"), || {
                    format!("{here:?} and {next:?}")
                })?;
            }
        }
        match self.places.last() {
            Some(last) if last.end > file_bytes => {
                violation(ORACLE, "structure", ("in the file", "past its end"), || {
                    format!("{last:?}, and the file has {file_bytes} bytes")
                })
            }
            _ => Ok(()),
        }
    }
}
