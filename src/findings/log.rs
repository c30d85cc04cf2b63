//! The events of a run, for people: a text that grows while the run goes on, and the vitals of the last image.

mod printer;

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::limits::MAX_LOGGED;
use crate::disk::observer::{Event, Observer, PrintAccesses, Rare, State, Vital};

use printer::{LogEntry, LogPrinter};

/// A log that prints up to `MAX_LOGGED` events and as many accesses of a run, if it has a place for the text, and keeps
/// vitals.
#[derive(Debug, Default)]
pub struct Log {
    run: RefCell<LoggedRun>,
    text: Arc<SharedText>,
}

/// The text of a run, if it is printed. Threads of an engine may print accesses at the same time.
#[derive(Default)]
struct SharedText(Mutex<Option<RunText>>);

#[derive(Debug, Default)]
struct LoggedRun {
    vitals: [u64; Vital::COUNT],
    /// The vitals of the last image that has ended.
    measured: [u64; Vital::COUNT],
}

/// The text of a run.
struct RunText {
    printer: LogPrinter,
    out: Box<dyn fmt::Write + Send>,
    accesses: usize,
    /// The number of entries that are no accesses.
    others: usize,
    /// The number of entries that exceeded a limit.
    lost: u64,
}

impl Log {
    /// Prints the entries of the next run to `out`, each when it occurs, so that an input that ends its process leaves
    /// its events. After an entry that cannot be written, no other is.
    pub fn print_next_run(&self, out: Box<dyn fmt::Write + Send>) {
        let printer = LogPrinter::default();
        *self.text.lock() = Some(RunText { printer, out, accesses: 0, others: 0, lost: 0 });
    }

    /// Clears everything for the next run.
    pub fn begin_run(&self) {
        *self.run.borrow_mut() = LoggedRun::default();
    }

    /// Ends the text of the run.
    pub fn end_run(&self) {
        if let Some(RunText { mut printer, mut out, lost, .. }) = self.text.lock().take() {
            // The caller meets the same error when it prints the report.
            let _ = printer.end(lost, &mut *out);
        }
    }

    /// Returns the vitals of the last image that are not 0, in order.
    pub fn vitals(&self) -> Vec<(Vital, u64)> {
        let run = self.run.borrow();
        // A run that finds a violation ends before it measures its last image.
        let is_begun = run.vitals.iter().any(|value| *value > 0);
        let vitals = if is_begun { run.vitals } else { run.measured };
        Vital::ALL.iter().copied().zip(vitals).filter(|(_, value)| *value > 0).collect()
    }

    fn print(&self, entry: LogEntry<'_>) {
        self.text.add(entry);
    }
}

impl SharedText {
    /// Returns the text. A panic in the middle of an entry leaves the rest of it unprinted, and no harm.
    fn lock(&self) -> MutexGuard<'_, Option<RunText>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, entry: LogEntry<'_>) {
        let mut text = self.lock();
        let Some(RunText { printer, out, accesses, others, lost }) = &mut *text else { return };
        // Many accesses do not keep later events from the text.
        let entries = if matches!(entry, LogEntry::Access(_)) { accesses } else { others };
        if *entries == MAX_LOGGED {
            *lost += 1;
            return;
        }
        *entries += 1;
        if printer.print(entry, &mut **out).is_err() {
            *text = None;
        }
    }
}

impl PrintAccesses for SharedText {
    fn print(&self, access: &dyn fmt::Display) {
        self.add(LogEntry::Access(access));
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedText").finish_non_exhaustive()
    }
}

impl Observer for Log {
    fn begin(&self, state: State) {
        self.print(LogEntry::Begin(state));
    }

    fn event(&self, state: State, event: Event) {
        self.print(LogEntry::Event(state, event));
    }

    fn rare(&self, rare: Rare) {
        self.print(LogEntry::Rare(rare));
    }

    fn vital(&self, vital: Vital, value: u64) {
        let kept = &mut self.run.borrow_mut().vitals[vital.index()];
        *kept = value.max(*kept);
    }

    fn reason(&self, text: &str) {
        self.print(LogEntry::Reason(text));
    }

    fn measured(&self) {
        let vitals = std::mem::take(&mut self.run.borrow_mut().vitals);
        self.run.borrow_mut().measured = vitals;
        self.print(LogEntry::Measured(&vitals));
    }

    fn access_printer(&self) -> Option<Arc<dyn PrintAccesses>> {
        Some(Arc::<SharedText>::clone(&self.text))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A text of which a copy is kept.
    #[derive(Clone, Default)]
    pub struct Text(pub Arc<Mutex<String>>);

    impl fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
    }

    /// Returns a log, and the text that it prints.
    fn printing() -> (Log, Text) {
        let (log, text) = (Log::default(), Text::default());
        log.print_next_run(Box::new(text.clone()));
        (log, text)
    }

    #[test]
    fn a_chain_is_a_line() {
        let (log, text) = printing();
        log.begin(State::AllocateTable);
        log.begin(State::WalkL2);
        log.event(State::WalkL2, Event::Piece);
        log.event(State::WalkL2, Event::Normal);
        log.event(State::WalkL2, Event::Normal);
        log.rare(Rare::NoHole);
        log.event(State::WalkL2, Event::Failed);
        log.vital(Vital::Extents, 2);
        log.measured();
        log.end_run();
        let expected = "         walk L2  start → piece → normal ×2\n            rare  no hole left\n         \
            walk L2  failed\n          vitals  extents 2\n";
        assert_eq!(*text.0.lock().unwrap(), expected);
        assert_eq!(log.vitals(), [(Vital::Extents, 2)]);
    }

    #[test]
    fn an_event_is_printed_when_it_occurs() {
        let (log, text) = printing();
        log.begin(State::WalkL2);
        log.event(State::WalkL2, Event::Piece);
        // Here the process may end.
        assert_eq!(*text.0.lock().unwrap(), "         walk L2  start → piece");
        log.end_run();
        // Only one run is printed.
        log.event(State::WalkL2, Event::Normal);
        assert_eq!(*text.0.lock().unwrap(), "         walk L2  start → piece\n");
    }

    #[test]
    fn an_access_is_printed_when_it_occurs() {
        let (log, text) = printing();
        let printer = log.access_printer().unwrap();
        log.event(State::Check, Event::Walk);
        printer.print(&"read 0x0");
        std::thread::scope(|scope| scope.spawn(|| printer.print(&"write 0x200")).join()).unwrap();
        let expected = "           check  walk\n        accesses  read 0x0 → write 0x200";
        // Here the process may end.
        assert_eq!(*text.0.lock().unwrap(), expected);
        log.event(State::Check, Event::Lookup);
        log.end_run();
        let expected = format!("{expected}\n           check  lookup\n");
        assert_eq!(*text.0.lock().unwrap(), expected);
    }

    #[test]
    fn accesses_do_not_take_the_place_of_events() {
        let (log, text) = printing();
        log.begin(State::Check);
        let printer = log.access_printer().unwrap();
        (0..MAX_LOGGED + 3).for_each(|_| printer.print(&"read 0x0"));
        log.event(State::Check, Event::Walk);
        log.end_run();
        let text = text.0.lock().unwrap();
        let expected =
            "read 0x0\n           check  start → walk\n               …  3 more entries\n";
        assert!(text.ends_with(expected), "{}", text.len());
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let (log, text) = printing();
        for _ in 0..MAX_LOGGED + 3 {
            log.event(State::Emit, Event::Normal);
        }
        log.end_run();
        assert!(
            text.0.lock().unwrap().ends_with("normal ×65536\n               …  3 more entries\n")
        );
    }
}
