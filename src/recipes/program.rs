//! The files of a program, which a recipe may begin with.

use crate::images::damage::Damage;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

/// A program that has run as those of `hostile`, and the files that it has built and damaged.
#[derive(Debug)]
pub struct BuiltProgram {
    pub(super) vm: Vm,
    pub(super) images: Images,
}

impl BuiltProgram {
    /// Runs the program that `input` encodes. Its images name each other by `names`.
    pub(super) fn new(input: &[u8], names: &FileNames) -> Self {
        let program = Program::decode(input);
        let (mut vm, mut images) = (Vm::new(), Images::default());
        vm.begin(&program.prologue, Limits::HOSTILE);
        for operation in &program.operations {
            vm.step(*operation);
        }
        vm.build(names, &mut images, &());
        Damage::default().apply(&mut images, vm.attacks());
        Self { vm, images }
    }
}
