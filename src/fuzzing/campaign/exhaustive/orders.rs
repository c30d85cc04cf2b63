//! All orders of requests in flight, one after the other, as an odometer counts.

use crate::harness::files::turns::TakenTurn;
use crate::programs::operand::TurnOrder;

/// Returns the order after this one; `None` after the last. `taken` are the turns of the run with this order.
pub(super) fn next(order: TurnOrder, taken: &[TakenTurn]) -> Option<TurnOrder> {
    let mut choices: Vec<usize> = order.choices().take(taken.len()).collect();
    while let Some(choice) = choices.pop() {
        let waiting = taken.get(choices.len()).map_or(0, |turn| turn.waiting);
        if choice + 1 < waiting.min(TurnOrder::MOST_WAITING) {
            choices.push(choice + 1);
            let bits = choices.iter().rev().fold(0, |bits, choice| bits << 2 | *choice as u32);
            return Some(TurnOrder::from_bits(bits));
        }
    }
    None
}

/// Reports whether a run had choices that an order does not have: behind its last one, or among more operations.
pub(super) fn has_more(taken: &[TakenTurn]) -> bool {
    let mut behind = taken.iter().skip(TurnOrder::CHOICES);
    behind.any(|turn| turn.waiting > 1)
        || taken.iter().any(|turn| turn.waiting > TurnOrder::MOST_WAITING)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Two requests of three and two steps: all ways to mix them.
    #[test]
    fn each_order_comes_once() {
        let (mut order, mut seen) = (Some(TurnOrder::default()), BTreeSet::new());
        while let Some(now) = order {
            // The longer one is first in the queue at the beginning; a request waits again after each step.
            let (mut queue, mut left) = (vec![0usize, 1], [3, 2]);
            let (mut taken, mut ran) = (Vec::new(), Vec::new());
            for choice in now.choices() {
                if queue.is_empty() {
                    break;
                }
                taken.push(TakenTurn { waiting: queue.len(), ..TakenTurn::default() });
                let request = queue.remove(choice % queue.len());
                ran.push(request);
                left[request] -= 1;
                if left[request] > 0 {
                    queue.push(request);
                }
            }
            assert!(seen.insert(ran), "{now}");
            order = next(now, &taken);
        }
        assert_eq!(seen.len(), 10);
    }
}
