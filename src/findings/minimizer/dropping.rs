//! Reducers that drop operations.

use crate::disk::image_format::ImageFormat;
use crate::programs::operand::{Base, ImageForm, Size};
use crate::programs::operation::Class;
use crate::programs::prologue::Prologue;
use crate::programs::{Operation, Program};

use super::search::Search;

/// Drops ranges of operations: halves first, then quarters, and so on.
pub(super) fn ranges(search: &mut Search) {
    let mut length = search.best().operations.len();
    while length > 0 {
        drop_ranges(search, length);
        length /= 2;
    }
}

/// Drops ranges of `length` operations, the last range first: fewer operations depend on the last ones.
fn drop_ranges(search: &mut Search, length: usize) {
    let mut end = search.best().operations.len();
    while end > 0 {
        let range = end.saturating_sub(length)..end;
        search.propose_kept(|at, _| !range.contains(&at));
        end = range.start;
    }
}

/// The maximum length of a program of which all pairs are tried.
const MAX_PAIRED: usize = 24;

/// Drops single operations, and pairs that must go together, such as a snapshot and the operation that applies it.
pub(super) fn operations(search: &mut Search) {
    drop_ranges(search, 1);
    if search.best().operations.len() <= MAX_PAIRED {
        drop_pairs(search);
    }
}

fn drop_pairs(search: &mut Search) {
    let mut second = search.best().operations.len();
    while second > 1 {
        second -= 1;
        let dropped = |search: &mut Search, first: usize| {
            search.propose_kept(|at, _| at != first && at != second)
        };
        if (0..second).rev().any(|first| dropped(search, first)) {
            second = second.min(search.best().operations.len());
        }
    }
}

/// Drops the lowest layers of a chain: an overlay becomes the first image.
pub(super) fn layers(search: &mut Search) {
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

/// Drops resizes, and gives the disk their size from the start.
pub(super) fn resizes(search: &mut Search) {
    let mut at = search.best().operations.len();
    while at > 0 {
        at -= 1;
        let Program { mut prologue, mut operations } = search.best().clone();
        if let Some(Operation::Resize { size }) = operations.get(at).copied() {
            prologue.size = size;
            operations.remove(at);
            search.propose(Program { prologue, operations });
        }
    }
}

/// Drops all checkpoints at once, and all questions at once. Some can only go together with others.
pub(super) fn checkpoints(search: &mut Search) {
    search.propose_kept(|_, operation| operation.class() != Class::Checkpoints);
    search.propose_kept(|_, operation| !matches!(operation.class(), Class::Asks(_)));
}
