//! Aims attacks at parts that the layer's format has. An attack on another part would change nothing.

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::image_format::ImageFormat;
use crate::formats::anatomy::Part;
use crate::formats::parts_of;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

impl MutationContext<'_> {
    /// Returns `operation`, which is for `program`. If it attacks a part that its layer cannot have, it gets one that
    /// the layer has. A raw layer has no parts: the attack goes to the layer at the top instead.
    pub(super) fn aimed(&mut self, operation: Operation, program: &Program) -> Operation {
        let mut aimed = operation;
        let (part, depth) = match &mut aimed {
            Operation::Patch { part, depth, .. }
            | Operation::Trap { part, depth, .. }
            | Operation::FailRead { part, depth, .. } => (part, depth),
            _ => return operation,
        };
        let layers = Layers::of(program, self.limits.layers);
        if layers.parts_at(depth.get()).is_empty() {
            *depth = Number::LOWEST;
        }
        let parts = layers.parts_at(depth.get());
        if !parts.is_empty() && !parts.contains(part) {
            *part = parts[self.index(parts.len())];
        }
        aimed
    }
}

/// The parts of each layer that a program builds, from the lowest layer up.
struct Layers(SmallVec<[&'static [Part]; MAX_LAYERS]>);

impl Layers {
    /// Returns the layers of a program in a target that allows `most`.
    fn of(program: &Program, most: usize) -> Self {
        let file = program.prologue.plan().file;
        let lowest: &[Part] = match program.prologue.base {
            // A fixed VHD disk has a footer, and no table.
            _ if file.begins_with_data() => &[Part::Header],
            _ => parts_of(file.format),
        };
        let [qcow2, vmdk] = [ImageFormat::Qcow2, ImageFormat::Vmdk].map(parts_of);
        let (mut layers, mut top) = (SmallVec::from_slice(&[lowest]), file.format);
        for operation in &program.operations {
            let overlay = match operation {
                Operation::Overlay { .. } => (qcow2, ImageFormat::Qcow2),
                // A VMDK image has no parent in another format.
                Operation::OverlayVmdk { .. } if top == ImageFormat::Vmdk => (vmdk, top),
                _ => continue,
            };
            if layers.len() < most {
                layers.push(overlay.0);
                top = overlay.1;
            }
        }
        if program.prologue.base.is_raw() && layers.len() > 1 {
            layers[0] = parts_of(ImageFormat::Raw);
        }
        Self(layers)
    }

    /// Returns the parts that an attack at `depth` can hit: the number of layers from the top down, modulo the number
    /// of layers.
    fn parts_at(&self, depth: u8) -> &'static [Part] {
        self.0[self.0.len() - 1 - usize::from(depth) % self.0.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::entropy::Entropy;
    use crate::images::file_plan::TableReach;
    use crate::images::layer_anatomy::LayerAnatomy;
    use crate::images::{FileNames, Images, Limits};
    use crate::programs::Vm;
    use crate::programs::generate::{any_operation, generate_any};
    use crate::programs::operand::Base;
    use crate::programs::operand::ImageForm;
    use crate::programs::operation::Class;

    /// Returns the anatomies of all layers that `program` builds, from the top down.
    fn anatomies(program: &Program) -> Vec<LayerAnatomy> {
        let (mut vm, mut images) = (Vm::new(), Images::default());
        vm.begin(&program.prologue, Limits::HOSTILE);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(&FileNames::default(), &mut images, &());
        let layers = images.layers().map(|files| {
            let mut anatomy = LayerAnatomy::default();
            anatomy.read(files).unwrap();
            anatomy
        });
        layers.collect()
    }

    /// Reports whether the attack finds an element; `None` if the operation needs none.
    fn finds(attack: &Operation, layers: &[LayerAnatomy]) -> Option<bool> {
        let at = |depth: u8| &layers[usize::from(depth) % layers.len()];
        match *attack {
            Operation::Patch { part, depth, nth, .. }
            | Operation::Trap { part, depth, nth, .. } => {
                Some(at(depth.get()).element(part, nth).is_some())
            }
            Operation::FailRead { part, depth, .. } => {
                Some(at(depth.get()).elements_of(part).next().is_some())
            }
            _ => None,
        }
    }

    /// Returns the percentages of attacks that find an element, as they are made and as they are aimed.
    fn shares(base: Base) -> (u32, u32) {
        let (mut made, mut found, mut found_aimed) = (0, 0, 0);
        for rng_seed in 0..60 {
            let mut program = generate_any(rng_seed, 16);
            program.prologue.base = base;
            program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
            let layers = anatomies(&program);
            let entropy = Entropy::new(rng_seed);
            let limits = Limits::HOSTILE;
            let mut context = MutationContext::untraced(entropy, limits, 64, None);
            for _ in 0..400 {
                let attack = any_operation(&mut context.entropy);
                let Some(attack) = attack.filter(|it| it.class() == Class::Attacks) else {
                    continue;
                };
                let Some(hits) = finds(&attack, &layers) else { continue };
                let aimed = context.aimed(attack, &program);
                made += 1;
                found += u32::from(hits);
                found_aimed += u32::from(finds(&aimed, &layers) == Some(true));
            }
        }
        (100 * found / made, 100 * found_aimed / made)
    }

    #[test]
    fn most_attacks_find_an_element_in_every_format() {
        for base in Base::all().filter(|base| base.reach() == TableReach::Small) {
            let (as_made, aimed) = shares(base);
            assert!(aimed >= 60 && aimed > as_made + 8, "{base:?}: {as_made} % → {aimed} %");
        }
    }
}
