//! Opens the files of the extents that a VMDK image names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::storage::FileStorage;
use crate::formats::vmdk::head::ImageLayout;

use super::error::ChainError;
use super::names::{EXTENT_FILE, beside, open_named, plain};

/// The paths and the files of the extents, in the order of the image. Extents with the same path share the file.
#[derive(Debug, Default)]
pub struct ExtentFiles {
    pub(super) paths: Vec<PathBuf>,
    /// The files.
    pub files: Vec<Arc<FileStorage>>,
}

impl ExtentFiles {
    /// Opens the files that the image at `image` names.
    ///
    /// # Errors
    /// A file cannot be opened, or its name is refused.
    pub fn open(image: &Path, layout: &ImageLayout) -> Result<Self, ChainError> {
        let mut opened = Self::default();
        for extent in layout.extents() {
            let path = beside(image, plain(image, EXTENT_FILE, &extent.name)?);
            // Names are compared as they are: QEMU never joins data of two names.
            let mut known = opened.paths.iter().zip(&opened.files);
            let known = known.find(|known| known.0.as_os_str() == path.as_os_str());
            let file = match known {
                Some((_, file)) => file.clone(),
                None => Arc::new(open_named(image, EXTENT_FILE, &path)?),
            };
            opened.paths.push(path);
            opened.files.push(file);
        }
        Ok(opened)
    }
}
