//! The context of a mutation: random numbers, the limits of the target, another program. It makes the operations that
//! mutations insert, and aims attacks at parts that the layer has.

use smallvec::SmallVec;

use crate::base::limits::MAX_LAYERS;
use crate::disk::image_format::ImageFormat;
use crate::formats::anatomy::Part;
use crate::formats::parts_of;
use crate::harness::cases::tracer::TraceRun;
use crate::images::content::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::operand::Number;
use crate::programs::operation::Class;
use crate::programs::{Operation, Program, generate};

/// The parameters of a mutation, except the program.
pub struct MutationContext<'c> {
    /// The random choices.
    pub entropy: Entropy,
    /// The limits of the target.
    pub limits: Limits,
    /// The highest number of operations of the child.
    pub most: usize,
    /// A program from which the child may take operations.
    pub other: Option<&'c Program>,
    /// The program is unchanged since a run that found nothing. Only then may a mutation run it again.
    pub sound: bool,
    /// Runs that program again with the engine under test.
    pub trace: &'c mut TraceRun<'c>,
}

impl MutationContext<'_> {
    /// Returns a random index into a list of `length` elements, which must not be 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.entropy.below(length as u64) as usize
    }

    /// Returns a random range of one to `most` indices into a list of `length` elements, which must not be 0.
    pub(super) fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let first = self.index(length);
        let count = 1 + self.index(most.min(length - first));
        first..first + count
    }

    /// Returns the number of operations that may still be added.
    pub(super) fn room(&self, program: &Program) -> usize {
        self.most.saturating_sub(program.operations.len())
    }

    /// Returns a random operation for `program`. If the target has attacks, one in three is an attack, on a part that
    /// the format of its layer has. If the target writes, half are requests. Half of the others come from the
    /// generator of programs; the rest have any opcode.
    pub(super) fn operation(&mut self, program: &Program) -> Operation {
        if self.limits.requests > 0
            && self.entropy.one_in(2)
            && let Some(made) = generate::request(&mut self.entropy, &program.operations)
        {
            return made;
        }
        let attack = self.limits.attacks > 0 && self.entropy.one_in(3);
        let usual = !attack && self.entropy.one_in(2);
        loop {
            let made = match usual {
                true => generate::operation(&mut self.entropy),
                false => generate::any_operation(&mut self.entropy)
                    .filter(|made| (made.class() == Class::Attacks) == attack),
            };
            if let Some(operation) = made {
                return self.aimed(operation, program);
            }
        }
    }

    /// Returns `operation`, which is for `program`. If the operation attacks a part that its layer cannot have, this
    /// function replaces the part by one that the layer has. A raw layer has no parts, so its attacks go to the top
    /// layer instead.
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
            // A fixed disk has a footer, and no table.
            _ if file.begins_with_data() => &[Part::Header],
            _ => parts_of(file.format),
        };
        let qcow2 = parts_of(ImageFormat::Qcow2);
        let (mut layers, mut top) = (SmallVec::from_slice(&[lowest]), file.format);
        for operation in &program.operations {
            let overlay = match operation {
                Operation::Overlay { .. } => (qcow2, ImageFormat::Qcow2),
                Operation::OverlayInFormat { .. } if top.facts().has_own_parents => {
                    (parts_of(top), top)
                }
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
impl<'c> MutationContext<'c> {
    /// Creates the context of a mutation of a program that no engine runs again.
    pub(super) fn untraced(
        entropy: Entropy,
        limits: Limits,
        most: usize,
        other: Option<&'c Program>,
    ) -> Self {
        // Leaks nothing: the closure holds no data.
        let trace = Box::leak(Box::new(|| None));
        Self { entropy, limits, most, other, sound: true, trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::images::format::file_plan::TableReach;
    use crate::images::format::layer_anatomy::LayerAnatomy;
    use crate::images::{FileNames, Images, Limits};
    use crate::programs::Vm;
    use crate::programs::generate::{any_operation, generate_any};
    use crate::programs::operand::{Base, ImageForm};

    /// Returns the names of the operations that are made for a target with these limits.
    fn made(limits: Limits) -> BTreeSet<&'static str> {
        let entropy = Entropy::new(1);
        let mut context = MutationContext::untraced(entropy, limits, 64, None);
        let program = Program::default();
        (0..10_000).map(|_| context.operation(&program).name()).collect()
    }

    #[test]
    fn each_operation_is_made_in_the_targets_that_have_it() {
        let all_but = |unwanted: &dyn Fn(Class) -> bool| -> BTreeSet<&str> {
            let wanted = Operation::OPCODES.iter().filter(|(code, _)| {
                let operation = Operation::decode(&Operation::with_opcode(*code, [0; 8]));
                !unwanted(operation.unwrap().class())
            });
            wanted.map(|(_, name)| *name).collect()
        };
        let requests = |class| matches!(class, Class::Requests(_));
        let attacks = |class| class == Class::Attacks;
        assert_eq!(made(Limits::HOSTILE), all_but(&requests));
        assert_eq!(made(Limits::WRITTEN), all_but(&attacks));
        assert_eq!(made(Limits::WALKED), all_but(&|class| attacks(class) || requests(class)));
    }

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
