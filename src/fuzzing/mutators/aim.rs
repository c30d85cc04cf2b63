//! Aims attacks at parts that the layer's format has. An attack on another part would change nothing.

use crate::disk::image_format::ImageFormat;
use crate::formats::anatomy::Part;
use crate::programs::operand::{Base, Number};
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

/// The layers that a program builds.
struct Layers {
    count: usize,
    /// The parts that the lowest layer can have. All others are qcow2 images.
    lowest: &'static [Part],
}

impl Layers {
    /// Returns the layers of a program in a target that allows `most`.
    fn of(program: &Program, most: usize) -> Self {
        let is_overlay = |operation: &&Operation| matches!(operation, Operation::Overlay { .. });
        let overlays = program.operations.iter().filter(is_overlay).count();
        let count = (1 + overlays).min(most.max(1));
        let file = program.prologue.plan().file;
        let lowest = match program.prologue.base {
            Base::Raw if count > 1 => Part::of_format(ImageFormat::Raw),
            // A fixed VHD disk has a footer, and no table.
            Base::Vpc if file.is_flat => &[Part::Header],
            _ => Part::of_format(file.format),
        };
        Self { count, lowest }
    }

    /// Returns the parts that an attack at `depth` can hit: the number of layers from the top down, modulo the number
    /// of layers.
    fn parts_at(&self, depth: u8) -> &'static [Part] {
        match usize::from(depth) % self.count == self.count - 1 {
            true => self.lowest,
            false => Part::of_format(ImageFormat::Qcow2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::anatomy::Anatomy;
    use crate::images::entropy::Entropy;
    use crate::images::{FileNames, Images, Limits};
    use crate::programs::Vm;
    use crate::programs::generate::{any_operation, generate_any};
    use crate::programs::operand::ImageForm;
    use crate::programs::operation::Class;

    /// Returns the anatomies of all layers that `program` builds, from the top down.
    fn anatomies(program: &Program) -> Vec<Anatomy> {
        let (mut vm, mut images) = (Vm::new(), Images::default());
        vm.begin(&program.prologue, Limits::HOSTILE);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(&FileNames::default(), &mut images, &());
        let layers = images.layers().map(|files| {
            let mut anatomy = Anatomy::default();
            anatomy.read(files.format, &files.image).unwrap();
            anatomy
        });
        layers.collect()
    }

    /// Reports whether the attack finds an element; `None` if the operation needs none.
    fn finds(attack: &Operation, layers: &[Anatomy]) -> Option<bool> {
        let at = |depth: u8| &layers[usize::from(depth) % layers.len()];
        match *attack {
            Operation::Patch { part, depth, nth, .. }
            | Operation::Trap { part, depth, nth, .. } => {
                Some(at(depth.get()).element(part, nth).is_some())
            }
            Operation::FailRead { part, depth, .. } => Some(!at(depth.get()).of(part).is_empty()),
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
            let mut context =
                MutationContext { entropy, limits, most: 64, other: None, sound: true };
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
        for base in [Base::Qcow2, Base::Raw, Base::Vpc, Base::Vhdx, Base::Vmdk] {
            let (as_made, aimed) = shares(base);
            assert!(aimed >= 60 && aimed > as_made + 8, "{base:?}: {as_made} % → {aimed} %");
        }
    }
}
