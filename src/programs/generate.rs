//! Programs from a random seed: for the tests, the benchmark, and wherever a program is wanted that
//! no fuzzer has made. Unlike random bytes, they mostly hit what they wrote before.

use crate::images::entropy::Entropy;

use super::operand::{Features, Kind, Operand};
use super::operation::{OPERATION_BYTES, Operation};
use super::program::Program;
use super::prologue::PROLOGUE_BYTES;

/// What is asked of a generated program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many operations.
    pub operations: usize,
    /// Whether some write compressed clusters.
    pub compressed: bool,
}

/// The program of `rng_seed`. The geometry goes through all cluster sizes and refcount orders with
/// the seed: any 91 seeds in a row have every pair.
pub fn generate(rng_seed: u64, wanted: Wanted) -> Program {
    let mut entropy = Entropy::new(rng_seed);
    let mut bytes = vec![0; PROLOGUE_BYTES];
    bytes[1..].fill_with(|| entropy.next_u64() as u8);
    // One image, with its data in itself: the set that the benchmark runs was frozen before there was more.
    bytes[15..].fill(0);
    bytes[2] = (rng_seed % 13) as u8;
    bytes[3] = (rng_seed % 7) as u8;
    // Version 2 has no zero clusters, no subclusters: one program in eight is enough.
    bytes[1] = u8::from(entropy.one_in(8));
    if entropy.one_in(2) {
        // Extended L2, where the cluster size allows it.
        Features::EXTENDED_L2.encode(&mut &mut bytes[4..5]);
    }
    let mut program = Program::decode(&bytes);
    let extended_l2 = program.prologue.plan().geometry.extended_l2;
    while program.operations.len() < wanted.operations {
        match operation(&mut entropy) {
            Some(Operation::Compress { .. }) if !wanted.compressed => {}
            Some(Operation::Subclusters { .. }) if !extended_l2 => {}
            Some(operation) => program.operations.push(operation),
            None => {}
        }
    }
    program
}

/// One of the operations that random bytes mean, near those before it.
pub fn operation(entropy: &mut Entropy) -> Option<Operation> {
    let mut record = [0; OPERATION_BYTES];
    record.fill_with(|| entropy.next_u64() as u8);
    record[0] = if record[0] < 40 { 0 } else { record[0] };
    let has = |record: &[u8; OPERATION_BYTES], kind| {
        let places = Operation::decode(record)?.places();
        places.iter().find(|place| place.kind == kind)
    };
    if has(&record, Kind::Size).is_some() {
        // Of any magnitude: with operands as below, most disks would be empty ever after.
        return Operation::decode(&record);
    }
    near(&mut record, entropy);
    if let Some(clusters) = has(&record, Kind::Count) {
        // Half of them touch one cluster, few touch many.
        let byte = &mut record[clusters.start];
        *byte = [0, 0, 0, 0, 1, 1, 2, *byte][entropy.below(8) as usize];
    }
    Operation::decode(&record)
}

/// Puts a record's position near the start, near the last operation, or around the edges of tables: where
/// neighbours are.
fn near(record: &mut [u8; OPERATION_BYTES], entropy: &mut Entropy) {
    record[1] = [0, 0, 1, 2, 2, 2, 3, 3, 4][entropy.below(9) as usize];
    let reach = [8, 32, 64][entropy.below(3) as usize];
    record[2] = entropy.below(reach) as u8;
    record[3] = 0;
}
