//! Groups of requests that have an effect together: requests in flight on few clusters, where they meet; requests while
//! file operations fail; and writes again and again.

use crate::images::content::Shape;
use crate::images::content::entropy::Entropy;
use crate::programs::operand::{
    Anchor, At, Count, DeviceError, Failures, FileOperation, Gap, Inside, Keep, Number, Operand,
    Skew, SyncKind, TurnOrder,
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
    let Group { before, requests, at_once, has_cut } = together(at, earlier, entropy);
    let count = requests.len().min(usize::from(u8::MAX)) as u8;
    let at_once = at_once.unwrap_or_else(|| 2 + entropy.below(u64::from(count) - 1) as u8);
    let group = Operation::InFlight {
        requests: Number::new(count).unwrap_or(Number::LOWEST),
        at_once: Number::new(at_once).unwrap_or(Number::LOWEST),
        order: order(entropy),
    };
    let cut = (has_cut || entropy.one_in(3)).then(|| cut(entropy));
    before.into_iter().chain([group]).chain(requests).chain(cut).collect()
}

/// Two to four requests, which are in flight together.
struct Group {
    /// A request before them.
    before: Option<Operation>,
    requests: Vec<Operation>,
    /// The number of requests that are in flight at once; `None` for any.
    at_once: Option<u8>,
    /// A cut should follow.
    has_cut: bool,
}

/// Generates requests at a position: five times in seven requests as in the races that writers had, which few random
/// ones repeat.
fn together(at: At, earlier: &[Operation], entropy: &mut Entropy) -> Group {
    let clusters = Count::ONE;
    let flush = Operation::Sync { kind: SyncKind::Flush, choice: 0 };
    let taker = |entropy: &mut Entropy, freed| Operation::Write {
        at: further(freed, 1 + entropy.below(4) as u16),
        clusters,
    };
    let write = Operation::Write { at, clusters };
    let (before, requests, at_once, has_cut) = match entropy.below(7) {
        // A cluster is freed while a request uses it, and used again.
        0 => {
            let mut requests = vec![request(at, entropy)];
            if entropy.one_in(2) {
                // While it is in flight, the first one may take its first steps.
                requests.push(near(further(at, 1), entropy));
            }
            requests.extend([Operation::Discard { at, clusters }, taker(entropy, at)]);
            (None, requests, None, false)
        }
        // A cluster is freed while a write or a read of it waits, and then used again. That one gets there before the
        // request that frees, because the flush is in flight with it.
        1 => {
            let (inside, length) = (Inside::default(), short(entropy));
            let again = match entropy.one_in(2) {
                true => Operation::WriteAt { at, inside, length },
                false => Operation::ReadAt { at, length },
            };
            let discard = Operation::Discard { at, clusters };
            let requests = vec![again, flush, discard, taker(entropy, at)];
            (Some(write), requests, Some(2), false)
        }
        // Two writes change one table and one count: that of the file cluster of two compressed clusters.
        2 => {
            let (at, before) = compressed(at, earlier);
            let writes = [at, further(at, 1)].map(|at| Operation::Write { at, clusters });
            (before, writes.into(), None, true)
        }
        // A read meets a write to a new cluster in its midst: the flushes let it begin later.
        3 => {
            let (at, before) = compressed(at, earlier);
            let requests = vec![
                Operation::WriteAt { at, inside: Inside::default(), length: short(entropy) },
                flush,
                flush,
                Operation::ReadAt { at, length: short(entropy) },
            ];
            (before, requests, Some(2), false)
        }
        // A flush begins behind a write, while another flush is in flight.
        4 => (None, vec![flush, write, flush], None, true),
        _ => {
            let count = 2 + entropy.below(MOST_REQUESTS - 1);
            (None, (0..count).map(|_| near(at, entropy)).collect(), None, false)
        }
    };
    Group { before, requests, at_once, has_cut }
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

/// Returns the position of two compressed clusters of a program, and an operation that compresses them if the program
/// has none. It does so only where requests have not begun.
fn compressed(at: At, earlier: &[Operation]) -> (At, Option<Operation>) {
    let position = |operation: &Operation| match *operation {
        Operation::Compress { at, .. } | Operation::CompressAs { at, .. } => Some(at),
        _ => None,
    };
    if let Some(at) = earlier.iter().rev().find_map(position) {
        return (at, None);
    }
    let clusters = Count::new(2).unwrap_or(Count::ONE);
    let (shape, skew) = (Shape::default(), Skew::Packed);
    (at, Some(Operation::Compress { at, clusters, shape, skew }))
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

/// Returns a position some steps further.
fn further(at: At, steps: u16) -> At {
    At { steps: at.steps.wrapping_add(steps), ..at }
}

/// Generates a request at a position, or one cluster further.
fn near(at: At, entropy: &mut Entropy) -> Operation {
    request(if entropy.one_in(3) { further(at, 1) } else { at }, entropy)
}

/// Generates a cut.
fn cut(entropy: &mut Entropy) -> Operation {
    let kind = if entropy.one_in(2) { SyncKind::Cut } else { SyncKind::Kill };
    Operation::Sync { kind, choice: entropy.next_u64() as u16 }
}

/// The bound of the choices before an operation is held back in an order that is not random. Most have few.
const MOST_IN_ORDER: u64 = 8;

/// Generates an order of file operations. A quarter of the orders are that of the waiting: the requests take turns, as
/// two changes of one count must. In half of the orders, from some point on, the operation that has waited longest
/// waits until all others are done: so a request meets every step of others in its midst. Before that point, half of
/// these orders are that of the waiting. The rest is random.
pub(crate) fn order(entropy: &mut Entropy) -> TurnOrder {
    let random = TurnOrder::from_bits(entropy.next_u64() as u32);
    match entropy.below(4) {
        0 => random.holding_back_from(entropy.below(TurnOrder::CHOICES as u64) as usize),
        1 => {
            let first = entropy.below(MOST_IN_ORDER).min(entropy.below(MOST_IN_ORDER));
            TurnOrder::default().holding_back_from(first as usize)
        }
        2 => TurnOrder::default(),
        _ => random,
    }
}

/// Generates a length, mostly shorter than a cluster.
fn short(entropy: &mut Entropy) -> Gap {
    Gap::new(1 + entropy.below(4) as u8, entropy.below(MAX_LENGTH_SHIFT) as u8)
}

/// Generates a request at a position.
fn request(at: At, entropy: &mut Entropy) -> Operation {
    let inside = if entropy.one_in(2) { Inside::default() } else { Inside(1 << 15) };
    let (length, clusters) = (short(entropy), Count::ONE);
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
            let has_one_before = !matches!(made[0], Operation::InFlight { .. });
            let made = made.split_at(usize::from(has_one_before)).1;
            let [Operation::InFlight { requests, at_once, .. }, rest @ ..] = made else {
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
