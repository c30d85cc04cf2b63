//! Groups of requests that have an effect together: requests in flight on few clusters, where they meet; requests while
//! file operations fail; and writes again and again.

use crate::images::content::entropy::Entropy;
use crate::programs::operand::{
    Anchor, At, Count, DeviceError, Failures, FileOperation, Gap, Inside, Keep, Number, Operand,
    SyncKind, TurnOrder,
};
use crate::programs::operation::Operation;

use super::position_of;

/// The most requests of a group.
const MOST_REQUESTS: u64 = 4;
/// The most clusters that are written again and again.
const MOST_REWRITTEN: u64 = 8;
/// The fewest times that they are written.
const LEAST_TIMES: usize = 4;
/// The largest shift of a length: most requests are shorter than a cluster.
const MAX_LENGTH_SHIFT: u64 = 10;

/// Generates requests in flight, behind the operation that groups them. Most are about one cluster, or about the next
/// one.
pub(crate) fn flight(entropy: &mut Entropy, earlier: &[Operation]) -> Vec<Operation> {
    let at = position(entropy, earlier);
    let (requests, has_cut) = together(at, entropy);
    let count = requests.len().min(usize::from(u8::MAX)) as u8;
    let at_once = 2 + entropy.below(u64::from(count) - 1) as u8;
    let group = Operation::InFlight {
        requests: Number::new(count).unwrap_or(Number::LOWEST),
        at_once: Number::new(at_once).unwrap_or(Number::LOWEST),
        order: order(entropy),
    };
    let cut = (has_cut || entropy.one_in(3)).then(|| cut(entropy));
    std::iter::once(group).chain(requests).chain(cut).collect()
}

/// Generates two to four requests at a position, and returns whether a cut should follow: two times in three requests
/// as in the races that writers had, which few random ones repeat.
fn together(at: At, entropy: &mut Entropy) -> (Vec<Operation>, bool) {
    let clusters = Count::ONE;
    let flush = Operation::Sync { kind: SyncKind::Flush, choice: 0 };
    let behind = |steps: u16| At { steps: at.steps.wrapping_add(steps), ..at };
    match entropy.below(6) {
        // A cluster is freed while a request uses it, and used again.
        0 | 1 => {
            let taker = Operation::Write { at: behind(1 + entropy.below(4) as u16), clusters };
            let mut requests = vec![request(at, entropy)];
            if entropy.one_in(2) {
                // While it is in flight, the first one may take its first steps.
                requests.push(near(behind(1), entropy));
            }
            requests.extend([Operation::Discard { at, clusters }, taker]);
            (requests, false)
        }
        // Two writes change one table and one count.
        2 => {
            let writes = [at, behind(1)].map(|at| Operation::Write { at, clusters });
            (writes.into(), true)
        }
        // A flush begins behind a write, while another flush is in flight.
        3 => (vec![flush, Operation::Write { at, clusters }, flush], true),
        _ => {
            let count = 2 + entropy.below(MOST_REQUESTS - 1);
            ((0..count).map(|_| near(at, entropy)).collect(), false)
        }
    }
}

/// Generates requests while some operations on the files fail.
pub(crate) fn failing(entropy: &mut Entropy, earlier: &[Operation]) -> Vec<Operation> {
    let at = position(entropy, earlier);
    let of = FileOperation::ALL[entropy.below(FileOperation::ALL.len() as u64) as usize];
    let error = [DeviceError::Io, DeviceError::Full, DeviceError::Short];
    let magnitude = 1 + entropy.below(4);
    let fault = Operation::FailFile {
        of,
        before: entropy.below(1 << magnitude) as u8,
        error: error[entropy.below(3) as usize],
        failures: if entropy.one_in(3) { Failures::All } else { Failures::One },
    };
    let mut made = vec![fault];
    for _ in 0..1 + entropy.below(MOST_REQUESTS - 1) {
        made.push(near(at, entropy));
    }
    if entropy.one_in(3) {
        made.push(cut(entropy));
    }
    made
}

/// Generates writes of the same clusters, which are freed after each.
pub(crate) fn rewriting(entropy: &mut Entropy, earlier: &[Operation]) -> Vec<Operation> {
    let at = position(entropy, earlier);
    let clusters = Count::new(1 + entropy.below(MOST_REWRITTEN) as u8).unwrap_or(Count::ONE);
    let free = match entropy.one_in(2) {
        true => Operation::Discard { at, clusters },
        false => Operation::Zero { at, clusters, keep: Keep::default() },
    };
    let times = LEAST_TIMES << entropy.below(3);
    [Operation::Write { at, clusters }, free].repeat(times)
}

/// Returns a position: half of the time that of one of the operations `earlier`, else one near the start of the disk.
fn position(entropy: &mut Entropy, earlier: &[Operation]) -> At {
    let nth = entropy.below(earlier.len().max(1) as u64) as usize;
    let of_earlier = earlier.get(nth).and_then(|one| {
        let place = position_of(one)?;
        Some(At::decode(&mut one.encode().get(place)?))
    });
    let near_start = At { anchor: Anchor::Start, steps: entropy.below(8) as u16 };
    of_earlier.filter(|_| entropy.one_in(2)).unwrap_or(near_start)
}

/// Generates a request at a position, or one cluster further.
fn near(at: At, entropy: &mut Entropy) -> Operation {
    let next = At { steps: at.steps.wrapping_add(1), ..at };
    request(if entropy.one_in(3) { next } else { at }, entropy)
}

/// Generates a cut.
fn cut(entropy: &mut Entropy) -> Operation {
    let kind = if entropy.one_in(2) { SyncKind::Cut } else { SyncKind::Kill };
    Operation::Sync { kind, choice: entropy.next_u64() as u16 }
}

/// Generates an order of file operations.
pub(crate) fn order(entropy: &mut Entropy) -> TurnOrder {
    TurnOrder::from_bits(entropy.next_u64() as u32)
}

/// Generates a request at a position.
fn request(at: At, entropy: &mut Entropy) -> Operation {
    let inside = if entropy.one_in(2) { Inside::default() } else { Inside(1 << 15) };
    let length = Gap::new(1 + entropy.below(4) as u8, entropy.below(MAX_LENGTH_SHIFT) as u8);
    let clusters = Count::ONE;
    match entropy.below(13) {
        0..4 => Operation::WriteAt { at, inside, length },
        4 => Operation::Write { at, clusters },
        5 => Operation::ZeroAt { at, inside, length },
        6 => Operation::Zero { at, clusters, keep: Keep::default() },
        7..9 => Operation::Discard { at, clusters },
        9..11 => Operation::ReadAt { at, length },
        _ => Operation::Sync { kind: SyncKind::Flush, choice: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_as_many_requests_behind_it_as_it_says() {
        let mut entropy = Entropy::new(7);
        for _ in 0..200 {
            let made = flight(&mut entropy, &[]);
            let [Operation::InFlight { requests, at_once, .. }, rest @ ..] = &*made else {
                panic!("{made:?}")
            };
            let is_cut = |it: &&Operation| {
                matches!(it, Operation::Sync { kind: SyncKind::Cut | SyncKind::Kill, .. })
            };
            assert_eq!(usize::from(requests.get()), rest.iter().filter(|it| !is_cut(it)).count());
            assert!(at_once.get() <= requests.get());
        }
    }
}
