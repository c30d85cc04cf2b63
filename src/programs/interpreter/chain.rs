//! Chains of images: the virtual machine builds the image at the top; the layers below it no longer change.

use crate::base::features::{Feature, FeatureSet};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Observer, Rare, Vital};
use crate::images::files::{FileNames, Images};
use crate::images::format::NewLayer;
use crate::images::format::list::drawer;
use crate::images::qcow2::{
    BackingPlan, Builder, ImagePlan, Names, NamesFormat, NamesTooLong, Sizes,
};
use crate::programs::journal::Journal;
use crate::programs::operand::{Base, ClusterBits, ImageForm, Relative};
use crate::programs::prologue::{ImageOperands, plan_over_in_format};
use crate::programs::request::WriteRequest;

use super::{BuiltLayer, Effect, Vm};

impl Vm {
    /// Returns the builders of all layers, from the top down.
    pub fn builders(&self) -> impl ExactSizeIterator<Item = &Builder> {
        self.layers().map(|(builder, _)| builder)
    }

    /// Returns the journals of all layers, from the top down.
    pub fn journals(&self) -> impl ExactSizeIterator<Item = &Journal> {
        self.layers().map(|(_, journal)| journal)
    }

    /// Returns the features that an engine needs to read the chain, and to carry out the requests.
    pub fn features(&self) -> FeatureSet {
        // A raw layer has no structures: an engine reads only its bytes.
        let mut features = self
            .layers()
            .map(|(builder, journal)| match journal.format {
                ImageFormat::Qcow2 => builder.features(),
                ImageFormat::Raw => FeatureSet::EMPTY,
                format => FeatureSet::of(&[Feature::images_of(format)])
                    .with(drawer(format).features(builder.plan())),
            })
            .fold(FeatureSet::EMPTY, FeatureSet::with);
        let of_disks = self
            .layers()
            .map(|(builder, journal)| Feature::of_disk(journal.format, builder.plan().size_bytes));
        features = of_disks.fold(features, FeatureSet::with);
        let is_mixed =
            features.has(Feature::Qcow2) && features.meets(FeatureSet::of_other_formats());
        features.add_if(is_mixed, Feature::OtherBacking);
        let has_holes = self.journals().any(|journal| journal.has_holes);
        features.add_if(has_holes, Feature::RawHoles);
        features.add_if(self.requests().iter().any(WriteRequest::is_cut), Feature::Cuts);
        let fails = self.requests().iter().any(WriteRequest::is_fault);
        features.add_if(fails, Feature::FileErrors);
        let flies = |it: &WriteRequest| matches!(it, WriteRequest::InFlight(_));
        features.add_if(self.requests().iter().any(flies), Feature::InFlight);
        let is_odd = |builder: &Builder| {
            let plan = builder.plan();
            plan.size_bytes != plan.virtual_size_bytes()
        };
        let mut below =
            self.layers().skip(1).filter(|(_, journal)| journal.format == ImageFormat::Qcow2);
        // All of them lie below all qcow2 images.
        let own = self.layers().filter(|(_, journal)| journal.format.facts().has_own_parents);
        let mut sizes = own.map(|(builder, _)| builder.plan().size_bytes);
        let size = sizes.next();
        let (mut has_parents, mut has_other_size) = (false, false);
        for parent in sizes {
            has_parents = true;
            has_other_size |= Some(parent) != size;
        }
        features.add_if(has_parents, Feature::Parents);
        features.add_if(has_other_size, Feature::OtherParentSize);
        let any_is_odd = below.any(|(builder, _)| is_odd(builder));
        features.add_if(any_is_odd, Feature::OddBackingSize);
        features
    }

    /// Returns the smallest unit of mapping in any layer, in bytes, at least 1.
    pub fn cell_bytes(&self) -> u64 {
        // A chain has at least one layer.
        self.builders().map(|builder| builder.plan().geometry.cell_bytes()).min().unwrap_or(1)
    }

    /// Returns log2 of the guest bytes that one table of the image at the top maps.
    pub fn table_span_bits(&self) -> u32 {
        let geometry = self.builder.plan().geometry;
        geometry.l2_bits() + geometry.cluster_size.bits()
    }

    pub(super) fn layers(
        &self,
    ) -> impl DoubleEndedIterator<Item = (&Builder, &Journal)> + ExactSizeIterator {
        let height = self.layers_below;
        (0..height + 1).rev().map(move |at| match self.below[..height].get(at) {
            Some(layer) => (&layer.builder, &layer.journal),
            None => (&self.builder, &self.journal),
        })
    }

    /// Builds the files of all layers. The images name each other by `names`. Lower layers never change, so their files
    /// from an earlier build of the same program stay in `images`.
    pub fn build(&mut self, names: &FileNames, images: &mut Images, observer: &dyn Observer) {
        // The layers are borrowed while their images are built.
        let mut buffers = std::mem::take(&mut self.buffers);
        let built = images.layers().len();
        observer.vital(Vital::Layers, self.layers_below as u64 + 1);
        if self.layers_below > 0 && self.layers_below + 1 == self.limits.layers {
            observer.rare(Rare::DeepestChain);
        }
        images.resize(self.layers_below + 1);
        // The image that was at the top in the last build may have changed since then.
        let unchanged = built.saturating_sub(1);
        images.set_unchanged(unchanged);
        let layers = self.layers().rev().enumerate();
        for (height, (builder, journal)) in layers.skip(unchanged.min(self.layers_below)) {
            let files = images.layer_mut(height);
            files.set_names(names, height, journal.format);
            if height == self.layers_below {
                files.set_name_of_top(names);
            }
            let names = self.names(names, height);
            let below = height.checked_sub(1).and_then(|below| self.below.get(below));
            let below = below.filter(|below| below.journal.format == journal.format);
            let layer = NewLayer {
                builder,
                names,
                below: below.map(|below| &below.builder),
                has_holes: journal.has_holes,
            };
            drawer(journal.format).build(layer, &mut buffers, files, observer);
        }
        drawer(self.journal.format).report_vitals(&self.builder, &buffers, observer);
        self.buffers = buffers;
    }

    /// Checks that every image has room for the names of other files. An image without room is built without names.
    ///
    /// # Errors
    /// Returns the height of the lowest image without room, counted from 0, and the room that its names need.
    pub fn check_names(&self, names: &FileNames) -> Result<(), (usize, NamesTooLong)> {
        let layers = self
            .layers()
            .rev()
            .enumerate()
            .filter(|(_, (_, journal))| journal.format == ImageFormat::Qcow2);
        for (height, (builder, _)) in layers {
            builder.check_names(&self.names(names, height)).map_err(|error| (height, error))?;
        }
        Ok(())
    }

    /// Returns the names by which the image at `height` refers to other files.
    fn names<'n>(&self, names: &'n FileNames, height: usize) -> Names<'n> {
        let backing = match height.checked_sub(1) {
            Some(below) => names.image(below, self.below[below].journal.format),
            None => "",
        };
        Names { backing: backing.as_bytes(), data_file: names.data_file(height).as_bytes() }
    }

    /// Lays an empty qcow2 image on top of the current one.
    pub(super) fn overlay(&mut self, image: ImageOperands, size: Relative) -> Effect {
        let raw = self.layers_below == 0 && self.base.is_raw();
        let format = if raw { ImageFormat::Raw } else { self.journal.format };
        let backing = BackingPlan { format, names_format: self.names_format(format) };
        self.lay(format, image.plan_over(self.builder.plan(), backing, size))
    }

    /// Lays an empty image in the format of the current one on top of it.
    pub(super) fn overlay_in_format(
        &mut self,
        cluster_bits: ClusterBits,
        form: ImageForm,
        size: Relative,
    ) -> Effect {
        let format = self.journal.format;
        if !format.facts().has_own_parents {
            return Effect::None;
        }
        let plan = plan_over_in_format(self.builder.plan(), (cluster_bits, form), size);
        self.lay(format, plan)
    }

    /// Lays an empty image on top of the current one, which becomes a file in `format`.
    fn lay(&mut self, format: ImageFormat, plan: ImagePlan) -> Effect {
        if self.layers_below + 1 >= self.limits.layers {
            return Effect::None;
        }
        if self.below.len() == self.layers_below {
            self.below.push(BuiltLayer::default());
        }
        let layer = &mut self.below[self.layers_below];
        std::mem::swap(&mut self.builder, &mut layer.builder);
        std::mem::swap(&mut self.journal, &mut layer.journal);
        layer.journal.format = format;
        layer.journal.has_holes = format == ImageFormat::Raw && self.base == Base::SparseRaw;
        self.layers_below += 1;
        self.last = 0;
        self.begin_layer(plan);
        Effect::Changed
    }

    /// Returns when an overlay must name the format of the current image, which becomes a file in `format`. A raw file
    /// may have the look of another format, and the format of a disk without a table shows at its end, where no reader
    /// looks.
    fn names_format(&self, format: ImageFormat) -> NamesFormat {
        let misleads = match format {
            ImageFormat::Raw => self.journal.had_look_at_start(),
            _ => self.builder.plan().file.begins_with_data(),
        };
        if misleads { NamesFormat::Always } else { NamesFormat::Usually }
    }
}
