//! The anatomies of the files of a layer. An image in several files has one for each of them; every other layer has
//! one for its image.

use std::ops::Range;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::formats::ImageLayout;
use crate::formats::anatomy::{Anatomy, EVERYTHING, Element, Part};
use crate::formats::error::MapError;
use crate::images::files::{LayerFile, LayerFiles};

/// The anatomies of the files of a layer. The buffers are reused for the next layer.
#[derive(Debug, Default)]
pub struct LayerAnatomy {
    image: Anatomy,
    extents: [Anatomy; MAX_EXTENT_FILES],
    /// The first guest byte of each extent.
    starts: [u64; MAX_EXTENT_FILES],
}

impl LayerAnatomy {
    /// Creates the anatomies of a layer that keep structures, and no elements.
    pub fn of_structures() -> Self {
        let extents = std::array::from_fn(|_| Anatomy::of_structures());
        Self { image: Anatomy::of_structures(), extents, ..Self::default() }
    }

    /// Takes the image of a layer apart, and the files beside it. The layer is as a program builds it.
    ///
    /// # Errors
    /// A structure is malformed. The elements that were found before stay.
    pub fn read(&mut self, files: &LayerFiles) -> Result<(), MapError> {
        self.extents.iter_mut().for_each(Anatomy::clear);
        self.image.read(files.format, &files.image)?;
        if files.extents.all().is_empty() {
            return Ok(());
        }
        let layout = ImageLayout::read(&files.image)?;
        let mut start = 0u64;
        let places = self.extents.iter_mut().zip(&mut self.starts);
        for ((anatomy, place), (line, file)) in
            places.zip(layout.extents().iter().zip(files.extents.all()))
        {
            *place = start;
            anatomy.read_extent(line.kind, file.as_ref())?;
            start = start.saturating_add(line.bytes());
        }
        Ok(())
    }

    /// Returns the anatomy of a file. A data file has none.
    pub fn of_file(&self, file: LayerFile) -> Option<&Anatomy> {
        match file {
            LayerFile::Image => Some(&self.image),
            LayerFile::DataFile => None,
            LayerFile::Extent(index) => self.extents.get(index),
        }
    }

    /// Returns the elements of a part in all files, counted as [`Anatomy::element`] counts: first those of the image,
    /// then those of each extent. Guest ranges are those of the disk.
    pub fn element(&self, part: Part, nth: u16) -> Option<(LayerFile, Element)> {
        let all: usize = self.files().map(|(_, anatomy)| anatomy.of(part).len()).sum();
        let mut index = usize::from(nth / 2).checked_rem(all)?;
        for (file, anatomy) in self.files() {
            let own = anatomy.of(part).len();
            if let Some(after) = index.checked_sub(own) {
                index = after;
                continue;
            }
            // The index is at most `nth / 2`.
            let nth = u16::try_from(2 * index).unwrap_or(u16::MAX - 1) | (nth % 2);
            let element = anatomy.element(part, nth)?;
            let guest = self.on_disk(file, element.guest.clone());
            return Some((file, Element { guest, ..element }));
        }
        None
    }

    /// Returns the elements of a part in all files, in the order of [`LayerAnatomy::element`]. Guest ranges are those
    /// of the disk.
    pub fn elements_of(&self, part: Part) -> impl Iterator<Item = (LayerFile, Element)> {
        self.files().flat_map(move |(file, anatomy)| {
            anatomy.of(part).iter().map(move |element| {
                let guest = self.on_disk(file, element.guest.clone());
                (file, Element { guest, ..element.clone() })
            })
        })
    }

    /// Returns the files with an anatomy, the image first.
    pub fn files(&self) -> impl Iterator<Item = (LayerFile, &Anatomy)> {
        let extents = self.extents.iter().enumerate();
        let extents = extents.map(|(index, anatomy)| (LayerFile::Extent(index), anatomy));
        std::iter::once((LayerFile::Image, &self.image)).chain(extents)
    }

    /// Returns the range of the disk for a guest range of a file.
    fn on_disk(&self, file: LayerFile, guest: Range<u64>) -> Range<u64> {
        let start = match file {
            // The size of an extent moves all later ones.
            _ if guest == EVERYTHING => return guest,
            LayerFile::Extent(index) => self.starts.get(index).copied().unwrap_or(0),
            LayerFile::Image | LayerFile::DataFile => 0,
        };
        guest.start.saturating_add(start)..guest.end.saturating_add(start)
    }
}
