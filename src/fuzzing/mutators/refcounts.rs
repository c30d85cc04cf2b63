//! Aims at refcounts, in a target that asks engines nothing and judges only these: changes an operation whose clusters
//! an entry counts, or a field of the prologue that places the refcount structures. It runs the program, and no engine.

use crate::findings::watch::{RefcountEntry, Watch};
use crate::formats::anatomy::Part;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Program, Prologue};

use super::context::MutationContext;
use super::operand;

/// One entry with operations of this many changes the structures themselves.
const PLACEMENT_ONE_IN: u64 = 4;

pub(super) fn change(
    program: &mut Program,
    watch: &mut Watch,
    context: &mut MutationContext,
) -> bool {
    let entries = watch.refcounts(program, context.limits);
    let Some(entry) = aim(&entries, context) else { return placement(program, context) };
    let operations = watch.operations_in(&entry.counted);
    // The other entries count headers, tables, and refcount blocks.
    if operations.is_empty() || context.entropy.one_in(PLACEMENT_ONE_IN) {
        return placement(program, context);
    }
    let at = operations[context.index(operations.len())];
    at < program.operations.len() && operand::change_at(program, at, context)
}

/// Chooses an entry: of the table or of a block, which are equally likely.
fn aim<'e>(
    entries: &'e [RefcountEntry],
    context: &mut MutationContext,
) -> Option<&'e RefcountEntry> {
    let part = [Part::RefcountTable, Part::RefcountBlock][context.index(2)];
    let count = entries.iter().filter(|entry| entry.part == part).count();
    if count == 0 {
        return None;
    }
    let nth = context.index(count);
    entries.iter().filter(|entry| entry.part == part).nth(nth)
}

/// Changes the width of the counts, or the place of the structures.
fn placement(program: &mut Program, context: &mut MutationContext) -> bool {
    let mut bytes = [0; PROLOGUE_BYTES - 1];
    bytes.fill_with(|| context.entropy.next_u64() as u8);
    let random = Prologue::decode(&bytes);
    let (before, prologue) = (program.prologue, &mut program.prologue);
    match context.index(4) {
        0 => prologue.refcount_order = random.refcount_order,
        1 => prologue.blocks = random.blocks,
        2 => prologue.table = random.table,
        _ => prologue.tolerance = random.tolerance,
    }
    *prologue != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::entropy::Entropy;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    /// A program of which only the first operations place clusters of the file. Most of the others ask or arrange.
    const PROGRAM: &str =
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=4<<20+0 \
         rng_seed=0 blocks=append table=append tolerance=0
         write at=start+4 clusters=2
         write at=start+40 clusters=1
         zero at=start+60 clusters=1 keep=no
         zero at=start+70 clusters=1 keep=no
         discard at=start+80 clusters=1
         discard at=start+90 clusters=1";

    #[test]
    fn only_counted_operations_and_the_refcount_structures_change() {
        let sound = assemble(PROGRAM).unwrap();
        let (mut operations, mut placed) = ([0; 6], [0; 4]);
        for rng_seed in 0..400 {
            let (mut program, mut watch) = (sound.clone(), Watch::default());
            let mut context =
                MutationContext::untraced(Entropy::new(rng_seed), Limits::ALLOCATED, 64, None);
            if !change(&mut program, &mut watch, &mut context) {
                continue;
            }
            for (count, (one, other)) in
                operations.iter_mut().zip(sound.operations.iter().zip(&program.operations))
            {
                *count += usize::from(one != other);
            }
            let (one, other) = (&sound.prologue, &program.prologue);
            let fields = [
                one.refcount_order != other.refcount_order,
                one.blocks != other.blocks,
                one.table != other.table,
                one.tolerance != other.tolerance,
            ];
            for (count, is_changed) in placed.iter_mut().zip(fields) {
                *count += usize::from(is_changed);
            }
            let same = Prologue {
                refcount_order: one.refcount_order,
                blocks: one.blocks,
                table: one.table,
                tolerance: one.tolerance,
                ..*other
            };
            assert_eq!(same, *one);
        }
        assert!(operations[..2].iter().all(|count| *count > 50), "{operations:?}");
        assert_eq!(operations[2..], [0; 4]);
        assert!(placed.iter().all(|count| *count > 10), "{placed:?}");
    }
}
