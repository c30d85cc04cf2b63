//! A stack of its own for code that asks: it waits there for answers, and the caller of the library gets them on the
//! caller's stack, in its own time. If an answer never comes, because a callback has left by `longjmp` or an exception,
//! the code that waits gets no answer to this question and to all further ones, and runs to its end.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// The size of a stack. Only pages that are used take memory.
const STACK_BYTES: usize = 8 << 20;

/// The place where code that runs on a stage leaves its questions and finds the answers.
pub(crate) struct Exchange<Q, A> {
    question: Cell<Option<Q>>,
    answer: Cell<Option<A>>,
    /// The way back to the caller's stack while the stage runs; else null.
    back: Cell<*const Yielder<(), ()>>,
    /// No question gets an answer any more.
    is_abandoned: Cell<bool>,
}

impl<Q, A> Default for Exchange<Q, A> {
    fn default() -> Self {
        let (question, answer, is_abandoned) = Default::default();
        Self { question, answer, back: Cell::new(std::ptr::null()), is_abandoned }
    }
}

impl<Q, A> Exchange<Q, A> {
    /// Takes the question of the code that waits.
    pub(crate) fn question(&self) -> Option<Q> {
        self.question.take()
    }

    /// Asks a question, and waits for the answer. Returns `None` if there is none: the code does not run on a stage, or
    /// the caller has abandoned it.
    pub(crate) fn ask(&self, question: Q) -> Option<A> {
        if self.is_abandoned.get() {
            return None;
        }
        self.question.set(Some(question));
        // SAFETY: the pointer is null, or that of the yielder that the coroutine lent to the closure of `Stage::begin`,
        // which has not returned: it resets the pointer when it returns or unwinds.
        let back = unsafe { self.back.get().as_ref() }?;
        back.suspend(());
        self.answer.take()
    }
}

/// The end of the code on a stage: its result, or the payload of its panic.
pub(crate) type Ended<T> = Result<T, Box<dyn Any + Send>>;

/// The next step of a stage.
pub(crate) enum Step<T> {
    /// The code asks, and waits for the answer: [`Exchange::question`] has the question.
    Asks,
    /// The code has ended.
    Ends(Ended<T>),
}

/// A thread, which no other one equals as long as it lives. A comparison of `ThreadId` counts a reference each time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread(*const u8);

impl Thread {
    #[inline]
    fn current() -> Self {
        thread_local!(static PLACE: u8 = const { 0 });
        Self(PLACE.with(std::ptr::from_ref))
    }
}

/// A stack, and the code that runs on it.
pub(crate) struct Stage<Q, A, T: 'static> {
    exchange: Rc<Exchange<Q, A>>,
    coroutine: Option<Coroutine<(), (), T>>,
    /// The stack, while no code runs on it.
    stack: Option<DefaultStack>,
    /// The thread in which the code began: it must go on in the same.
    thread: Thread,
}

impl<Q: 'static, A: 'static, T: 'static> Stage<Q, A, T> {
    /// Creates a stage whose code asks through `exchange`.
    pub(crate) fn new(exchange: Rc<Exchange<Q, A>>) -> Self {
        Self { exchange, coroutine: None, stack: None, thread: Thread::current() }
    }

    /// Reports whether code waits for an answer.
    pub(crate) fn is_waiting(&self) -> bool {
        self.coroutine.is_some()
    }

    /// Reports whether code waits for an answer, and this is another thread than its own.
    pub(crate) fn is_of_other_thread(&self) -> bool {
        self.is_waiting() && self.thread != Thread::current()
    }

    /// Begins to run `code`, up to its first question. No other code may wait.
    ///
    /// # Errors
    /// The system has no memory for the stack.
    pub(crate) fn begin(&mut self, code: impl FnOnce() -> T + 'static) -> io::Result<Step<T>> {
        self.abandon();
        let stack = match self.stack.take() {
            Some(stack) => stack,
            None => DefaultStack::new(STACK_BYTES)?,
        };
        let exchange = Rc::clone(&self.exchange);
        self.thread = Thread::current();
        self.coroutine = Some(Coroutine::with_stack(stack, move |back: &Yielder<(), ()>, ()| {
            exchange.back.set(back);
            let _reset = Reset(&exchange.back);
            code()
        }));
        Ok(self.resume())
    }

    /// Answers the question of the code that waits, which runs up to its next one. Returns `None` if no code waits.
    pub(crate) fn answer(&mut self, answer: A) -> Option<Step<T>> {
        self.exchange.answer.set(Some(answer));
        self.is_waiting().then(|| self.resume())
    }

    fn resume(&mut self) -> Step<T> {
        let Some(coroutine) = &mut self.coroutine else {
            return Step::Ends(Err(Box::new("no code runs")));
        };
        match catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))) {
            Ok(CoroutineResult::Yield(())) => Step::Asks,
            Ok(CoroutineResult::Return(result)) => {
                self.keep_stack();
                Step::Ends(Ok(result))
            }
            Err(panic) => {
                self.keep_stack();
                Step::Ends(Err(panic))
            }
        }
    }

    fn keep_stack(&mut self) {
        self.stack = self.coroutine.take().map(Coroutine::into_stack);
    }

    /// Has the code that waits run to its end without another answer, if there is any.
    pub(crate) fn abandon(&mut self) {
        if self.is_waiting() {
            self.exchange.answer.set(None);
            self.exchange.is_abandoned.set(true);
            // The code asks nothing more, so this is its end.
            let _ = self.resume();
            self.exchange.is_abandoned.set(false);
        }
    }
}

impl<Q, A, T> Drop for Stage<Q, A, T> {
    fn drop(&mut self) {
        // The owner of the stage abandons it first, because code that waits would be unwound.
        debug_assert!(self.coroutine.is_none());
    }
}

/// Resets the way back when the code ends or unwinds.
struct Reset<'e>(&'e Cell<*const Yielder<(), ()>>);

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        self.0.set(std::ptr::null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_asks_and_goes_on_with_the_answer() {
        let exchange: Rc<Exchange<u32, u32>> = Rc::default();
        let mut stage = Stage::new(Rc::clone(&exchange));
        for _ in 0..2 {
            let asking = Rc::clone(&exchange);
            let code = move || asking.ask(1).unwrap() + asking.ask(2).unwrap();
            assert!(matches!(stage.begin(code).unwrap(), Step::Asks));
            assert_eq!(exchange.question(), Some(1));
            assert!(matches!(stage.answer(10), Some(Step::Asks)));
            assert_eq!(exchange.question(), Some(2));
            let Some(Step::Ends(Ok(32))) = stage.answer(22) else { panic!() };
            assert!(stage.answer(0).is_none());
        }
        assert_eq!(exchange.ask(3), None);
    }

    #[test]
    fn code_that_is_abandoned_runs_to_its_end() {
        let exchange: Rc<Exchange<u32, u32>> = Rc::default();
        let (mut stage, answers) = (Stage::new(Rc::clone(&exchange)), Rc::new(Cell::new(0)));
        let (asking, noted) = (Rc::clone(&exchange), Rc::clone(&answers));
        let begun = stage.begin(move || {
            let first = asking.ask(1);
            let second = asking.ask(2);
            noted.set(if (first, second) == (None, None) { 1 } else { 2 });
        });
        assert!(matches!(begun, Ok(Step::Asks)));
        stage.abandon();
        assert!(answers.get() == 1 && !stage.is_waiting());
        let again = stage.begin(|| panic!("as planned")).unwrap();
        let Step::Ends(Err(panic)) = again else { panic!() };
        assert_eq!(panic.downcast_ref(), Some(&"as planned"));
    }
}
