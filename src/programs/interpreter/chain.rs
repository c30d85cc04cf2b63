//! Chains of images: the one at the top is being built, the others lie below it as they are.

use crate::disk::observer::{Observer, Rare, Vital};
use crate::formats::qcow2::geometry::ImageFormat;
use crate::images::files::{FileNames, Images};
use crate::images::qcow2::{Builder, Names, NamesTooLong, Scratch};
use crate::programs::journal::Journal;
use crate::programs::operand::{Base, Relative};
use crate::programs::prologue::ImageOperands;

use super::{Effect, Layer, Vm};

impl Vm {
    /// The images of all layers, from the top down.
    pub fn builders(&self) -> impl ExactSizeIterator<Item = &Builder> {
        self.layers().map(|(builder, _)| builder)
    }

    /// What was meant so far, for each layer from the top down.
    pub fn journals(&self) -> impl ExactSizeIterator<Item = &Journal> {
        self.layers().map(|(_, journal)| journal)
    }

    fn layers(&self) -> impl DoubleEndedIterator<Item = (&Builder, &Journal)> + ExactSizeIterator {
        let height = self.layers_below;
        (0..height + 1).rev().map(move |at| match self.below[..height].get(at) {
            Some(layer) => (&layer.builder, &layer.journal),
            None => (&self.builder, &self.journal),
        })
    }

    /// Builds the files of all layers, which call each other by `names`. Those of the lower ones never
    /// change: what `images` holds of them from an earlier build of the same program stays.
    pub fn build(
        &self,
        names: &FileNames,
        scratch: &mut Scratch,
        images: &mut Images,
        observer: &impl Observer,
    ) {
        let built = images.layers().len();
        observer.vital(Vital::Layers, self.layers_below as u64 + 1);
        if self.layers_below > 0 && self.layers_below + 1 == self.limits.layers {
            observer.rare(Rare::DeepestChain);
        }
        images.resize(self.layers_below + 1);
        // The image that was at the top when it was built last may have changed since.
        let unchanged = built.saturating_sub(1);
        images.set_unchanged(unchanged);
        for (height, layer) in self.below[..self.layers_below].iter().enumerate().skip(unchanged) {
            let files = images.layer_mut(height);
            match layer.journal.raw {
                true => layer.builder.build_raw(files),
                false => layer.builder.build(&self.names(names, height), scratch, files, observer),
            }
        }
        let height = self.layers_below;
        let (names, files) = (self.names(names, height), images.layer_mut(height));
        self.builder.build(&names, scratch, files, observer);
        self.builder.tell_vitals(scratch, observer);
    }

    /// Whether the images of all layers have room for what they call each other by `names`. One that has
    /// none is built without any.
    ///
    /// # Errors
    /// The height of the lowest image that has no room, counted from 0, and what it would need.
    pub fn check_names(&self, names: &FileNames) -> Result<(), (usize, NamesTooLong)> {
        let layers = self.layers().rev().enumerate().filter(|(_, (_, journal))| !journal.raw);
        for (height, (builder, _)) in layers {
            builder.check_names(&self.names(names, height)).map_err(|error| (height, error))?;
        }
        Ok(())
    }

    /// What the image at `height` calls other files.
    fn names<'n>(&self, names: &'n FileNames, height: usize) -> Names<'n> {
        let backing = match height.checked_sub(1) {
            Some(below) => names.image(below, self.below[below].journal.raw),
            None => "",
        };
        Names { backing: backing.as_bytes(), data_file: names.data_file(height).as_bytes() }
    }

    /// Lays an empty image on top of what there is.
    pub(super) fn overlay(&mut self, image: ImageOperands, size: Relative) -> Effect {
        if self.layers_below + 1 >= self.limits.layers {
            return Effect::None;
        }
        let raw = self.layers_below == 0 && self.base == Base::Raw;
        let format = if raw { ImageFormat::Raw } else { ImageFormat::Qcow2 };
        let plan = image.plan_over(self.builder.plan(), format, size);
        if self.below.len() == self.layers_below {
            self.below.push(Layer::default());
        }
        let layer = &mut self.below[self.layers_below];
        std::mem::swap(&mut self.builder, &mut layer.builder);
        std::mem::swap(&mut self.journal, &mut layer.journal);
        layer.journal.raw = raw;
        self.layers_below += 1;
        self.last = 0;
        self.begin_layer(plan);
        Effect::Changed
    }
}
