//! The text of a log, entry by entry.

use std::fmt;

use crate::disk::observer::{Event, Rare, State, Vital};

/// An entry of the log.
#[derive(Clone, Copy)]
pub(super) enum LogEntry<'r> {
    /// The start of a chain.
    Begin(State),
    /// An event.
    Event(State, Event),
    /// An access of an engine to a file.
    Access(&'r dyn fmt::Display),
    /// A rare event.
    Rare(Rare),
    /// The reason of an error.
    Reason(&'r str),
    /// The end of an image, with its vitals in order.
    Measured(&'r [u64; Vital::COUNT]),
}

/// Prints entries: a line for each chain, with the state and then the events. An event is printed when it occurs, and
/// the number of its repetitions (`×3`) when something else follows. Accesses to files have lines of their own, too.
/// All entries of a run go to the same place.
#[derive(Default)]
pub(super) struct LogPrinter {
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
    /// Prints an entry.
    pub(super) fn print(&mut self, entry: LogEntry<'_>, out: &mut dyn fmt::Write) -> fmt::Result {
        match entry {
            LogEntry::Begin(state) => {
                self.end_line(out)?;
                (self.state, self.begins) = (Some(state), true);
                Ok(())
            }
            LogEntry::Event(state, event) => {
                if self.has_accesses {
                    self.end_line(out)?;
                }
                if self.state != Some(state) {
                    self.end_line(out)?;
                    (self.state, self.begins) = (Some(state), false);
                }
                self.event(state, event, out)
            }
            LogEntry::Access(access) => self.access(access, out),
            LogEntry::Reason(text) => self.line("reason", text, out),
            LogEntry::Rare(rare) => self.line("rare", rare.name(), out),
            LogEntry::Measured(vitals) => {
                let values = Vital::ALL.iter().zip(vitals).filter(|(_, value)| **value > 0);
                let named = values.map(|(vital, value)| match vital.parts() {
                    Some(parts) => format!("{} {value}/{parts}", vital.name()),
                    None => format!("{} {value}", vital.name()),
                });
                self.line("vitals", &named.collect::<Vec<_>>().join(", "), out)
            }
        }
    }

    /// Ends the text. `lost` entries are not printed.
    pub(super) fn end(&mut self, lost: u64, out: &mut dyn fmt::Write) -> fmt::Result {
        match lost {
            0 => self.end_line(out),
            _ => self.line("…", &format!("{lost} more entries"), out),
        }
    }

    fn event(&mut self, state: State, event: Event, out: &mut dyn fmt::Write) -> fmt::Result {
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
