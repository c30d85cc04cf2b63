//! Drops the lowest layers of a chain: an overlay becomes the first image.

use crate::disk::image_format::ImageFormat;
use crate::programs::operand::{Base, ImageForm, Size};
use crate::programs::prologue::Prologue;
use crate::programs::{Operation, Program};

use super::search::Search;

pub(super) fn reduce(search: &mut Search) {
    // Tries the upper layers first: dropping a layer drops all layers below it.
    let mut at = search.best().operations.len();
    while at > 0 {
        at -= 1;
        if let Some(candidate) = without_below(search.best(), at, search)
            && search.propose(candidate)
        {
            return;
        }
    }
}

/// Returns the program whose first image is the overlay that the operation at `at` creates.
fn without_below(program: &Program, at: usize, search: &Search) -> Option<Program> {
    let below = program.prologue;
    let image = match *program.operations.get(at)? {
        Operation::Overlay { version, cluster_bits, refcount_order, features, data_in, .. } => {
            let qcow2 = Prologue { base: Base::Qcow2, form: ImageForm::default(), ..below };
            Prologue { version, cluster_bits, refcount_order, features, data_in, ..qcow2 }
        }
        Operation::OverlayVmdk { cluster_bits, form, .. } => Prologue {
            cluster_bits,
            form,
            base: Base::of(ImageFormat::Vmdk).with_reach(below.base.reach()),
            ..below
        },
        _ => return None,
    };
    let vm = search.run(program, at + 1)?;
    let size = Size::of_bytes(vm.builder().plan().size_bytes)?;
    let image = Prologue { size, ..image };
    let operations = program.operations.get(at + 1..)?.to_vec();
    Some(Program { prologue: image, operations })
}
