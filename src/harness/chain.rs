//! The files that an engine opens: an image, the images below it, and their data files. An engine may keep its files as
//! long as it likes, and may read them from other threads.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::disk::error::StorageError;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_LAYERS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Data, Layer, Storage, Stored};
use crate::images::damage::{Damage, ReadFaults};
use crate::images::files::{Images, LayerFiles};
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
    /// The format of the image.
    pub format: ImageFormat,
}

/// A file of a chain, open for reading. A copy of it is the same file.
#[derive(Clone, Debug)]
pub struct ChainFile {
    files: Arc<LayerFiles>,
    part: FilePart,
    meter: Arc<Meter>,
    faults: Option<Arc<ReadFaults>>,
}

/// The file of a layer.
#[derive(Clone, Copy, Debug)]
enum FilePart {
    Image,
    DataFile,
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
        Self::new(&images)
    }

    /// Returns the layers, the image to open first. There is at least one.
    pub fn layers(&self) -> &[ChainLayer] {
        &self.layers
    }

    /// Returns the image to open.
    pub fn image(&self) -> &ChainFile {
        &self.layers[0].image
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
            image: file(FilePart::Image, faults),
            data_file: files.has_data_file.then(|| file(FilePart::DataFile, None)),
            format: if files.raw { ImageFormat::Raw } else { ImageFormat::Qcow2 },
        }
    }

    /// Returns the files as a layer that our walker opens.
    pub(crate) fn borrowed(&self) -> Layer<'_, ChainFile> {
        Layer { image: &self.image, data_file: self.data_file.as_ref() }
    }
}

impl ChainFile {
    #[inline]
    fn content(&self) -> &Image {
        match self.part {
            FilePart::Image => &self.files.image,
            FilePart::DataFile => &self.files.data_file,
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
