//! The files that an engine opens: an image, the images below it, and their data files. An engine may keep its files as
//! long as it likes, and may read them from other threads.

use std::path::PathBuf;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Layer;
use crate::images::damage::{Damage, ReadFaults};
pub use crate::images::files::export::{ChainFolder, ChainFolderError};
use crate::images::files::image::Image;
use crate::images::files::{FileNames, Images, LayerFile, LayerFiles};
use crate::programs::CutKind;

use super::chain_file::ByteSource;
pub use super::chain_file::ChainFile;
use super::device::Device;
use super::file_faults::FileFaults;
use super::meter::Meter;
use super::turns::Turns;
use super::write_log::{CutChoices, WriteLog};
use super::written_file::{WrittenFile, WrittenFiles};

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
    /// The files of the extents that an image names, in its order. An image in one file has none.
    pub extents: Vec<Arc<ChainFile>>,
    /// The format of the image.
    pub format: ImageFormat,
    /// The image declares its data file a raw image of the disk.
    pub data_file_is_raw: bool,
}

impl Chain {
    /// Creates the chain of all layers of `images`.
    pub fn new(images: &Images) -> Self {
        Self::metered(images, &Arc::default())
    }

    /// Creates the chain of all layers of `images`. Counts reads on `meter`.
    pub(crate) fn metered(images: &Images, meter: &Arc<Meter>) -> Self {
        let layers = images.layers().enumerate();
        let layers = layers.map(|(depth, files)| ChainLayer::new(depth, files, meter, |_| None));
        Self { layers: layers.collect() }
    }

    /// Creates the chain of `images`, whose reads `damage` changes.
    pub(crate) fn damaged(images: &Images, damage: &Damage, meter: &Arc<Meter>) -> Self {
        let layers = images.layers().enumerate().map(|(depth, files)| {
            let faults = |file| damage.read_faults(depth, file).map(Arc::new);
            ChainLayer::new(depth, files, meter, faults)
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

    /// Returns the turns of the operations on the files.
    pub(crate) fn turns(&self) -> &Turns {
        &self.layers[0].image.meter.turns
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
        self.image().untraced(|_| folder.hold(files))?;
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

    /// Returns the files of the image to open. They are those that an engine has written only if the chain is for
    /// reading, as [`Chain::as_written`] returns it.
    pub(crate) fn top_files(&self) -> &LayerFiles {
        &self.layers[0].image.files
    }

    /// Returns the external data file of the image to open, if it has one.
    pub fn data_file(&self) -> Option<&ChainFile> {
        self.layers[0].data_file.as_ref()
    }

    /// Reports whether the image to open has layers below it, or a layer has a data file.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn has_other_files(&self) -> bool {
        self.layers.len() > 1 || self.layers.iter().any(|layer| layer.data_file.is_some())
    }

    /// Begins an opening: faults that wait for a number of reads count from here.
    pub(crate) fn rearm(&self) {
        for layer in &self.layers {
            let files = layer.extents.iter().map(AsRef::as_ref).chain([&layer.image]);
            for file in files {
                if let ByteSource::Faulty(faults) = &file.bytes {
                    faults.rearm();
                }
            }
        }
    }

    /// Returns the chain for an engine that writes: the image at the top and its data file are copies that can be
    /// written, without the faults of their reads. The image may lie on a device. Their writes are kept if there are
    /// cuts.
    pub(crate) fn writable(self, device: Option<Device>, has_cuts: bool) -> Self {
        let lay = |files: &mut LayerFiles| {
            device.into_iter().for_each(|device| device.lay(files.file_mut(LayerFile::Image)));
        };
        self.copied_at_top(lay, has_cuts, device.is_some())
    }

    /// Creates the same chain with an empty image at the top.
    pub(crate) fn empty(images: &Images, has_cuts: bool, meter: &Arc<Meter>) -> Self {
        let remove = |files: &mut LayerFiles| {
            (files.image, files.data_file) = Default::default();
        };
        Self::metered(images, meter).copied_at_top(remove, has_cuts, false)
    }

    /// Returns the files `left`, which a cut has left of these, for an engine that goes on to write to them. Their
    /// writes are kept.
    pub(crate) fn go_on(&self, left: Self) -> Self {
        let on_device = self.written().is_some_and(WrittenFiles::on_device);
        left.copied_at_top(|_| {}, true, on_device)
    }

    /// Returns a chain whose files at the top are copies that can be written, as `change` changes them.
    fn copied_at_top(
        mut self,
        change: impl FnOnce(&mut LayerFiles),
        has_cuts: bool,
        on_device: bool,
    ) -> Self {
        let ChainLayer { image, data_file, .. } = &mut self.layers[0];
        let mut files = LayerFiles::clone(&image.files);
        change(&mut files);
        let written = Arc::new(WrittenFiles::new(files, has_cuts, on_device));
        for file in [Some(image), data_file.as_mut()].into_iter().flatten() {
            file.bytes = ByteSource::Written(WrittenFile::new(Arc::clone(&written), file.part));
        }
        self
    }

    /// Returns the files as they are now, for reading.
    pub(crate) fn as_written(&self) -> Self {
        self.clone().with_written(WrittenFiles::files)
    }

    /// Returns the files as they are now, for reading. Files that an engine has kept are empty then.
    pub(crate) fn into_written(self) -> Self {
        self.with_written(WrittenFiles::take_files)
    }

    /// Returns the files as a cut could have left them. `choice` selects the moment and the lost writes.
    pub(crate) fn after_cut(&self, kind: CutKind, choice: u16) -> Self {
        self.clone().with_written(|files| files.cut(kind, choice))
    }

    /// Returns the version of the files at the top, which grows with each write and each new length.
    pub(crate) fn written_version(&self) -> u64 {
        self.written().map_or(0, WrittenFiles::version)
    }

    /// Returns the number of bytes that were written to the files at the top, and written again.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written().map_or(0, WrittenFiles::written_bytes)
    }

    /// Returns the number of changes of the files at the top so far, for [`Chain::after_cut_since`].
    pub(crate) fn written_changes(&self) -> usize {
        self.written().map_or(0, WrittenFiles::changes)
    }

    /// Returns the files as a cut could leave them. The cut comes after the first `changes` changes and at least one
    /// more; `None` if there is no later change.
    pub(crate) fn after_cut_since(
        &self,
        changes: usize,
        kind: CutKind,
        choice: u16,
    ) -> Option<Self> {
        let left = self.written()?.cut_since(changes, kind, choice)?;
        Some(self.clone().with_written(|_| left))
    }

    /// Returns the power cuts that leave different files, as [`Chain::after_cut`] does; with `since`, as
    /// [`Chain::after_cut_since`] does.
    pub(crate) fn cut_choices(&self, since: Option<usize>) -> CutChoices {
        self.written().map_or_else(CutChoices::default, |files| files.cut_choices(since))
    }

    /// Calls `change` with the faults of the files that can be written, if there are any.
    pub(crate) fn faults<T>(&self, change: impl FnOnce(&mut FileFaults) -> T) -> Option<T> {
        self.written().map(|files| files.faults(change))
    }

    /// Returns the length of the block device on which the image at the top lies, if it does.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn device_bytes(&self) -> Option<u64> {
        self.written().and_then(WrittenFiles::device_bytes)
    }

    /// Notes that the guest relies on all that was written so far.
    pub(crate) fn settle(&self) {
        self.written().into_iter().for_each(|files| files.note(WriteLog::settle));
    }

    /// Notes that the image is closed: all that was written is on the disk.
    pub(crate) fn note_closed(&self) {
        self.written().into_iter().for_each(|files| files.note(WriteLog::clear));
    }

    /// Returns the files that can be written, if there are any.
    fn written(&self) -> Option<&WrittenFiles> {
        self.image().written().map(|file| &*file.files)
    }

    /// Gives the chain the files at the top that `files_of` returns, if they can be written.
    fn with_written(mut self, files_of: impl FnOnce(&WrittenFiles) -> LayerFiles) -> Self {
        let ChainLayer { image, data_file, .. } = &mut self.layers[0];
        let Some(written) = image.written() else { return self };
        let left = Arc::new(files_of(&written.files));
        for file in [Some(image), data_file.as_mut()].into_iter().flatten() {
            (file.files, file.bytes) = (Arc::clone(&left), ByteSource::Built);
        }
        self
    }
}

impl ChainLayer {
    /// Creates the layer of `files` at `depth`. `faults` returns the faults that reads of a file meet.
    fn new(
        depth: usize,
        files: &Arc<LayerFiles>,
        meter: &Arc<Meter>,
        faults: impl Fn(LayerFile) -> Option<Arc<ReadFaults>>,
    ) -> Self {
        let file = |part| {
            let (files, meter) = (Arc::clone(files), Arc::clone(meter));
            let bytes = faults(part).map_or(ByteSource::Built, ByteSource::Faulty);
            ChainFile { files, depth, part, meter, bytes }
        };
        Self {
            image: file(LayerFile::Image),
            data_file: files.has_data_file.then(|| file(LayerFile::DataFile)),
            extents: (0..files.extents.all().len())
                .map(|index| Arc::new(file(LayerFile::Extent(index))))
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
        Layer { image: &self.image, data_file: self.data_file.as_ref(), extents: &self.extents }
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::storage::Storage;
    use crate::formats::anatomy::Part;
    use crate::images::Limits;
    use crate::images::damage::{Attack, Spot, Transform};
    use crate::images::format::layer_anatomy::LayerAnatomy;
    use crate::programs::Vm;
    use crate::programs::text::assemble;

    use super::*;

    /// Traps and failing reads reach the file of an extent, and spare all other files.
    #[test]
    fn reads_of_extents_meet_faults() {
        let base = ImageFormat::with_extents().next().unwrap().name();
        let text = format!(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=9<<12+0 \
             rng_seed=0 blocks=append table=append tolerance=0 base={base}
             extent kind=flat length=1<<0 lead=0
             extent kind=se_sparse length=1<<0 lead=0
             write at=start+1 clusters=2"
        );
        let (mut vm, mut images) = (Vm::new(), Images::default());
        let program = assemble(&text).unwrap();
        vm.begin(&program.prologue, Limits::HOSTILE);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(&FileNames::default(), &mut images, &());
        let mut anatomy = LayerAnatomy::default();
        anatomy.read(images.top()).unwrap();
        let (_, element) = anatomy.element(Part::Table, 0).unwrap();
        let trap = Attack::Trap {
            spot: Spot { part: Part::Table, depth: 0, nth: 0, inside: 0 },
            transform: Transform::Set,
            value: 7,
            reads: 1,
        };
        let fails = Attack::FailRead { part: Part::Table, depth: 0, reads: 3 };
        let extent = images.top().file(LayerFile::Extent(1));
        let whole = extent.number(element.at, 8).swap_bytes();
        let mut damage = Damage::default();
        damage.apply(&mut images, &[trap, fails]);
        let chain = Chain::damaged(&images, &damage, &Arc::default());
        for _ in 0..2 {
            chain.rearm();
            let answers = [(); 4].map(|()| {
                let mut bytes = [0; 8];
                let read = chain.layers()[0].extents[1].read_at(element.at, &mut bytes);
                read.is_ok().then_some(u64::from_le_bytes(bytes))
            });
            assert_eq!(answers, [Some(whole), Some(7), Some(7), None]);
        }
        for file in [chain.image(), &chain.layers()[0].extents[0]] {
            assert!((0..5).all(|_| file.read_at(element.at, &mut [0; 8]).is_ok()));
        }
    }
}
