//! The files that an engine writes: the image at the top of a chain and, if it has one, its external data file.

use crate::images::image::Image;

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopFile {
    Image,
    DataFile,
}

/// The bytes of the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopFiles {
    pub(crate) image: Image,
    /// Empty if the image has no data file.
    pub(crate) data_file: Image,
}

impl TopFiles {
    /// Returns the bytes of a file.
    pub(crate) fn get(&self, file: TopFile) -> &Image {
        match file {
            TopFile::Image => &self.image,
            TopFile::DataFile => &self.data_file,
        }
    }

    /// Returns the bytes of a file, to change them.
    pub(crate) fn get_mut(&mut self, file: TopFile) -> &mut Image {
        match file {
            TopFile::Image => &mut self.image,
            TopFile::DataFile => &mut self.data_file,
        }
    }
}
