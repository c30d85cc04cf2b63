//! Requests in flight: a *flight* is a group of requests of a guest that an engine carries out at the same time. One
//! thread polls them, and the schedule of the program decides which of the waiting file operations happens next.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use crate::disk::offsets::GuestOffset;
use crate::harness::engine::failure::EngineError;
use crate::harness::engine::request::Request;
use crate::harness::files::turns::Turns;
use crate::programs::operand::TurnOrder;
use crate::programs::request::Schedule;

/// The answer of an engine to a request.
type Done = Result<(), EngineError>;

/// The most rounds of polling. A request that always wakes itself would otherwise run for ever.
const MAX_POLLS: u32 = 1 << 20;

/// A request that is in flight.
#[derive(Debug)]
pub enum FlightRequest<'f> {
    /// Fills `into` with the guest's bytes from `guest` on.
    Read {
        /// The first byte.
        guest: GuestOffset,
        /// The bytes.
        into: &'f mut [u8],
    },
    /// Changes the disk, or flushes it: a write, zeroes, a discard, a flush.
    Change(Request<'f>),
}

/// The requests of a flight, in the order in which they begin.
pub struct Flights<'f> {
    requests: Vec<FlightRequest<'f>>,
    /// The most requests that are in flight at the same time. A further one begins when one ends.
    at_once: usize,
    order: TurnOrder,
    turns: &'f Turns,
    note: &'f mut dyn FnMut(FlightEvent),
}

/// An event of the request with this index.
#[derive(Debug)]
pub(crate) enum FlightEvent {
    /// The engine gets the request.
    Begun(usize),
    /// The engine has answered.
    Ended(usize, Done),
}

impl<'f> Flights<'f> {
    /// Creates a flight of requests, in the order in which they begin. `note` gets the events of each.
    pub(crate) fn new(
        requests: Vec<FlightRequest<'f>>,
        schedule: &Schedule,
        turns: &'f Turns,
        note: &'f mut dyn FnMut(FlightEvent),
    ) -> Self {
        let (at_once, order) = (schedule.at_once.into(), schedule.order);
        Self { requests, at_once, order, turns, note }
    }

    /// Carries out the requests: `carry_out` returns the future of each, when it begins. The futures await
    /// [`ChainFile::turn`](crate::harness::files::chain::ChainFile::turn) before each operation on a file.
    ///
    /// # Errors
    /// The requests wait for each other, and not for a file; or they never end.
    pub fn run<F: Future<Output = Done>>(
        self,
        carry_out: impl FnMut(FlightRequest<'f>) -> F,
    ) -> Done {
        // Also if the engine panics, later operations do not wait.
        let _open = OpenTurns::new(self.turns);
        self.run_in_turns(carry_out)
    }

    fn run_in_turns<F: Future<Output = Done>>(
        self,
        mut carry_out: impl FnMut(FlightRequest<'f>) -> F,
    ) -> Done {
        let Self { requests, at_once, order, turns, note } = self;
        let (mut later, mut choices) = (requests.into_iter().enumerate(), order.choices());
        let mut tasks: Vec<Task<F>> = Vec::with_capacity(at_once);
        for _ in 0..MAX_POLLS {
            while tasks.len() < at_once.max(1)
                && let Some((index, request)) = later.next()
            {
                note(FlightEvent::Begun(index));
                tasks.push(Task::new(index, carry_out(request)));
            }
            if tasks.is_empty() {
                return Ok(());
            }
            let mut has_polled = false;
            tasks.retain_mut(|task| match task.poll(turns) {
                None => true,
                Some(Poll::Pending) => {
                    has_polled = true;
                    true
                }
                Some(Poll::Ready(answer)) => {
                    has_polled = true;
                    note(FlightEvent::Ended(task.index, answer));
                    false
                }
            });
            // A request may have woken another one.
            if !has_polled && !turns.grant(choices.next().unwrap_or_default()) {
                return Err(EngineError::untyped("requests in flight that wait for each other"));
            }
        }
        Err(EngineError::untyped("requests in flight that never end"))
    }
}

/// Opens the turns, and closes them when it is dropped.
struct OpenTurns<'f>(&'f Turns);

impl<'f> OpenTurns<'f> {
    fn new(turns: &'f Turns) -> Self {
        turns.open();
        Self(turns)
    }
}

impl Drop for OpenTurns<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A request that the engine is carrying out.
struct Task<F> {
    index: usize,
    future: Pin<Box<F>>,
    awake: Arc<Awake>,
    waker: Waker,
}

/// The future of a request can go on.
struct Awake(AtomicBool);

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl<F: Future<Output = Done>> Task<F> {
    fn new(index: usize, future: F) -> Self {
        let awake = Arc::new(Awake(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&awake));
        Self { index, future: Box::pin(future), awake, waker }
    }

    /// Polls the future, if it can go on.
    fn poll(&mut self, turns: &Turns) -> Option<Poll<Done>> {
        let is_awake = self.awake.0.swap(false, Relaxed);
        turns.poll(self.index);
        is_awake.then(|| self.future.as_mut().poll(&mut Context::from_waker(&self.waker)))
    }
}
