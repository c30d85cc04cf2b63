//! Aims at one or two entries of the images of a program, in any layer: those that the engine under test has accessed
//! in a run of the program. If nothing is known about its accesses, the mutation has our walker walk the images, and
//! aims at those that it reads. Sometimes it aims at entries that were not accessed. If the target has attacks, it
//! appends an attack that patches such an entry, sets a trap on it or lets a read of it fail. If an engine writes, it
//! appends a request to change the first cluster that the entry maps. Otherwise, and sometimes in that target, it
//! changes an operand of the operation that wrote the entry. In a target that asks engines nothing, it aims at
//! refcounts.
//!
//! It runs only programs that were run before without a finding, so no mutation ends the process or hangs.

use std::cell::RefCell;

use crate::disk::clusters::ClusterSize;
use crate::findings::explain::refcounts::RefcountEntry;
use crate::findings::explain::watch::{Watch, Watched};
use crate::formats::anatomy::Part;
use crate::images::damage::Transform;
use crate::programs::operand::{Anchor, At, Gap, Inside, Number, Operand};
use crate::programs::operation::Class;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Operation, Program, Prologue};

use super::context::MutationContext;
use super::{operand, refused};

/// In a target with attacks, one mutation of this many appends an attack of known meaning. It needs no run.
const REFUSED_ONE_IN: u64 = 4;
/// One attack of this many acts on reads: by turns a trap, and a read that fails.
const ON_READS_ONE_IN: u64 = 6;
/// One entry of this many is one that was not read, in targets whose engines may use such entries in other images.
const UNREAD_ONE_IN: u64 = 4;
/// If the image is damaged already, one mutation in this many aims at the entries that our walker reads, and not at
/// those that the engine has accessed.
const WALK_ONE_IN: u64 = 2;
/// Most traps and failing reads act at one of this many first reads of the entry.
const FEW_READS: u64 = 4;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let has_attacks = context.limits.attacks > 0;
    if has_attacks && context.entropy.one_in(REFUSED_ONE_IN) {
        return refused::change(program, context);
    }
    if !context.sound {
        return false;
    }
    thread_local! {
        static WATCH: RefCell<Watch> = RefCell::default();
    }
    WATCH.with_borrow_mut(|watch| {
        if !context.limits.asks_engines() {
            return refcounts(program, watch, context);
        }
        // An engine that refuses a damaged image has read little of it.
        let is_damaged = program.operations.iter().any(|it| it.class() == Class::Attacks);
        let walks = is_damaged && context.entropy.one_in(WALK_ONE_IN);
        let accessed = if walks { None } else { (context.trace)() };
        let watch = match accessed {
            Some(accessed) => watch.run_accessed(program, context.limits, &accessed),
            None => watch.run(program, context.limits),
        };
        let cluster_size = watch.cluster_size();
        let has_requests = context.limits.requests > 0;
        let mut changed = false;
        for _ in 0..1 + context.index(2) {
            let is_unread = (has_attacks || has_requests) && context.entropy.one_in(UNREAD_ONE_IN);
            let watched = if is_unread { watch.unread() } else { watch.read() };
            let Some(target) = aim(watched, context) else { break };
            changed |= match has_attacks {
                true if !has_requests || context.entropy.one_in(2) => {
                    attack(program, &target, context)
                }
                _ if has_requests && !is_unread && context.entropy.one_in(2) => {
                    request(program, &target, cluster_size, context)
                }
                _ => rewrite(program, &target, context),
            };
        }
        changed
    })
}

/// Chooses an entry. Each part of each image is equally likely, however many of its entries are there.
fn aim(watched: &[Watched], context: &mut MutationContext) -> Option<Watched> {
    let place = |it: &Watched| (it.depth, it.part);
    let parts: Vec<&[Watched]> = watched.chunk_by(|one, next| place(one) == place(next)).collect();
    if parts.is_empty() {
        return None;
    }
    let part = parts[context.index(parts.len())];
    Some(part[context.index(part.len())])
}

fn attack(program: &mut Program, target: &Watched, context: &mut MutationContext) -> bool {
    if context.room(program) == 0 {
        return false;
    }
    let depth = u8::try_from(target.depth).ok().and_then(Number::new).unwrap_or(Number::LOWEST);
    let part = target.part;
    let acts_on_reads = context.entropy.one_in(ON_READS_ONE_IN);
    if acts_on_reads && context.entropy.one_in(2) {
        let reads = reads(context);
        program.operations.push(Operation::FailRead { part, depth, reads });
        return true;
    }
    let transform = Transform::ALL[context.index(Transform::ALL.len())];
    let value = match context.entropy.one_in(2) {
        true => context.entropy.below(24) as u16,
        false => context.entropy.next_u64() as u16,
    };
    // An odd number keeps the checksum right.
    let nth = target.nth | u16::from(target.is_sealed && context.entropy.one_in(2));
    program.operations.push(match acts_on_reads {
        true => {
            let (value, reads) = (value as u8, reads(context));
            Operation::Trap { part, depth, nth, transform, value, reads }
        }
        false => Operation::Patch { part, depth, nth, transform, value },
    });
    true
}

/// Returns the number of reads before an attack acts.
fn reads(context: &mut MutationContext) -> u8 {
    let below = if context.entropy.one_in(4) { 256 } else { FEW_READS };
    context.entropy.below(below) as u8
}

/// Appends a request that changes bytes of the first cluster that an entry maps.
fn request(
    program: &mut Program,
    target: &Watched,
    cluster_size: ClusterSize,
    context: &mut MutationContext,
) -> bool {
    let cluster = target.guest.map(|guest| cluster_size.guest_cluster(guest).get());
    let Some(steps) = cluster.and_then(|cluster| u16::try_from(cluster).ok()) else { return false };
    if context.room(program) == 0 {
        return false;
    }
    let at = At { anchor: Anchor::Start, steps };
    let inside = match context.entropy.one_in(2) {
        true => Inside(0),
        false => Inside(context.entropy.next_u64() as u16),
    };
    let length = Gap::decode(&mut context.entropy.next_u64().to_le_bytes().as_slice());
    program.operations.push(match context.entropy.one_in(3) {
        true => Operation::ZeroAt { at, inside, length },
        false => Operation::WriteAt { at, inside, length },
    });
    true
}

fn rewrite(program: &mut Program, target: &Watched, context: &mut MutationContext) -> bool {
    match target.operation {
        Some(at) if at < program.operations.len() => operand::change_at(program, at, context),
        _ => false,
    }
}

/// One entry with operations of this many changes the structures themselves.
const PLACEMENT_ONE_IN: u64 = 4;

/// Aims at refcounts, in a target that asks engines nothing and judges only refcounts: changes an operation whose
/// clusters an entry counts, or a field of the prologue that places the refcount structures. It runs the program, and
/// no engine.
fn refcounts(program: &mut Program, watch: &mut Watch, context: &mut MutationContext) -> bool {
    let entries = watch.refcounts(program, context.limits);
    let Some(entry) = choose_entry(&entries, context) else { return placement(program, context) };
    let operations = watch.operations_in(&entry.counted);
    // The other entries count headers, tables, and refcount blocks.
    if operations.is_empty() || context.entropy.one_in(PLACEMENT_ONE_IN) {
        return placement(program, context);
    }
    let at = operations[context.index(operations.len())];
    at < program.operations.len() && operand::change_at(program, at, context)
}

/// Chooses an entry: of the table or of a block, which are equally likely.
fn choose_entry<'e>(
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
    use std::collections::BTreeSet;

    use crate::images::content::entropy::Entropy;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    #[test]
    fn the_entries_that_the_walker_reads_are_patched_trapped_and_fail() {
        let image = "image version=3 cluster_bits=16 refcount_order=4 features=none size=300<<16+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\nwrite at=start+1 clusters=3";
        let sound = assemble(image).unwrap();
        let (mut names, mut parts) = (BTreeSet::new(), BTreeSet::new());
        for rng_seed in 0..300 {
            let mut program = sound.clone();
            let (entropy, limits) = (Entropy::new(rng_seed), Limits::HOSTILE);
            let mut context = MutationContext::untraced(entropy, limits, 64, None);
            if !change(&mut program, &mut context) {
                continue;
            }
            for operation in program.operations.iter().skip(sound.operations.len()) {
                let (name, part) = match *operation {
                    Operation::Patch { part, .. } => ("patch", part),
                    Operation::Trap { part, .. } => ("trap", part),
                    Operation::FailRead { part, .. } => ("fail_read", part),
                    other => panic!("{other}"),
                };
                names.insert(name);
                parts.insert(part);
            }
        }
        assert!(names.iter().eq(&["fail_read", "patch", "trap"]), "{names:?}");
        assert!(parts.is_superset(&[Part::L1, Part::L2, Part::Header].into()), "{parts:?}");
    }

    /// Returns the operations that the mutation appends to a program, for many seeds.
    fn appended(text: &str, limits: Limits) -> Vec<Operation> {
        let sound = assemble(text).unwrap();
        let mut all = Vec::new();
        for rng_seed in 0..400 {
            let mut program = sound.clone();
            let entropy = Entropy::new(rng_seed);
            let mut context = MutationContext::untraced(entropy, limits, 64, None);
            change(&mut program, &mut context);
            all.extend(program.operations.drain(sound.operations.len()..));
        }
        all
    }

    const CHAIN: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 \
         rng_seed=0 blocks=append table=append tolerance=0\nwrite at=start+4 clusters=1\n\
         overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same\n\
         write at=start+9 clusters=1";

    #[test]
    fn entries_of_lower_layers_and_entries_that_only_others_read_are_attacked() {
        let mut places = BTreeSet::new();
        for operation in appended(CHAIN, Limits::HOSTILE) {
            if let Operation::Patch { part, depth, .. } = operation {
                places.insert((depth.get(), part));
            }
        }
        for place in [(0, Part::L2), (1, Part::L2), (0, Part::RefcountBlock)] {
            assert!(places.contains(&place), "{place:?} of {places:?}");
        }
    }

    #[test]
    fn requests_change_the_clusters_of_entries() {
        let mut clusters = BTreeSet::new();
        for operation in appended(CHAIN, Limits::WRITTEN) {
            let (Operation::WriteAt { at, .. } | Operation::ZeroAt { at, .. }) = operation else {
                panic!("{operation}")
            };
            clusters.insert(at.steps);
        }
        // The first cluster of the disk is that of both L1 tables.
        assert!(clusters.is_superset(&[0, 4, 9].into()), "{clusters:?}");
    }

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
            if !refcounts(&mut program, &mut watch, &mut context) {
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
