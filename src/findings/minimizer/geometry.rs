//! Replaces each property of the geometry by QEMU's default if the program still shows the bug, and makes the disk
//! small.

use crate::formats::qcow2::geometry::Version;
use crate::images::file_plan::TableReach;
use crate::images::qcow2::placement::Policy;
use crate::programs::Program;
use crate::programs::operand::{
    Base, ClusterBits, DataIn, ImageFeatures, ImageForm, Number, Operand, RefcountOrder, Size,
};
use crate::programs::prologue::Prologue;

use super::numbers::{bytes_of, plainer, scalars};
use super::search::Search;

/// The disk sizes, in clusters, that the reducer tries first.
const CLUSTERS: [u16; 7] = [1, 2, 4, 8, 16, 64, 256];

pub(super) fn reduce(search: &mut Search) {
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
