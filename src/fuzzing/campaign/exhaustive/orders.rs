//! All orders of requests in flight, one after the other, as an odometer counts.

use crate::programs::operand::TurnOrder;

/// Returns the order after this one; `None` after the last. `widths` are the numbers of operations that waited at each
/// choice of the run with this order.
pub(super) fn next(order: TurnOrder, widths: &[u8]) -> Option<TurnOrder> {
    let mut choices: Vec<u8> = order.choices().map(|choice| choice as u8).collect();
    choices.truncate(widths.len());
    while let Some(choice) = choices.pop() {
        let width = usize::from(widths.get(choices.len()).copied().unwrap_or_default());
        if usize::from(choice) + 1 < width.min(TurnOrder::MOST_WAITING) {
            choices.push(choice + 1);
            let bits = choices.iter().rev().fold(0, |bits, choice| bits << 2 | u32::from(*choice));
            return Some(TurnOrder::from_bits(bits));
        }
    }
    None
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
            let (mut widths, mut ran) = (Vec::new(), Vec::new());
            for choice in now.choices() {
                if queue.is_empty() {
                    break;
                }
                widths.push(queue.len() as u8);
                let request = queue.remove(choice % queue.len());
                ran.push(request);
                left[request] -= 1;
                if left[request] > 0 {
                    queue.push(request);
                }
            }
            assert!(seen.insert(ran), "{now}");
            order = next(now, &widths);
        }
        assert_eq!(seen.len(), 10);
    }
}
