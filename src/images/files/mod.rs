//! The files that a program builds, their names and their declarations: for each layer of its chain an image and, if it
//! has one, an external data file. All buffers are reused from program to program.
//!
//! The build records the declarations that the program meant, and an oracle compares the image with them.

pub mod export;
pub mod image;

use std::ops::Range;
use std::sync::Arc;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::MAX_LAYERS;
use crate::disk::clusters::HostCluster;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Layer;

use image::Image;

/// The names of the files of a chain. Images contain the names of the files below them, so the caller must choose the
/// names before the build. Heights are counted from 0 at the lowest layer.
#[derive(Clone, Debug)]
pub struct FileNames {
    heights: [HeightNames; MAX_LAYERS],
    /// The image at the top, if its name differs from that of its height.
    top: Option<String>,
}

#[derive(Clone, Debug)]
struct HeightNames {
    /// The name of an image of each format.
    images: [String; ImageFormat::ALL.len()],
    data_file: String,
    extents: [String; MAX_EXTENT_FILES],
}

impl FileNames {
    /// Creates names that begin with `stem`.
    pub fn new(stem: &str) -> Self {
        let of_extents = ImageFormat::with_extents().next().map_or("", ImageFormat::name);
        let heights = std::array::from_fn(|height| HeightNames {
            images: ImageFormat::ALL.map(|format| format!("{stem}.{height}.{}", format.name())),
            data_file: format!("{stem}.{height}.data"),
            extents: std::array::from_fn(|index| format!("{stem}.{height}-s{index}.{of_extents}")),
        });
        Self { heights, top: None }
    }

    /// Returns the same names, except for the image at the top. Only an image whose descriptor names itself contains
    /// that name.
    pub fn with_top(self, name: &str) -> Self {
        Self { top: Some(name.to_string()), ..self }
    }

    /// Returns the name of the image of a layer that has another layer above it.
    pub fn image(&self, height: usize, format: ImageFormat) -> &str {
        &self.heights[height].images[format as usize]
    }

    /// Returns the name of a layer's external data file.
    pub fn data_file(&self, height: usize) -> &str {
        &self.heights[height].data_file
    }

    /// Returns the names of the files beside a layer's image.
    pub fn extents(&self, height: usize) -> &[String; MAX_EXTENT_FILES] {
        &self.heights[height].extents
    }
}

impl Default for FileNames {
    fn default() -> Self {
        Self::new("layer")
    }
}

/// A cluster whose count on disk differs from the number of its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The cluster.
    pub cluster: HostCluster,
    /// The number of references.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
    /// The number of entries in the active disk's tables whose COPIED flag disagrees with the count on disk.
    pub flags: u64,
}

/// A file of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerFile {
    /// The image.
    #[default]
    Image,
    /// The external data file.
    DataFile,
    /// The file of the extent with this index.
    Extent(usize),
}

/// The files beside an image.
#[derive(Clone, Debug, Default)]
pub struct ExtentImages {
    /// The files, followed by spare ones whose buffers are reused.
    images: Vec<Arc<Image>>,
    live: usize,
}

impl ExtentImages {
    /// Adds an empty file.
    pub fn add(&mut self) -> &mut Image {
        if self.images.len() == self.live {
            self.images.push(Arc::default());
        }
        let image = &mut self.images[self.live];
        self.live += 1;
        if Arc::strong_count(image) > 1 {
            *image = Arc::default();
        }
        // There is no other reference, so that this copies nothing.
        let image = Arc::make_mut(image);
        image.clear();
        image
    }

    /// Returns the files, in the order of the disk.
    pub fn all(&self) -> &[Arc<Image>] {
        &self.images[..self.live]
    }
}

/// The files of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerFiles {
    /// The name by which other images name the image.
    pub name: String,
    /// The name by which the image names its external data file.
    pub data_file_name: String,
    /// The image. For a raw layer: the guest data themselves.
    pub image: Image,
    /// The external data file; empty if the layer has none.
    pub data_file: Image,
    /// The names by which an image names the files beside it.
    pub extent_names: [String; MAX_EXTENT_FILES],
    /// The files beside an image, in its order.
    pub extents: ExtentImages,
    /// The layer has an external data file.
    pub has_data_file: bool,
    /// The data file is a raw image of the disk.
    pub data_file_is_raw: bool,
    /// The format of the image.
    pub format: ImageFormat,
    /// The counts that the program left out of date, sorted by cluster.
    pub out_of_date: Vec<Deviation>,
    /// The declarations that the image was meant to have.
    pub declarations: Declarations,
}

impl LayerFiles {
    /// Records the names of the files of a layer `height` layers above the lowest one.
    pub fn set_names(&mut self, names: &FileNames, height: usize, format: ImageFormat) {
        let extents = names.extents(height).iter().map(String::as_str);
        let new = [names.image(height, format), names.data_file(height)].into_iter().chain(extents);
        let old = [&mut self.name, &mut self.data_file_name].into_iter();
        for (name, new) in old.chain(&mut self.extent_names).zip(new) {
            name.clear();
            name.push_str(new);
        }
    }

    /// Gives the image the name of the image at the top, if that has one of its own.
    pub fn set_name_of_top(&mut self, names: &FileNames) {
        if let Some(top) = &names.top {
            self.name.clone_from(top);
        }
    }

    /// Begins an image of `format` in one file, without any content.
    pub fn begin(&mut self, format: ImageFormat) {
        (self.format, self.has_data_file, self.data_file_is_raw) = (format, false, false);
        self.image.clear();
        self.data_file.clear();
        self.extents.live = 0;
        self.out_of_date.clear();
        self.declarations.clear();
    }

    /// Returns the files beside the image, with the names by which it names them.
    pub fn named_extents(&self) -> impl Iterator<Item = (&str, &Image)> {
        let images = self.extents.all().iter().map(AsRef::as_ref);
        self.extent_names.iter().map(String::as_str).zip(images)
    }

    /// Returns a file that the layer has.
    #[inline]
    pub fn file(&self, file: LayerFile) -> &Image {
        match file {
            LayerFile::Image => &self.image,
            LayerFile::DataFile => &self.data_file,
            LayerFile::Extent(index) => &self.extents.all()[index],
        }
    }

    /// Returns a file that the layer has, to change it after the build.
    pub fn file_mut(&mut self, file: LayerFile) -> &mut Image {
        match file {
            LayerFile::Image => &mut self.image,
            LayerFile::DataFile => &mut self.data_file,
            LayerFile::Extent(index) => Arc::make_mut(&mut self.extents.images[index]),
        }
    }

    /// Returns the files as a layer that our walker opens.
    pub fn layer(&self) -> Layer<'_, Image> {
        let data_file = self.has_data_file.then_some(&self.data_file);
        Layer { image: &self.image, data_file, extents: self.extents.all() }
    }
}

/// The files of all layers. An engine may keep files of earlier images: the build then writes to new ones.
#[derive(Debug, Default)]
pub struct Images {
    /// The layers from the bottom up, followed by spare ones whose buffers are reused.
    layers: Vec<Arc<LayerFiles>>,
    live: usize,
    unchanged: usize,
}

impl Images {
    /// Replaces all layers by one image of `format` with the bytes of `file`. The first `extents` files beside it, at
    /// most [`MAX_EXTENT_FILES`], are copies of it.
    pub fn become_file(&mut self, format: ImageFormat, file: &[u8], extents: usize) {
        self.resize(1);
        self.set_unchanged(0);
        let layer = self.layer_mut(0);
        layer.set_names(&FileNames::default(), 0, format);
        layer.begin(format);
        layer.image.write(HostOffset::ZERO, file);
        layer.image.seal(file.len() as u64);
        for _ in 0..extents.min(MAX_EXTENT_FILES) {
            let extent = layer.extents.add();
            extent.write(HostOffset::ZERO, file);
            extent.seal(file.len() as u64);
        }
    }

    /// Keeps the `count` lowest layers, or makes room for `count` layers.
    pub fn resize(&mut self, count: usize) {
        if self.layers.len() < count {
            self.layers.resize_with(count, Arc::default);
        }
        self.unchanged = self.unchanged.min(count);
        self.live = count;
    }

    /// Records that the last build did not change the `count` lowest layers.
    pub fn set_unchanged(&mut self, count: usize) {
        self.unchanged = count;
    }

    /// Returns the number of lowest layers that the last build did not change.
    pub fn unchanged(&self) -> usize {
        self.unchanged
    }

    /// Returns the layer `height` layers above the lowest one, for the build.
    pub fn layer_mut(&mut self, height: usize) -> &mut LayerFiles {
        let layer = &mut self.layers[height];
        if Arc::strong_count(layer) > 1 {
            *layer = Arc::default();
        }
        // There is no other reference, so that this copies nothing.
        Arc::make_mut(layer)
    }

    /// Returns the layer `depth` layers below the top, to change the built files. It must exist.
    pub fn at_depth_mut(&mut self, depth: usize) -> &mut LayerFiles {
        let height = self.live - 1 - depth;
        Arc::make_mut(&mut self.layers[height])
    }

    /// Returns the number of written bytes in all files.
    pub fn written_bytes(&self) -> u64 {
        let written = |image: &Image| image.written().map(|it| it.bytes.len() as u64).sum::<u64>();
        let own = self.layers().flat_map(|files| [&files.image, &files.data_file]);
        let beside = self.layers().flat_map(|files| files.extents.all()).map(AsRef::as_ref);
        own.chain(beside).map(written).sum()
    }

    /// Returns the layers from the top down.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = &Arc<LayerFiles>> + ExactSizeIterator {
        self.layers[..self.live].iter().rev()
    }

    /// Returns all files with their names, each after the files that it names. The last one is the image at the top,
    /// which no file names.
    pub fn files<'i>(
        &'i self,
        names: &'i FileNames,
    ) -> impl Iterator<Item = (Option<&'i str>, &'i Image)> {
        self.layers[..self.live].iter().enumerate().flat_map(move |(height, files)| {
            let lower = height + 1 < self.live;
            let name = lower.then(|| names.image(height, files.format));
            let data_file =
                files.has_data_file.then(|| (names.data_file(height), &files.data_file));
            let extents = names.extents(height).iter().map(String::as_str);
            let extents = extents.zip(files.extents.all().iter().map(AsRef::as_ref));
            let named = data_file.into_iter().chain(extents);
            named.map(|(name, file)| (Some(name), file)).chain([(name, &files.image)])
        })
    }

    /// Returns the raw data file of a single image. An image that has one has no backing file.
    pub fn raw_data_file(&self) -> Option<&Image> {
        let [files] = &self.layers[..self.live] else { return None };
        files.data_file_is_raw.then_some(&files.data_file)
    }

    /// Returns the same files, with the image and the data file of `files` at the top.
    pub fn with_top(&self, files: &LayerFiles) -> Self {
        let mut layers = self.layers[..self.live].to_vec();
        if let Some(top) = layers.last_mut() {
            let top = Arc::make_mut(top);
            top.image.clone_from(&files.image);
            top.data_file.clone_from(&files.data_file);
        }
        Self { layers, live: self.live, unchanged: 0 }
    }

    /// Returns the layer at the top. A chain always has one.
    pub fn top(&self) -> &LayerFiles {
        &self.layers[self.live - 1]
    }
}

/// The declarations that an image was meant to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declarations {
    /// The name of the backing file; empty for none.
    pub backing_name: Vec<u8>,
    /// The format of the backing file; `None` if the image does not name it.
    pub backing_format: Option<ImageFormat>,
    /// The name of the external data file; empty for none.
    pub data_file_name: Vec<u8>,
    /// The known incompatible, compatible and autoclear feature bits.
    pub features: [u64; 3],
    /// The length of each snapshot's VM state, in the order of the table.
    pub vm_state_bytes: Vec<u64>,
    /// Each bitmap, in the order of the directory.
    pub bitmaps: Vec<BitmapDeclaration>,
    /// The strings that the program gives.
    pub strings: DeclaredStrings,
}

/// A string of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringOwner {
    /// The name of the bitmap with this index.
    BitmapName(usize),
    /// The id of the snapshot with this index.
    SnapshotId(usize),
    /// The name of the snapshot with this index.
    SnapshotName(usize),
    /// The body of the first header extension of this type.
    Extension(u32),
}

/// The strings that a program gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredStrings {
    bytes: Vec<u8>,
    all: Vec<(StringOwner, Range<usize>)>,
}

impl DeclaredStrings {
    /// Adds a string.
    pub fn add(&mut self, owner: StringOwner, string: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(string);
        self.all.push((owner, start..self.bytes.len()));
    }

    /// Returns each string with its owner.
    pub fn iter(&self) -> impl Iterator<Item = (StringOwner, &[u8])> {
        let string = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        self.all.iter().map(move |(owner, range)| (*owner, string(range)))
    }

    /// Removes all strings, and keeps the buffers.
    fn clear(&mut self) {
        self.bytes.clear();
        self.all.clear();
    }
}

/// The directory entry that a bitmap was meant to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapDeclaration {
    /// The bits are not valid.
    pub in_use: bool,
    /// Writers must keep the bitmap up to date.
    pub auto: bool,
    /// The binary logarithm of the number of guest bytes for one bit.
    pub granularity_bits: u8,
}

impl Declarations {
    /// Removes all declarations, and keeps the buffers.
    pub fn clear(&mut self) {
        self.backing_name.clear();
        self.data_file_name.clear();
        self.vm_state_bytes.clear();
        self.bitmaps.clear();
        self.strings.clear();
        (self.backing_format, self.features) = (None, [0; 3]);
    }
}
