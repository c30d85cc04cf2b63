//! The files that a program builds: for each layer of its chain an image, and an external data file
//! where it has one; and what they are called. All buffers are reused from program to program.

use crate::disk::limits::MAX_LAYERS;
use crate::disk::storage::Layer;
use crate::formats::qcow2::units::HostCluster;
use crate::images::image::Image;

/// What the files of a chain are called. Images say the names of what lies below them, so that they must
/// be known when the images are built. Heights are counted from the lowest layer, from 0.
#[derive(Clone, Debug)]
pub struct FileNames {
    heights: [HeightNames; MAX_LAYERS],
}

#[derive(Clone, Debug)]
struct HeightNames {
    qcow2: String,
    raw: String,
    data_file: String,
}

impl FileNames {
    /// Names that begin with `stem`.
    pub fn new(stem: &str) -> Self {
        let heights = std::array::from_fn(|height| HeightNames {
            qcow2: format!("{stem}.{height}.qcow2"),
            raw: format!("{stem}.{height}.raw"),
            data_file: format!("{stem}.{height}.data"),
        });
        Self { heights }
    }

    /// The image of a layer on which another one lies; a raw file or not.
    pub fn image(&self, height: usize, raw: bool) -> &str {
        let names = &self.heights[height];
        if raw { &names.raw } else { &names.qcow2 }
    }

    /// The external data file of a layer.
    pub fn data_file(&self, height: usize) -> &str {
        &self.heights[height].data_file
    }
}

impl Default for FileNames {
    fn default() -> Self {
        Self::new("layer")
    }
}

/// A cluster whose count on disk is not the number of its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The cluster.
    pub cluster: HostCluster,
    /// How many references there are.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
    /// In how many entries of the active disk's tables COPIED does not agree with the count on disk.
    pub flags: u64,
}

/// The files of one layer.
#[derive(Debug, Default)]
pub struct LayerFiles {
    /// The image; of a raw layer, the guest data themselves.
    pub image: Image,
    /// The external data file; empty where the layer has none.
    pub data_file: Image,
    /// Whether the layer has an external data file.
    pub has_data_file: bool,
    /// Whether the layer is raw.
    pub raw: bool,
    /// The image's counts that are out of date, as the program wanted it; sorted by cluster.
    pub out_of_date: Vec<Deviation>,
}

impl LayerFiles {
    /// As a disk is opened with them.
    pub fn layer(&self) -> Layer<'_, Image> {
        Layer { image: &self.image, data_file: self.has_data_file.then_some(&self.data_file) }
    }
}

/// The files of all layers.
#[derive(Debug, Default)]
pub struct Images {
    /// From the bottom up, and behind them spare ones whose buffers are reused.
    layers: Vec<LayerFiles>,
    live: usize,
    unchanged: usize,
}

impl Images {
    /// Keeps the `count` lowest layers, or makes room for so many.
    pub fn resize(&mut self, count: usize) {
        if self.layers.len() < count {
            self.layers.resize_with(count, LayerFiles::default);
        }
        self.unchanged = self.unchanged.min(count);
        self.live = count;
    }

    /// Records that the last build left the `count` lowest layers as they were.
    pub fn set_unchanged(&mut self, count: usize) {
        self.unchanged = count;
    }

    /// How many of the lowest layers the last build left as they were.
    pub fn unchanged(&self) -> usize {
        self.unchanged
    }

    /// The layer `height` layers above the lowest one, to be built.
    pub fn layer_mut(&mut self, height: usize) -> &mut LayerFiles {
        &mut self.layers[height]
    }

    /// The layer `depth` layers below the one at the top, which there is.
    pub fn at_depth_mut(&mut self, depth: usize) -> &mut LayerFiles {
        let height = self.live - 1 - depth;
        &mut self.layers[height]
    }

    /// How many bytes of all files are written.
    pub fn written_bytes(&self) -> u64 {
        let written = |image: &Image| image.written().map(|it| it.bytes.len() as u64).sum::<u64>();
        let all = self.layers().flat_map(|files| [&files.image, &files.data_file]);
        all.map(written).sum()
    }

    /// The layers from the top down.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = &LayerFiles> + ExactSizeIterator {
        self.layers[..self.live].iter().rev()
    }

    /// All files with their names, each after those that it names; the last is the image at the top, which
    /// nobody names.
    pub fn files<'i>(
        &'i self,
        names: &'i FileNames,
    ) -> impl Iterator<Item = (Option<&'i str>, &'i Image)> {
        self.layers[..self.live].iter().enumerate().flat_map(move |(height, files)| {
            let lower = height + 1 < self.live;
            let name = lower.then(|| names.image(height, files.raw));
            let data_file =
                files.has_data_file.then(|| (names.data_file(height), &files.data_file));
            data_file
                .map(|(name, file)| (Some(name), file))
                .into_iter()
                .chain([(name, &files.image)])
        })
    }

    /// The layer at the top. There is always one.
    pub fn top(&self) -> &LayerFiles {
        &self.layers[self.live - 1]
    }
}
