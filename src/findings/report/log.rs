//! The events of a run, for people: a text that grows while the run goes on, and the vitals of the last image.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::limits::MAX_LOGGED;
use crate::disk::observer::{Event, Observer, PrintAccesses, Rare, State, Vital};

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

    fn line(&self, name: &str, text: &str) {
        self.text.add(false, |printer, out| printer.line(name, text, out));
    }
}

impl SharedText {
    /// Returns the text. A panic in the middle of an entry leaves the rest of it unprinted, and no harm.
    fn lock(&self) -> MutexGuard<'_, Option<RunText>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(
        &self,
        is_access: bool,
        print: impl FnOnce(&mut LogPrinter, &mut dyn fmt::Write) -> fmt::Result,
    ) {
        let mut text = self.lock();
        let Some(RunText { printer, out, accesses, others, lost }) = &mut *text else { return };
        // Many accesses do not keep later events from the text.
        let entries = if is_access { accesses } else { others };
        if *entries == MAX_LOGGED {
            *lost += 1;
            return;
        }
        *entries += 1;
        if print(printer, &mut **out).is_err() {
            *text = None;
        }
    }
}

impl PrintAccesses for SharedText {
    fn print(&self, access: &dyn fmt::Display) {
        self.add(true, |printer, out| printer.access(access, out));
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedText").finish_non_exhaustive()
    }
}

impl Observer for Log {
    fn begin(&self, state: State) {
        self.text.add(false, |printer, out| printer.begin(state, out));
    }

    fn event(&self, state: State, event: Event) {
        self.text.add(false, |printer, out| printer.event(state, event, out));
    }

    fn rare(&self, rare: Rare) {
        self.line("rare", rare.name());
    }

    fn vital(&self, vital: Vital, value: u64) {
        let kept = &mut self.run.borrow_mut().vitals[vital.index()];
        *kept = value.max(*kept);
    }

    fn reason(&self, text: &str) {
        self.line("reason", text);
    }

    fn measured(&self) {
        let vitals = std::mem::take(&mut self.run.borrow_mut().vitals);
        self.run.borrow_mut().measured = vitals;
        self.text.add(false, |printer, out| {
            let values = Vital::ALL.iter().zip(vitals).filter(|(_, value)| *value > 0);
            let named = values.map(|(vital, value)| format!("{} {value}", vital.name()));
            printer.line("vitals", &named.collect::<Vec<_>>().join(", "), out)
        });
    }

    fn access_printer(&self) -> Option<Arc<dyn PrintAccesses>> {
        Some(Arc::<SharedText>::clone(&self.text))
    }
}

/// Prints entries: a line for each chain, with the state and then the events. An event is printed when it occurs, and
/// the number of its repetitions (`×3`) when something else follows. Accesses to files have lines of their own, too.
/// All entries of a run go to the same place.
#[derive(Default)]
struct LogPrinter {
    /// The state of the chain, if there is one. Its line begins with the first event.
    state: Option<State>,
    /// The chain has begun, and no event has followed.
    begins: bool,
    /// The last event of the line, and how often it occurred.
    last: Option<(Event, u32)>,
    /// The line has accesses to files, and no events.
    has_accesses: bool,
}

impl LogPrinter {
    /// Begins a chain. Its line begins with the first event.
    fn begin(&mut self, state: State, out: &mut dyn fmt::Write) -> fmt::Result {
        self.end_line(out)?;
        (self.state, self.begins) = (Some(state), true);
        Ok(())
    }

    /// Ends the text. `lost` entries are not printed.
    fn end(&mut self, lost: u64, out: &mut dyn fmt::Write) -> fmt::Result {
        match lost {
            0 => self.end_line(out),
            _ => self.line("…", &format!("{lost} more entries"), out),
        }
    }

    fn event(&mut self, state: State, event: Event, out: &mut dyn fmt::Write) -> fmt::Result {
        if self.has_accesses {
            self.end_line(out)?;
        }
        if self.state != Some(state) {
            self.end_line(out)?;
            (self.state, self.begins) = (Some(state), false);
        }
        if let Some((last, count)) = &mut self.last
            && *last == event
        {
            *count += 1;
            return Ok(());
        }
        match self.last {
            None => write!(out, "{:>16}  ", state.name())?,
            Some(_) => self.end_event(out)?,
        }
        if std::mem::take(&mut self.begins) {
            write!(out, "{} → ", Event::Start.name())?;
        } else if self.last.is_some() {
            out.write_str(" → ")?;
        }
        self.last = Some((event, 1));
        out.write_str(event.name())
    }

    fn access(&mut self, access: &dyn fmt::Display, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.has_accesses {
            true => write!(out, " → {access}"),
            false => {
                self.end_line(out)?;
                self.has_accesses = true;
                write!(out, "{:>16}  {access}", "accesses")
            }
        }
    }

    /// Prints how often the last event occurred, if more than once.
    fn end_event(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.last {
            Some((_, count)) if count > 1 => write!(out, " ×{count}"),
            _ => Ok(()),
        }
    }

    /// Ends the line of a chain or of accesses. A chain without events has no line yet, and can still begin.
    fn end_line(&mut self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.end_event(out)?;
        let has_events = self.last.take().is_some();
        if has_events {
            (self.state, self.begins) = (None, false);
        }
        match std::mem::take(&mut self.has_accesses) || has_events {
            true => out.write_str("\n"),
            false => Ok(()),
        }
    }

    /// Prints a line of its own.
    fn line(&mut self, name: &str, text: &str, out: &mut dyn fmt::Write) -> fmt::Result {
        self.end_line(out)?;
        writeln!(out, "{name:>16}  {text}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A text that all clones share, so that a test can read it after a log has printed to it.
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
}
