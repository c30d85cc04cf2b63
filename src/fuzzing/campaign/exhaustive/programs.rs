//! The programs of an exhaustive search: all sequences of a few requests to one small disk. The disk has one cluster of
//! each kind, and the requests differ in kind, in the kind of the cluster, and in the part of it that they change.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::base::error::Error;
use crate::harness::engine::claims::Claims;
use crate::programs::operand::{DeviceError, Failures, FileOperation, Number, SyncKind, TurnOrder};
use crate::programs::text::assemble;
use crate::programs::{Operation, Program};

/// The cluster sizes, the best one first: clusters of two sectors show what is done to a part of one.
const CLUSTER_BITS: [u32; 13] = [10, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];
/// The largest shift of a length.
const MAX_GAP_SHIFT: u32 = 15;

/// The clusters of the disk, which has two L2 tables: the second one is missing.
const AT_SHARED: u32 = 0;
const AT_COMPRESSED: u32 = 1;
const AT_OWNED: u32 = 2;
const AT_ZERO: u32 = 3;
const AT_BELOW: u32 = 4;
const AT_UNALLOCATED: u32 = 5;

/// The text of an image and of its requests.
struct SmallDisk {
    cluster_bits: u32,
}

impl SmallDisk {
    /// Returns the number of clusters that an L2 table maps.
    fn per_table(&self) -> u32 {
        1 << (self.cluster_bits - 3)
    }

    /// Returns the image, and the request that changes nothing, with which the writing begins.
    fn image(&self) -> String {
        let (bits, clusters) = (self.cluster_bits, self.per_table() + 2);
        format!(
            "image version=3 cluster_bits={bits} refcount_order=4 features=none size={clusters}<<{bits}+0 rng_seed=0 \
             blocks=append table=append tolerance=0\n\
             write at=start+{AT_BELOW} clusters=1\n\
             overlay version=3 cluster_bits={bits} refcount_order=4 features=none data_in=image size=same\n\
             write at=start+{AT_SHARED} clusters=1\n\
             compress at=start+{AT_COMPRESSED} clusters=1 shape=text skew=packed\n\
             snapshot\n\
             write at=start+{AT_OWNED} clusters=1\n\
             zero at=start+{AT_ZERO} clusters=1 keep=no\n\
             write_at at=start+0 inside=0 length=0<<0\n"
        )
    }

    /// Returns a length of `halves` halves of a cluster.
    fn length(&self, halves: u32) -> String {
        let shift = (self.cluster_bits - 1).min(MAX_GAP_SHIFT);
        format!("{}<<{shift}", halves << (self.cluster_bits - 1 - shift))
    }

    /// Returns the requests that can be in flight.
    fn in_flight(&self) -> Vec<String> {
        let last = self.per_table();
        let (half, whole) = (self.length(1), self.length(2));
        let kinds = [AT_SHARED, AT_COMPRESSED, AT_OWNED, AT_ZERO, AT_BELOW, AT_UNALLOCATED, last];
        let part = |verb: &str, at: u32| format!("{verb} at=start+{at} inside=32768 length={half}");
        let mut all: Vec<String> = kinds.map(|at| part("write_at", at)).into();
        let across = |at: u32| format!("write_at at=start+{at} inside=32768 length={whole}");
        all.extend([AT_SHARED, AT_OWNED, AT_BELOW].map(across));
        all.extend([AT_SHARED, AT_BELOW].map(|at| format!("write at=start+{at} clusters=1")));
        all.extend([AT_SHARED, AT_OWNED, AT_BELOW, AT_UNALLOCATED].map(|at| part("zero_at", at)));
        all.extend(
            [AT_SHARED, AT_OWNED, AT_BELOW, last]
                .map(|at| format!("zero at=start+{at} clusters=1 keep=no")),
        );
        let discard = |at: u32| format!("discard at=start+{at} clusters=1");
        all.extend([AT_SHARED, AT_COMPRESSED, AT_OWNED, AT_BELOW].map(discard));
        all.push("sync kind=flush choice=0".to_string());
        all
    }

    /// Returns the other ones.
    fn alone(&self) -> Vec<String> {
        let (bits, larger) = (self.cluster_bits, self.per_table() + 4);
        let resize = |clusters: u32| format!("resize size={clusters}<<{bits}+0");
        let snapshots = ["snapshot", "apply_snapshot index=0", "delete_snapshot index=0"];
        let sizes = [larger, AT_ZERO].map(resize).into_iter();
        sizes.chain(snapshots.map(str::to_string)).collect()
    }

    /// Returns the reads, which mean something in flight only: the harness reads the disk around each request anyway.
    fn reads(&self) -> Vec<String> {
        let whole = self.length(2);
        [AT_OWNED, AT_UNALLOCATED].map(|at| format!("read_at at=start+{at} length={whole}")).into()
    }
}

/// A program of the search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sequence {
    /// The indices of its requests.
    requests: SmallVec<[u8; 4]>,
    /// The last two are in flight together.
    pub(super) flies: bool,
}

/// All programs of up to a number of requests.
#[derive(Debug)]
pub(super) struct Programs {
    image: Program,
    requests: Vec<Operation>,
    /// The programs, of which no two are the same after folding.
    pub(super) all: Vec<Sequence>,
    /// The engine meets file operations that fail.
    pub(super) has_faults: bool,
    /// Its files of power cuts are judged.
    pub(super) has_cuts: bool,
}

impl Programs {
    /// Returns all programs of up to `most` requests that an engine with these claims gets.
    ///
    /// # Errors
    /// The text of a program is wrong.
    pub(super) fn new(most: usize, claims: &Claims) -> Result<Self, Error> {
        let keeps_size = |bits: &u32| {
            let program = assemble(&SmallDisk { cluster_bits: *bits }.image());
            program.is_ok_and(|mut program| {
                let before = program.prologue.cluster_bits;
                claims.fold_program(&mut program);
                program.prologue.cluster_bits == before
            })
        };
        let [best, ..] = CLUSTER_BITS;
        let disk =
            SmallDisk { cluster_bits: CLUSTER_BITS.into_iter().find(keeps_size).unwrap_or(best) };
        let (flying, alone, reads) = (disk.in_flight(), disk.alone(), disk.reads());
        let counts = [flying.len(), alone.len(), reads.len()];
        let image = assemble(&disk.image())?;
        let lines = [flying, alone, reads].concat().join("\n");
        let mut requests = assemble(&format!("{}{lines}\n", disk.image()))?.operations;
        requests.drain(..image.operations.len());
        let (all, has_faults, has_cuts) = Default::default();
        let mut programs = Self { image, requests, all, has_faults, has_cuts };
        let keeps = |mut program: Program, is_it: fn(&Operation) -> bool| {
            claims.fold_program(&mut program);
            program.operations.iter().any(is_it)
        };
        let faulty = programs.with_fault(programs.image.clone(), FileOperation::Write, 0);
        let cut = with_cut(programs.image.clone(), 0);
        programs.has_faults = keeps(faulty, |it| matches!(it, Operation::FailFile { .. }));
        programs.has_cuts = keeps(cut, |it| matches!(it, Operation::Sync { .. }));
        programs.all = programs.candidates(most, counts);
        let (mut seen, mut kept) = (BTreeSet::new(), Vec::new());
        for candidate in std::mem::take(&mut programs.all) {
            let mut program = programs.program(&candidate, TurnOrder::default());
            claims.fold_program(&mut program);
            if seen.insert(program.encode()) {
                kept.push(candidate);
            }
        }
        programs.all = kept;
        Ok(programs)
    }

    /// Returns all programs, short ones first. `counts` are the numbers of requests of each list.
    fn candidates(&self, most: usize, [flying, alone, reads]: [usize; 3]) -> Vec<Sequence> {
        let in_sequence = 0..(flying + alone) as u8;
        let in_flight =
            (0..flying as u8).chain((flying + alone) as u8..(flying + alone + reads) as u8);
        let (mut all, mut before) = (Vec::new(), vec![SmallVec::<[u8; 4]>::new()]);
        for length in 1..=most {
            let pairs = before.iter().filter(|_| length < most);
            for first in pairs {
                for one in in_flight.clone() {
                    for other in in_flight.clone().filter(|other| *other >= one) {
                        let requests = first.iter().copied().chain([one, other]).collect();
                        all.push(Sequence { requests, flies: true });
                    }
                }
            }
            let longer = before.iter().flat_map(|first| {
                in_sequence.clone().map(|next| first.iter().copied().chain([next]).collect())
            });
            before = longer.collect::<Vec<_>>();
            let of = |requests: &SmallVec<_>| Sequence { requests: requests.clone(), flies: false };
            all.extend(before.iter().map(of));
        }
        all.sort_by_key(|candidate: &Sequence| candidate.requests.len());
        all
    }

    /// Returns a program; its requests in flight have an order.
    pub(super) fn program(&self, candidate: &Sequence, order: TurnOrder) -> Program {
        let Sequence { requests, flies } = candidate;
        let mut program = self.image.clone();
        let mut operations: Vec<_> =
            requests.iter().filter_map(|it| self.requests.get(usize::from(*it)).copied()).collect();
        if *flies {
            let together = operations.len().saturating_sub(2);
            // The lowest numbers are 2.
            let (requests, at_once) = (Number::LOWEST, Number::LOWEST);
            operations.insert(together, Operation::InFlight { requests, at_once, order });
        }
        program.operations.extend(operations);
        program
    }

    /// Returns a program in which the file operation of this kind with the number `before` fails.
    pub(super) fn with_fault(
        &self,
        mut program: Program,
        of: FileOperation,
        before: u8,
    ) -> Program {
        let (error, failures) = (DeviceError::Io, Failures::One);
        let at = self.image.operations.len();
        program.operations.insert(at, Operation::FailFile { of, before, error, failures });
        program
    }
}

/// Returns a program that ends in a power cut.
pub(super) fn with_cut(mut program: Program, choice: u16) -> Program {
    program.operations.push(Operation::Sync { kind: SyncKind::Cut, choice });
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::features::Feature;

    #[test]
    fn all_programs_are_there_once() {
        let one = Programs::new(1, &Claims::QCOW2).unwrap();
        let two = Programs::new(2, &Claims::QCOW2).unwrap();
        let pairs = two.all.iter().filter(|it| it.flies).count();
        assert!(one.all.iter().all(|it| !it.flies) && one.all.len() > 25, "{}", one.all.len());
        assert_eq!(two.all.len() - pairs, one.all.len() * (one.all.len() + 1));
        assert!(two.all.starts_with(&one.all) && pairs > 300, "{pairs}");
    }

    #[test]
    fn programs_have_the_features_that_an_engine_claims() {
        let claims = Claims::QCOW2.no(&[Feature::Snapshots, Feature::Clusters1K]);
        // Without a snapshot, two requests are one.
        let fewer = Programs::new(2, &claims).unwrap();
        assert!(fewer.all.len() < Programs::new(2, &Claims::QCOW2).unwrap().all.len());
        let mut program = fewer.program(&fewer.all[0], TurnOrder::default());
        assert_eq!(program.prologue.cluster_bits.get(), 9);
        claims.fold_program(&mut program);
        assert_eq!(program.prologue.cluster_bits.get(), 9);
    }
}
