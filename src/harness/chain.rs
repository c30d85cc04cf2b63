//! The files that an engine opens: an image, the images below it, and their data files. An engine may keep its files as
//! long as it likes, and may read them from other threads.

use std::path::PathBuf;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_LAYERS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Layer, Storage, Stored};
use crate::images::damage::{Damage, ReadFaults};
pub use crate::images::export::folder::{ChainFolder, ChainFolderError};
use crate::images::files::{FileNames, Images, LayerFiles};
use crate::images::image::Image;

use super::meter::Meter;

/// A chain of images. The first layer holds the files of the image to open; each next layer is the backing file of the
/// layer before it.
#[derive(Clone, Debug)]
pub struct Chain {
    layers: SmallVec<[ChainLayer; MAX_LAYERS]>,
}

/// The files of one layer of a chain.
#[derive(Clone, Debug)]
pub struct ChainLayer {
    /// The image. For a raw layer: the guest data themselves.
    pub image: ChainFile,
    /// The external data file, if the image has one.
    pub data_file: Option<ChainFile>,
    /// The files of the extents that a VMDK image names, in its order. An image in one file has none.
    pub extents: Vec<Arc<ChainFile>>,
    /// The format of the image.
    pub format: ImageFormat,
    /// The image declares its data file a raw image of the disk.
    pub data_file_is_raw: bool,
}

/// A file of a chain, open for reading. A copy of it is the same file.
#[derive(Clone, Debug)]
pub struct ChainFile {
    files: Arc<LayerFiles>,
    part: LayerFile,
    meter: Arc<Meter>,
    faults: Option<Arc<ReadFaults>>,
}

/// The file of a layer.
#[derive(Clone, Copy, Debug)]
enum LayerFile {
    Image,
    DataFile,
    /// The file of the extent with this index.
    Extent(usize),
}

impl Chain {
    /// Creates the chain of all layers of `images`.
    pub fn new(images: &Images) -> Self {
        Self::metered(images, &Arc::default())
    }

    /// Creates the chain of all layers of `images`. Counts reads on `meter`.
    pub(crate) fn metered(images: &Images, meter: &Arc<Meter>) -> Self {
        let layers = images.layers().map(|files| ChainLayer::new(files, meter, None));
        Self { layers: layers.collect() }
    }

    /// Creates the chain of `images`, whose reads `damage` changes.
    pub(crate) fn damaged(images: &Images, damage: &Damage, meter: &Arc<Meter>) -> Self {
        let layers = images.layers().enumerate().map(|(depth, files)| {
            ChainLayer::new(files, meter, damage.read_faults(depth).map(Arc::new))
        });
        Self { layers: layers.collect() }
    }

    /// Creates a chain of one image, which needs no other files.
    pub fn alone(image: Image) -> Self {
        let mut images = Images::default();
        images.resize(1);
        images.layer_mut(0).image = image;
        images.layer_mut(0).set_names(&FileNames::default(), 0, ImageFormat::Qcow2);
        Self::new(&images)
    }

    /// Returns the same files without the meter, and with the same faults.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn unmetered(&self) -> Self {
        let (mut chain, meter) = (self.clone(), Arc::default());
        for layer in &mut chain.layers {
            let extents = layer.extents.iter_mut().map(Arc::make_mut);
            let files = [Some(&mut layer.image), layer.data_file.as_mut()];
            let files = files.into_iter().flatten().chain(extents);
            files.for_each(|file| file.meter = Arc::clone(&meter));
        }
        chain
    }

    /// Writes all files to `folder`, with their holes and with the names that the images have for each other. Returns
    /// the path of the image to open. The folder keeps the files of the chain that was written last: only files that
    /// differ are written.
    ///
    /// # Errors
    /// A read of the chain fails, the files have more stored bytes than the folder takes, or the system refuses a file.
    pub fn write_to(&self, folder: &mut ChainFolder) -> Result<PathBuf, ChainFolderError> {
        let layers = self.layers.iter().rev();
        let files = layers.flat_map(|layer| {
            let extents = layer.extents.iter().map(AsRef::as_ref);
            let files = layer.data_file.iter().chain(extents).chain([&layer.image]);
            files.map(|file| (file.name(), file))
        });
        folder.hold(files)?;
        Ok(folder.path_of(self.layers[0].name()))
    }

    /// Returns the layers, the image to open first. There is at least one.
    pub fn layers(&self) -> &[ChainLayer] {
        &self.layers
    }

    /// Returns the format of the image to open.
    pub fn format(&self) -> ImageFormat {
        self.layers[0].format
    }

    /// Returns the image to open.
    pub fn image(&self) -> &ChainFile {
        &self.layers[0].image
    }

    /// Reports whether the image to open has layers below it, or a layer has a data file.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn has_other_files(&self) -> bool {
        self.layers.len() > 1 || self.layers.iter().any(|layer| layer.data_file.is_some())
    }

    /// Begins an opening: faults that wait for a number of reads count from here.
    pub(crate) fn rearm(&self) {
        let faults = self.layers.iter().filter_map(|layer| layer.image.faults.as_ref());
        faults.for_each(|faults| faults.rearm());
    }
}

impl ChainLayer {
    fn new(files: &Arc<LayerFiles>, meter: &Arc<Meter>, faults: Option<Arc<ReadFaults>>) -> Self {
        let file = |part, faults| {
            let (files, meter) = (Arc::clone(files), Arc::clone(meter));
            ChainFile { files, part, meter, faults }
        };
        Self {
            image: file(LayerFile::Image, faults),
            data_file: files.has_data_file.then(|| file(LayerFile::DataFile, None)),
            extents: (0..files.extents.all().len())
                .map(|index| Arc::new(file(LayerFile::Extent(index), None)))
                .collect(),
            format: files.format,
            data_file_is_raw: files.data_file_is_raw,
        }
    }

    /// Returns the name of the image's file, relative to the folder of the image that names it.
    pub fn name(&self) -> &str {
        self.image.name()
    }

    /// Returns the files as a layer that our walker opens.
    pub(crate) fn borrowed(&self) -> Layer<'_, ChainFile> {
        let data_file = self.data_file.as_ref();
        Layer { image: &self.image, data_file, extents: &self.extents }
    }
}

impl ChainFile {
    /// Returns the name by which another file of the chain names this one.
    pub fn name(&self) -> &str {
        match self.part {
            LayerFile::Image => &self.files.name,
            LayerFile::DataFile => &self.files.data_file_name,
            LayerFile::Extent(index) => &self.files.extent_names[index],
        }
    }

    #[inline]
    fn content(&self) -> &Image {
        match self.part {
            LayerFile::Image => &self.files.image,
            LayerFile::DataFile => &self.files.data_file,
            LayerFile::Extent(index) => &self.files.extents.all()[index],
        }
    }
}

impl Storage for ChainFile {
    fn length_bytes(&self) -> u64 {
        self.content().length_bytes()
    }

    #[inline]
    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.meter.count_read(offset)?;
        self.meter.count_bytes(into.len());
        match &self.faults {
            None => self.content().read_at(offset, into),
            Some(faults) => faults.read_at(self.content(), offset, into),
        }
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        self.meter.count_read(from)?;
        self.content().stored(from, until)
    }

    #[inline]
    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        self.meter.count_read(from)?;
        let data = match &self.faults {
            None => self.content().next_data(from, until, scratch)?,
            Some(faults) => faults.next_data(self.content(), from, until, scratch)?,
        };
        self.meter.count_bytes(data.map_or(0, |data| data.bytes.len()));
        Ok(data)
    }
}
