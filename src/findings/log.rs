//! A log of a run's events, for people.

use std::cell::RefCell;
use std::fmt;

use crate::disk::limits::MAX_LOGGED;
use crate::disk::observer::{Event, Observer, Rare, State, Vital};

/// A log that keeps events in order, up to `MAX_LOGGED` entries.
#[derive(Debug, Default)]
pub struct Log {
    kept: RefCell<LoggedEvents>,
}

#[derive(Debug, Default)]
struct LoggedEvents {
    entries: Vec<LogEntry>,
    /// The number of entries that exceeded the limit.
    lost: u64,
    vitals: [u64; Vital::COUNT],
}

/// An entry of the log.
#[derive(Clone, Debug)]
enum LogEntry {
    /// The start of a chain.
    Begin(State),
    /// An event.
    Event(State, Event),
    /// A rare event.
    Rare(Rare),
    /// The reason of an error.
    Reason(String),
    /// The end of an image, with its vitals in order.
    Measured([u64; Vital::COUNT]),
}

impl Log {
    /// Creates an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries that exceeded the limit.
    pub fn lost(&self) -> u64 {
        self.kept.borrow().lost
    }

    /// Clears everything for the next run.
    pub fn begin_run(&self) {
        *self.kept.borrow_mut() = LoggedEvents::default();
    }

    /// Returns the vitals of the last image that are not 0, in order.
    pub fn vitals(&self) -> Vec<(Vital, u64)> {
        let kept = self.kept.borrow();
        let measured = kept.entries.iter().rev().find_map(|entry| match entry {
            LogEntry::Measured(vitals) => Some(*vitals),
            _ => None,
        });
        // A run that finds a violation ends before it measures its last image.
        let begun = Some(kept.vitals).filter(|vitals| vitals.iter().any(|value| *value > 0));
        let vitals = begun.or(measured).unwrap_or_default();
        Vital::ALL.iter().copied().zip(vitals).filter(|(_, value)| *value > 0).collect()
    }

    fn push(&self, entry: LogEntry) {
        let mut kept = self.kept.borrow_mut();
        match kept.entries.len() < MAX_LOGGED {
            true => kept.entries.push(entry),
            false => kept.lost += 1,
        }
    }
}

impl Observer for Log {
    fn begin(&self, state: State) {
        self.push(LogEntry::Begin(state));
    }

    fn event(&self, state: State, event: Event) {
        self.push(LogEntry::Event(state, event));
    }

    fn rare(&self, rare: Rare) {
        self.push(LogEntry::Rare(rare));
    }

    fn vital(&self, vital: Vital, value: u64) {
        let kept = &mut self.kept.borrow_mut().vitals[vital.index()];
        *kept = value.max(*kept);
    }

    fn reason(&self, text: &str) {
        self.push(LogEntry::Reason(text.to_string()));
    }

    fn measured(&self) {
        let vitals = std::mem::take(&mut self.kept.borrow_mut().vitals);
        self.push(LogEntry::Measured(vitals));
    }
}

/// Prints a line for each chain: the state, then the events. `×` and a number follow an event that repeats.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.borrow();
        let mut line = Line::default();
        for entry in &kept.entries {
            match entry {
                LogEntry::Begin(state) => line.end_before(*state, true, f)?,
                LogEntry::Event(state, event) => {
                    line.end_before(*state, false, f)?;
                    line.add(*event);
                }
                LogEntry::Reason(text) => {
                    line.end(f)?;
                    writeln!(f, "{:>16}  {text}", "reason")?;
                }
                LogEntry::Rare(rare) => {
                    line.end(f)?;
                    writeln!(f, "{:>16}  {}", "rare", rare.name())?;
                }
                LogEntry::Measured(vitals) => {
                    line.end(f)?;
                    let values = Vital::ALL.iter().zip(vitals).filter(|(_, value)| **value > 0);
                    let named = values.map(|(vital, value)| format!("{} {value}", vital.name()));
                    writeln!(f, "{:>16}  {}", "vitals", named.collect::<Vec<_>>().join(", "))?;
                }
            }
        }
        line.end(f)?;
        if kept.lost > 0 {
            writeln!(f, "{:>16}  {} more entries", "…", kept.lost)?;
        }
        Ok(())
    }
}

/// A line in progress.
#[derive(Default)]
struct Line {
    state: Option<State>,
    events: Vec<(Event, u32)>,
}

impl Line {
    fn add(&mut self, event: Event) {
        match self.events.last_mut() {
            Some((last, count)) if *last == event => *count += 1,
            _ => self.events.push((event, 1)),
        }
    }

    /// Ends the line if the next entry belongs to another state or begins a chain.
    fn end_before(
        &mut self,
        state: State,
        begins: bool,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        if begins || self.state != Some(state) {
            self.end(f)?;
            self.state = Some(state);
        }
        if begins {
            self.events.push((Event::Start, 1));
        }
        Ok(())
    }

    fn end(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.take();
        let events = std::mem::take(&mut self.events);
        let Some(state) = state.filter(|_| events.iter().any(|(event, _)| *event != Event::Start))
        else {
            return Ok(());
        };
        write!(f, "{:>16}  ", state.name())?;
        for (at, (event, count)) in events.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { " → " })?;
            f.write_str(event.name())?;
            if *count > 1 {
                write!(f, " ×{count}")?;
            }
        }
        f.write_str("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_a_line() {
        let log = Log::new();
        log.begin(State::AllocateTable);
        log.begin(State::WalkL2);
        log.event(State::WalkL2, Event::Piece);
        log.event(State::WalkL2, Event::Normal);
        log.event(State::WalkL2, Event::Normal);
        log.rare(Rare::NoHole);
        log.event(State::WalkL2, Event::Failed);
        log.vital(Vital::Extents, 2);
        log.measured();
        let expected = "         walk L2  start → piece → normal ×2\n            rare  no hole left\n         \
            walk L2  failed\n          vitals  extents 2\n";
        assert_eq!(log.to_string(), expected);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let log = Log::new();
        for _ in 0..MAX_LOGGED + 3 {
            log.event(State::Emit, Event::Normal);
        }
        assert_eq!((log.kept.borrow().entries.len(), log.lost()), (MAX_LOGGED, 3));
        assert!(log.to_string().ends_with("…  3 more entries\n"));
    }
}
