//! A chain whose files at the top an engine writes: the image and its data file.

use std::sync::Arc;

use crate::harness::files::meter::Meter;
use crate::harness::files::top_files::{TopFile, TopFiles};
use crate::harness::files::written_file::{WrittenFile, WrittenFiles};
use crate::images::files::Images;
use crate::programs::CutKind;

use super::{ByteSource, Chain, ChainLayer};

impl Chain {
    /// Creates the chain of all layers of `images`, for an engine that writes: the image at the top and its data file
    /// are copies that can be written. Their writes are kept if there are cuts. Counts reads on `meter`.
    pub(crate) fn writable(images: &Images, has_cuts: bool, meter: &Arc<Meter>) -> Self {
        Self::with_top(images, |built| built, has_cuts, meter)
    }

    /// Creates the same chain with an empty image at the top.
    pub(crate) fn empty(images: &Images, has_cuts: bool, meter: &Arc<Meter>) -> Self {
        Self::with_top(images, |_| TopFiles::default(), has_cuts, meter)
    }

    /// Creates the chain of all layers of `images`. At the top are the files that `top` makes of the built ones.
    fn with_top(
        images: &Images,
        top: impl FnOnce(TopFiles) -> TopFiles,
        has_cuts: bool,
        meter: &Arc<Meter>,
    ) -> Self {
        let mut chain = Self::metered(images, meter);
        let ChainLayer { image, data_file, .. } = &mut chain.layers[0];
        // The layer keeps its own bytes no longer: those that can be written are the only copy.
        let files = Arc::make_mut(&mut image.files);
        let built = TopFiles {
            image: std::mem::take(&mut files.image),
            data_file: std::mem::take(&mut files.data_file),
        };
        let written = Arc::new(WrittenFiles::new(top(built), has_cuts));
        if let Some(data_file) = data_file {
            data_file.files = Arc::clone(&image.files);
            let written = WrittenFile::new(Arc::clone(&written), TopFile::DataFile);
            data_file.bytes = ByteSource::Written(written);
        }
        image.bytes = ByteSource::Written(WrittenFile::new(written, TopFile::Image));
        chain
    }

    /// Returns the files as they are now, for reading.
    pub(crate) fn as_written(&self) -> Self {
        self.clone().with_written(WrittenFiles::files)
    }

    /// Returns the files as they are now, for reading. Files that an engine has kept are empty then.
    pub(crate) fn into_written(self) -> Self {
        self.with_written(WrittenFiles::take_files)
    }

    /// Returns the files as a cut could have left them, for reading. `choice` selects the moment, since the last flush
    /// that the guest knows of, and the writes that it loses.
    pub(crate) fn after_cut(&self, kind: CutKind, choice: u16) -> Self {
        self.clone().with_written(|files| files.cut(kind, choice))
    }

    /// Returns the version of the files at the top. It grows with each write and each new length, so that files of the
    /// same version have the same bytes.
    pub(crate) fn written_version(&self) -> u64 {
        self.written().map_or(0, WrittenFiles::version)
    }

    /// Returns the number of changes of the files at the top so far, for [`Chain::after_cut_since`].
    pub(crate) fn written_changes(&self) -> usize {
        self.written().map_or(0, WrittenFiles::changes)
    }

    /// Returns the files as a cut could have left them while the engine made the changes behind the first `changes`.
    /// Returns `None` if it has made none.
    pub(crate) fn after_cut_since(
        &self,
        changes: usize,
        kind: CutKind,
        choice: u16,
    ) -> Option<Self> {
        let left = self.written()?.cut_since(changes, kind, choice)?;
        Some(self.clone().with_written(|_| left))
    }

    /// Notes that the guest relies on all that was written so far.
    pub(crate) fn settle(&self) {
        if let Some(files) = self.written() {
            files.settle();
        }
    }

    /// Notes that the image is closed: all that was written is on the disk.
    pub(crate) fn note_closed(&self) {
        if let Some(files) = self.written() {
            files.closed();
        }
    }

    /// Returns the files that can be written, if there are any.
    fn written(&self) -> Option<&WrittenFiles> {
        self.image().written().map(|file| &*file.files)
    }

    /// Gives the files at the top the bytes that `files_of` returns, if they can be written.
    fn with_written(mut self, files_of: impl FnOnce(&WrittenFiles) -> TopFiles) -> Self {
        let ChainLayer { image, data_file, .. } = &mut self.layers[0];
        let Some(written) = image.written() else { return self };
        let left = files_of(&written.files);
        let files = Arc::make_mut(&mut image.files);
        (files.image, files.data_file) = (left.image, left.data_file);
        image.bytes = ByteSource::Built;
        if let Some(data_file) = data_file {
            data_file.files = Arc::clone(&image.files);
            data_file.bytes = ByteSource::Built;
        }
        self
    }
}
