//! The turns of file operations while several requests are in flight: each operation waits until the schedule of the
//! program picks it. Nothing else decides the order of polled futures, so that a program has the same order on every
//! machine.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::programs::operand::{FileOperation, TurnOrder};

/// The operations of a chain's files that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Operations wait: requests are in flight.
    is_open: AtomicBool,
    /// The index of the request that is polled.
    polled: AtomicUsize,
    queue: Mutex<TurnQueue>,
}

#[derive(Debug, Default)]
struct TurnQueue {
    /// The operations that wait, in the order in which the engine has asked for them.
    waiting: Vec<WaitingTurn>,
    /// The number of operations that have waited so far.
    asked: u64,
    /// The turns so far, at most [`MAX_TAKEN`].
    taken: SmallVec<[TakenTurn; TurnOrder::CHOICES]>,
}

/// The most turns that are kept: more than the requests of a program need.
const MAX_TAKEN: usize = 1 << 10;

/// A turn that a request has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenTurn {
    /// The index of the request, in the order in which they begin.
    pub(crate) request: usize,
    /// The number of operations that waited, with this one.
    #[cfg_attr(
        not(feature = "fuzzer"),
        expect(dead_code, reason = "an exhaustive search reads it")
    )]
    pub(crate) waiting: usize,
    /// The number of operations on files of each kind until the next turn, in the order of [`FileOperation::ALL`].
    pub(crate) operations: [u16; FileOperation::ALL.len()],
}

#[derive(Debug)]
struct WaitingTurn {
    number: u64,
    request: usize,
    waker: Waker,
}

impl Turns {
    /// Has operations wait from now on.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Relaxed);
        self.lock().taken.clear();
    }

    /// Notes the request that is polled from now on.
    pub(crate) fn poll(&self, request: usize) {
        self.polled.store(request, Relaxed);
    }

    /// Notes an operation on a file.
    pub(crate) fn note(&self, operation: FileOperation) {
        if self.is_open.load(Relaxed)
            && let Some(turn) = self.lock().taken.last_mut()
        {
            let count = &mut turn.operations[operation as usize];
            *count = count.saturating_add(1);
        }
    }

    /// Returns the turns since they were opened last.
    pub(crate) fn taken(&self) -> SmallVec<[TakenTurn; TurnOrder::CHOICES]> {
        self.lock().taken.clone()
    }

    /// Has all operations go on that wait, and no later one wait.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Relaxed);
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(|turn| turn.waker.wake());
    }

    /// Lets one of the waiting operations happen: the one at index `choice`, modulo their number. Returns false if none
    /// waits.
    pub(crate) fn grant(&self, choice: usize) -> bool {
        let granted = {
            let mut queue = self.lock();
            let waiting = queue.waiting.len();
            let index = choice.checked_rem(waiting);
            let granted = index.map(|index| queue.waiting.remove(index));
            if let Some(WaitingTurn { request, .. }) = granted
                && queue.taken.len() < MAX_TAKEN
            {
                queue.taken.push(TakenTurn { request, waiting, ..TakenTurn::default() });
            }
            granted
        };
        granted.inspect(|turn| turn.waker.wake_by_ref()).is_some()
    }

    /// Returns a turn for an operation.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn { turns: self, number: None }
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        // Nothing panics while it holds the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of an operation on a file. It is there at once, unless requests are in flight.
#[derive(Debug)]
#[must_use = "an operation happens when its turn has come"]
pub struct Turn<'f> {
    turns: &'f Turns,
    /// The number of the operation, once it waits.
    number: Option<u64>,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if self.number.is_none() && !self.turns.is_open.load(Relaxed) {
            return Poll::Ready(());
        }
        let mut queue = self.turns.lock();
        let waker = context.waker().clone();
        match self.number {
            None => {
                let number = queue.asked;
                queue.asked += 1;
                let request = self.turns.polled.load(Relaxed);
                queue.waiting.push(WaitingTurn { number, request, waker });
                drop(queue);
                self.number = Some(number);
                Poll::Pending
            }
            Some(number) => match queue.waiting.iter_mut().find(|turn| turn.number == number) {
                Some(turn) => {
                    turn.waker = waker;
                    Poll::Pending
                }
                None => Poll::Ready(()),
            },
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.turns.lock().waiting.retain(|turn| turn.number != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(turn: &mut Turn) -> bool {
        Pin::new(turn).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_operation_waits_only_while_requests_are_in_flight() {
        let turns = Turns::default();
        assert!(poll(&mut turns.turn()));
        turns.open();
        let mut waits = turns.turn();
        assert!(!poll(&mut waits));
        turns.close();
        assert!(poll(&mut waits) && poll(&mut turns.turn()));
    }

    #[test]
    fn the_choice_selects_the_operation() {
        let turns = Turns::default();
        turns.open();
        assert!(!turns.grant(0));
        let mut all = [turns.turn(), turns.turn(), turns.turn()];
        all.iter_mut().for_each(|turn| assert!(!poll(turn)));
        assert!(turns.grant(4));
        assert_eq!(all.each_mut().map(poll), [false, true, false]);
        assert!(turns.grant(2));
        assert_eq!(all.each_mut().map(poll), [true, true, false]);
        drop(all);
        assert!(!turns.grant(0));
    }
}
