//! The reducers: they drop operations, replace an operation by a plainer one, shrink the numbers of operands (to zero,
//! by halves, by clearing one bit, by one), and replace each property of the geometry by QEMU's default.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::geometry::Version;
use crate::images::damage::Transform;
use crate::images::format::file_plan::TableReach;
use crate::images::qcow2::placement::Policy;
use crate::programs::operand::{
    Anchor, At, Base, ClusterBits, DataIn, ImageFeatures, ImageForm, Length, Number, Operand,
    OperandKind, OperandPlace, RefcountOrder, Size,
};
use crate::programs::operation::{Class, OPERATION_BYTES};
use crate::programs::prologue::Prologue;
use crate::programs::{Operation, Program, Vm};

use super::measure::{bytes_of, plainer, scalars};
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

/// Returns the format whose images lie on images in the same format.
fn with_own_parents() -> Option<ImageFormat> {
    ImageFormat::ALL.into_iter().find(|format| format.facts().has_own_parents)
}

/// Returns the program whose first image is the overlay that the operation at `at` creates.
fn without_below(program: &Program, at: usize, search: &Search) -> Option<Program> {
    let below = program.prologue;
    let image = match *program.operations.get(at)? {
        Operation::Overlay { version, cluster_bits, refcount_order, features, data_in, .. } => {
            let qcow2 = Prologue { base: Base::Qcow2, form: ImageForm::default(), ..below };
            Prologue { version, cluster_bits, refcount_order, features, data_in, ..qcow2 }
        }
        Operation::OverlayInFormat { cluster_bits, form, .. } => Prologue {
            cluster_bits,
            form,
            base: Base::of(with_own_parents()?).with_reach(below.base.reach()),
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

/// Replaces operations by the plainer operations that the table of operations names.
pub(super) fn kinds(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        while let Some(operation) = search.best().operations.get(at).copied() {
            let mut plainer = operation.plainer().into_iter();
            if !plainer.any(|plainer| search.propose_at(at, plainer)) {
                break;
            }
        }
    }
}

/// The reducer tries element numbers below this: a minimized image has few elements.
const ELEMENTS: u16 = 64;
/// The bits of the widest element.
const BITS: u16 = 64;

/// Makes attacks plainer: it prefers a flipped bit or a small number to a transform of a large number, and one of the
/// first elements to a later one.
pub(super) fn patches(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        let Some(Operation::Patch { part, depth, nth, transform, value }) =
            search.best().operations.get(at).copied()
        else {
            continue;
        };
        let patch = |nth, transform, value| Operation::Patch { part, depth, nth, transform, value };
        let flips = (0..BITS).map(|bit| patch(nth, Transform::Flip, bit));
        let sets = [0, 1].map(|value| patch(nth, Transform::Set, value));
        if transform != Transform::Flip {
            let _ = flips.chain(sets).any(|plainer| search.propose_at(at, plainer));
        }
        if nth >= ELEMENTS {
            let first = |nth| patch(nth, transform, value);
            let _ = (0..ELEMENTS).map(first).any(|plainer| search.propose_at(at, plainer));
        }
    }
}

/// Replaces positions that are relative to another anchor by the same positions from the start of the disk.
pub(super) fn positions(search: &mut Search) {
    // Starts at the end: a change of an operation can change the meaning of later operations, but not of earlier ones.
    let mut at = search.best().operations.len();
    while at > 0 {
        at -= 1;
        let Some(operation) = search.best().operations.get(at).copied() else { continue };
        if is_plain(&operation) {
            continue;
        }
        let Some(vm) = search.run(search.best(), at) else { return };
        if let Some(plainer) = from_the_start(operation, &vm) {
            search.propose_at(at, plainer);
        }
    }
}

/// Returns the place of an operation's position in its record, if it has one.
fn place_of(operation: &Operation) -> Option<Range<usize>> {
    let place = operation.places().iter().find(|place| place.kind == OperandKind::Position)?;
    Some(place.bytes())
}

/// Reports whether an operation has no position, or one that is counted from the start.
fn is_plain(operation: &Operation) -> bool {
    let record = operation.encode();
    let position = place_of(operation).and_then(|bytes| record.get(bytes));
    position.is_none_or(|mut position| At::decode(&mut position).anchor == Anchor::Start)
}

/// Returns the same operation with its position counted from the start.
fn from_the_start(operation: Operation, vm: &Vm) -> Option<Operation> {
    let mut record = operation.encode();
    let operand = record.get_mut(place_of(&operation)?)?;
    let at = At::decode(&mut &*operand);
    let steps = u16::try_from(vm.position(at)).ok()?;
    operand.copy_from_slice(&bytes_of(At { anchor: Anchor::Start, steps }));
    Operation::decode(&record)
}

pub(super) fn operands(search: &mut Search) {
    for at in 0..search.best().operations.len() {
        let Some(operation) = search.best().operations.get(at).copied() else { break };
        if matches!(operation, Operation::Data(_)) {
            shrink_data(search, at);
            continue;
        }
        let mut plain = operation.encode();
        plain.iter_mut().skip(1).for_each(|byte| *byte = 0);
        if let Some(plain) = Operation::decode(&plain) {
            search.propose_at(at, plain);
        }
        shorten(search, at);
        for place in operation.places() {
            replace(search, at, place.start, &vec![0; place.length_bytes]);
            if let OperandKind::Ranked(values) = place.kind {
                let _ = values.iter().any(|value| replace(search, at, place.start, &[*value]));
            } else {
                shrink(search, at, place);
            }
        }
    }
}

/// Judges the program with other bytes in one operation's record.
fn replace(search: &mut Search, at: usize, from: usize, bytes: &[u8]) -> bool {
    let Some(operation) = search.best().operations.get(at) else { return false };
    let mut record = operation.encode();
    let Some(operand) = record.get_mut(from..from + bytes.len()) else { return false };
    operand.copy_from_slice(bytes);
    let plainer = Operation::decode(&record);
    plainer.is_some_and(|plainer| search.propose_at(at, plainer))
}

/// Shrinks the numbers of an operand one by one, each until no plainer value shows the bug.
fn shrink(search: &mut Search, at: usize, place: &OperandPlace) {
    let mut nth = 0;
    loop {
        let Some(operation) = search.best().operations.get(at) else { return };
        let record = operation.encode();
        let operand = record.get(place.bytes()).unwrap_or_default();
        let Some(scalar) = scalars(place.kind, operand).into_iter().nth(nth) else { return };
        let (from, length) = (place.start + scalar.bytes.start, scalar.bytes.len());
        let set = |search: &mut Search, value: u16| {
            replace(search, at, from, value.to_le_bytes().get(..length).unwrap_or_default())
        };
        if !scalar.plainer(operand).into_iter().any(|value| set(search, value)) {
            nth += 1;
        }
    }
}

/// Shortens the data of an operation: by halves, then by one byte at a time.
fn shorten(search: &mut Search, at: usize) {
    let mut by_half = true;
    while let Some(&Operation::Bytes { kind, length }) = search.best().operations.get(at) {
        let length = usize::from(length.get());
        let shorter = if by_half { length / 2 } else { length.saturating_sub(1) };
        let shorter = Operation::Bytes { kind, length: Length::at_most(shorter) };
        if search.propose_at(at, shorter) {
            continue;
        }
        if !by_half {
            return;
        }
        by_half = false;
    }
}

/// Shrinks the bytes of a record of data: all at once, then one by one.
fn shrink_data(search: &mut Search, at: usize) {
    search.propose_at(at, Operation::Data([0; OPERATION_BYTES]));
    for place in 0..OPERATION_BYTES {
        loop {
            let Some(&Operation::Data(bytes)) = search.best().operations.get(at) else { return };
            let Some(byte) = bytes.get(place) else { break };
            let set = |search: &mut Search, value: u16| {
                let mut changed = bytes;
                let Ok(value) = u8::try_from(value) else { return false };
                changed.get_mut(place).into_iter().for_each(|byte| *byte = value);
                search.propose_at(at, Operation::Data(changed))
            };
            if !plainer(u16::from(*byte), false).into_iter().any(|value| set(search, value)) {
                break;
            }
        }
    }
}

/// The disk sizes, in clusters, that the reducer tries first.
const CLUSTERS: [u16; 7] = [1, 2, 4, 8, 16, 64, 256];

pub(super) fn geometry(search: &mut Search) {
    let simple: [fn(&mut Prologue); 8] = [
        |it| it.version = Version::V3,
        |it| it.data_in = DataIn::Image,
        |it| (it.base, it.form) = (Base::Qcow2, ImageForm::default()),
        |it| it.base = it.base.with_reach(TableReach::Small),
        |it| it.blocks = Policy::Append,
        |it| it.table = Policy::Append,
        |it| it.tolerance = Number::LOWEST,
        |it| it.rng_seed = 0,
    ];
    for change in simple {
        propose(search, change);
    }
    form(search);
    features(search);
    let _ = ClusterBits::PLAINEST_FIRST.into_iter().any(|bits| cluster_bits(search, bits));
    let _ = RefcountOrder::PLAINEST_FIRST.into_iter().any(|order| {
        search.best().prologue.refcount_order == order
            || propose(search, |it| it.refcount_order = order)
    });
    size(search);
    rng_seed(search);
}

fn propose(search: &mut Search, change: impl FnOnce(&mut Prologue)) -> bool {
    let Program { mut prologue, operations } = search.best().clone();
    change(&mut prologue);
    search.propose(Program { prologue, operations })
}

/// Clears the bits of the form: all, and each by itself.
fn form(search: &mut Search) {
    propose(search, |it| it.form = ImageForm::default());
    for bit in 0..u16::BITS {
        propose(search, |it| it.form.0 &= !(1 << bit));
    }
}

fn features(search: &mut Search) {
    propose(search, |it| it.features = ImageFeatures::default());
    for bit in 0..u8::BITS {
        let mut bytes = bytes_of(search.best().prologue.features);
        bytes.iter_mut().for_each(|byte| *byte &= !(1 << bit));
        let fewer = ImageFeatures::decode(&mut bytes.as_slice());
        propose(search, |it| it.features = fewer);
    }
}

/// Changes the cluster size. The disk keeps its number of clusters or, if that does not show the bug, its size operand.
fn cluster_bits(search: &mut Search, bits: ClusterBits) -> bool {
    let before = search.best().prologue.cluster_bits;
    let by = i32::from(bits.get()) - i32::from(before.get());
    let scaled = search.best().prologue.size.scaled(by);
    let as_many = |it: &mut Prologue| {
        (it.cluster_bits, it.size) = (bits, scaled.unwrap_or(it.size));
    };
    bits == before || propose(search, as_many) || propose(search, |it| it.cluster_bits = bits)
}

fn size(search: &mut Search) {
    // Tries whole clusters first, the fewest first.
    let bits = search.best().prologue.cluster_bits.get();
    let whole = CLUSTERS.into_iter().filter_map(|clusters| Size::new(clusters, bits, 0));
    let _ = whole.into_iter().any(|size| propose(search, |it| it.size = size));
    let mut nth = 0;
    loop {
        let bytes = bytes_of(search.best().prologue.size);
        let Some(scalar) = scalars(Size::KIND, &bytes).into_iter().nth(nth) else { break };
        let set = |search: &mut Search, value: u16| {
            let mut bytes = bytes.clone();
            let value = value.to_le_bytes();
            let number = bytes.get_mut(scalar.bytes.clone()).unwrap_or_default();
            number.copy_from_slice(value.get(..number.len()).unwrap_or_default());
            let size = Size::decode(&mut bytes.as_slice());
            propose(search, |it| it.size = size)
        };
        if !scalar.plainer(&bytes).into_iter().any(|value| set(search, value)) {
            nth += 1;
        }
    }
}

fn rng_seed(search: &mut Search) {
    for value in plainer(search.best().prologue.rng_seed, false) {
        if propose(search, |it| it.rng_seed = value) {
            break;
        }
    }
}
