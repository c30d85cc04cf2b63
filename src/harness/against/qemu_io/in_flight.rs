//! Requests in flight to QEMU: asynchronous requests of qemu-io, which QEMU's driver blkdebug suspends at events
//! between their operations on files. The schedule of the program decides which one goes on. So every order can be
//! shown again with a few lines of qemu-io.
//!
//! Does not suspend flushes and changes of tables, during which QEMU holds a lock. A request that neither ends nor is
//! suspended, although QEMU has nothing left to do, waits for another one.

use std::cell::RefCell;
use std::fmt;
use std::task::{Poll, Waker};

use crate::harness::engine::flights::{FlightRequest, Flights};
use crate::harness::engine::{Answer, EngineError, Request};
use crate::harness::files::chain::ChainFile;

use super::disk::{QemuDisk, parse_dump};

/// The events at which requests are suspended (QEMU, `qapi/block-core.json`, `BlkdebugEvent`): before data are read or
/// written, and before those around them are copied to a new cluster.
const EVENTS: [&str; 4] = ["write_aio", "read_aio", "cow_read", "cow_write"];
/// The number of looks in a row at which QEMU has nothing to do and prints nothing, until nothing more will happen.
const SILENT_LOOKS: u32 = 2;
/// The milliseconds for which it may also have nothing to do while a request runs that waits for another one.
const WAITING_MILLISECONDS: u32 = 3;
/// The same if there is no other one, which would end the program.
const MAX_WAITING_MILLISECONDS: u32 = 10_000;
/// The beginning of blkdebug's line about a suspended request, and that of the tag behind it.
const SUSPENDED: &str = "Suspended request '";

/// Requests in flight to a disk.
struct QemuFlight<'d, 's> {
    file: ChainFile,
    state: RefCell<FlightState<'d, 's>>,
}

struct FlightState<'d, 's> {
    disk: &'d mut QemuDisk<'s>,
    requests: Vec<AioRequest>,
    /// The request that has begun or gone on last.
    latest: usize,
    /// The tags of the breakpoints at the events. A breakpoint is used up when it suspends a request.
    breakpoints: [Option<u32>; EVENTS.len()],
    tags: u32,
    /// The tags of those that have suspended a request since the last command.
    just_suspended: Vec<u32>,
    /// The lines of a dump whose request is not known yet.
    dump: String,
    /// The beginning of a line whose rest is not printed yet.
    unfinished: String,
    /// The line about a flush that has failed.
    flush_failure: Option<String>,
    /// The requests that wait for others.
    waiting: Vec<Waker>,
    /// QEMU has ended. Another one would not have the image.
    has_ended: bool,
}

/// A request that qemu-io carries out. QEMU divides it into tasks of some clusters.
#[derive(Debug)]
struct AioRequest {
    /// The line that qemu-io prints when the request succeeds.
    end: String,
    /// The tags of the breakpoints that have suspended its tasks.
    suspended: Vec<u32>,
    is_open: bool,
    /// The result, until its future takes it: the dump of a read, which is empty for a write, or the error.
    ended: Option<Result<String, String>>,
}

impl QemuDisk<'_> {
    /// Carries out requests that are in flight together.
    pub(super) fn fly(&mut self, flights: Flights<'_>) -> Answer {
        let Some(file) = self.written_image().cloned() else { return Err(EngineError::NoAnswer) };
        let state = FlightState {
            disk: self,
            requests: Vec::new(),
            latest: 0,
            breakpoints: [None; EVENTS.len()],
            tags: 0,
            just_suspended: Vec::new(),
            dump: String::new(),
            unfinished: String::new(),
            flush_failure: None,
            waiting: Vec::new(),
            has_ended: false,
        };
        let flight = QemuFlight { file, state: RefCell::new(state) };
        let flown = flights.run(|request| flight.carry_out(request));
        let state = flight.state.into_inner();
        match flown {
            Ok(()) if !state.has_ended => state.end(),
            flown => {
                // The next answers would be about these requests, and the last entry of the record may not be complete.
                state.disk.restart();
                flown
            }
        }
    }
}

impl QemuFlight<'_, '_> {
    async fn carry_out(&self, request: FlightRequest<'_>) -> Answer {
        self.file.turn().await;
        match request {
            FlightRequest::Read { guest, into } => {
                let (guest, length) = (guest.get(), into.len());
                let end = format!("read {length}/{length} bytes at offset {guest}");
                let dump = self.finish(format_args!("aio_read -v {guest} {length}"), end).await?;
                match parse_dump(&dump, into) {
                    Some(()) => Ok(()),
                    None => Err(EngineError::untyped(dump)),
                }
            }
            FlightRequest::Change(Request::Write { guest, bytes }) => {
                let (guest, length) = (guest.get(), bytes.len());
                let [byte, others @ ..] = bytes else { return Ok(()) };
                if others.iter().any(|other| other != byte) {
                    return Err(EngineError::NoAnswer);
                }
                self.wrote(
                    format_args!("aio_write -P {byte} {guest} {length}"),
                    guest,
                    length as u64,
                )
                .await
            }
            FlightRequest::Change(Request::WriteZeroes { guest, length_bytes }) => {
                let guest = guest.get();
                self.wrote(format_args!("aio_write -z {guest} {length_bytes}"), guest, length_bytes)
                    .await
            }
            FlightRequest::Change(Request::Discard { guest, length_bytes }) => {
                let guest = guest.get();
                let command = format_args!("aio_write -z -u {guest} {length_bytes}");
                self.wrote(command, guest, length_bytes).await
            }
            FlightRequest::Change(Request::Flush) => {
                let mut state = self.state.borrow_mut();
                let (command, _) = state.disk.flush();
                state.say(format_args!("{command}"))?;
                state.settle()?;
                state.disk.repeat()?;
                let failure = state.flush_failure.take();
                failure.map_or(Ok(()), |line| Err(EngineError::untyped(line)))
            }
            FlightRequest::Change(_) => Err(EngineError::NoAnswer),
        }
    }

    async fn wrote(&self, command: fmt::Arguments<'_>, guest: u64, length_bytes: u64) -> Answer {
        let end = format!("wrote {length_bytes}/{length_bytes} bytes at offset {guest}");
        self.finish(command, end).await.map(drop)
    }

    /// Sends a command, and lets its request go on in its turns until it ends. Returns the dump that qemu-io has
    /// printed.
    async fn finish(&self, command: fmt::Arguments<'_>, end: String) -> Answer<String> {
        let nth = self.state.borrow_mut().begin(command, end)?;
        loop {
            // It ends, or can go on in a turn.
            let ended = std::future::poll_fn(|context| {
                let mut state = self.state.borrow_mut();
                let request = &mut state.requests[nth];
                match (request.ended.take(), request.suspended.is_empty()) {
                    (None, true) => {
                        state.waiting.push(context.waker().clone());
                        Poll::Pending
                    }
                    (ended, _) => Poll::Ready(ended),
                }
            });
            match ended.await {
                Some(end) => return end.map_err(EngineError::untyped),
                None => {
                    self.file.turn().await;
                    self.state.borrow_mut().resume(nth)?;
                }
            }
        }
    }
}

impl FlightState<'_, '_> {
    /// Sends the command of a request. Returns its number.
    fn begin(&mut self, command: fmt::Arguments<'_>, end: String) -> Answer<usize> {
        let nth = self.requests.len();
        self.requests.push(AioRequest { end, suspended: Vec::new(), is_open: true, ended: None });
        self.latest = nth;
        self.set_breakpoints()?;
        self.say(command)?;
        self.settle()?;
        Ok(nth)
    }

    /// Lets the task of a request go on that was suspended first.
    fn resume(&mut self, nth: usize) -> Answer {
        let suspended = &mut self.requests[nth].suspended;
        if !suspended.is_empty() {
            let tag = suspended.remove(0);
            self.latest = nth;
            self.set_breakpoints()?;
            self.say(format_args!("resume t{tag}"))?;
            self.settle()?;
        }
        Ok(())
    }

    /// Lets QEMU work until nothing happens any more: each request has ended, is suspended, or waits for another one.
    /// Then those that waited may go on.
    fn settle(&mut self) -> Answer {
        let (mut silent, mut waited) = (0, 0);
        loop {
            self.disk.wait_until_asleep();
            // It runs what the end of an operation has left to do.
            let has_printed =
                self.say(format_args!("sleep {}", u32::from(silent >= SILENT_LOOKS)))?;
            (silent, waited) = match (has_printed, silent < SILENT_LOOKS) {
                (true, _) => (0, 0),
                (false, true) => (silent + 1, waited),
                (false, false) => (silent, waited + 1),
            };
            let longest = match self.requests.iter().any(|it| it.is_open && it.suspended.is_empty())
            {
                false => 0,
                true if self.requests.iter().any(|it| !it.suspended.is_empty()) => {
                    WAITING_MILLISECONDS
                }
                true => MAX_WAITING_MILLISECONDS,
            };
            if silent >= SILENT_LOOKS && waited >= longest {
                break;
            }
        }
        self.disk.note_settled(&self.just_suspended);
        self.just_suspended.clear();
        self.waiting.drain(..).for_each(Waker::wake);
        Ok(())
    }

    /// Sets a breakpoint at each event that has none.
    fn set_breakpoints(&mut self) -> Answer {
        for (index, event) in EVENTS.into_iter().enumerate() {
            if self.breakpoints[index].is_none() {
                let tag = self.tags;
                self.tags += 1;
                self.say(format_args!("break {event} t{tag}"))?;
                self.breakpoints[index] = Some(tag);
            }
        }
        Ok(())
    }

    /// Sends a command, and takes what qemu-io prints. Returns false if it prints nothing.
    fn say(&mut self, command: fmt::Arguments<'_>) -> Answer<bool> {
        if self.has_ended {
            return Err(EngineError::untyped("qemu-io has ended"));
        }
        let answer = self.disk.ask(command).map(str::to_string);
        self.has_ended = matches!(answer, Err(EngineError::Ended(_)));
        self.unfinished.push_str(&answer?);
        let all = std::mem::take(&mut self.unfinished);
        let whole = all.rfind('\n').map_or(0, |at| at + 1);
        let (lines, rest) = all.split_at(whole);
        self.unfinished.push_str(rest);
        lines.lines().for_each(|line| self.take(line.trim()));
        Ok(!lines.trim().is_empty())
    }

    fn take(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once(SUSPENDED) {
            let tag = rest.strip_prefix('t').and_then(|rest| rest.split('\'').next());
            if let Some(tag) = tag.and_then(|digits| digits.parse().ok()) {
                self.note_suspended(tag);
            }
        } else if line.starts_with("write failed: ") {
            self.flush_failure = Some(line.to_string());
            self.disk.note_error();
        } else if line.starts_with("aio_") && line.contains(" failed: ") {
            self.note_end(|it| it.end.starts_with("wrote "), Err(line.to_string()));
        } else if line.starts_with("readv failed: ") {
            self.note_end(|it| it.end.starts_with("read "), Err(line.to_string()));
        } else if line.starts_with("wrote ") || line.starts_with("read ") {
            let dump = std::mem::take(&mut self.dump);
            // qemu-io prints the same line for requests for the same bytes. A suspended one has not ended, and one that
            // waits for the latest one ends later.
            let is_running = |it: &AioRequest| it.end == line && it.suspended.is_empty();
            let any_runs = self.requests.iter().any(|it| it.is_open && is_running(it));
            self.note_end(|it| if any_runs { is_running(it) } else { it.end == line }, Ok(dump));
        } else if line.split_once(':').is_some_and(|(at, _)| is_offset(at)) {
            self.dump.push_str(line);
            self.dump.push('\n');
        }
    }

    /// Notes that a breakpoint has suspended a task of the request that runs.
    fn note_suspended(&mut self, tag: u32) {
        let used = self.breakpoints.iter_mut().find(|it| **it == Some(tag));
        used.into_iter().for_each(|it| *it = None);
        self.just_suspended.push(tag);
        self.suspend(tag);
    }

    /// Assigns a suspended task to the latest request, or, if that has ended, to the next one that has not.
    fn suspend(&mut self, tag: u32) {
        let (before, from) = self.requests.split_at_mut(self.latest);
        let mut open = from.iter_mut().chain(before).filter(|it| it.is_open);
        if let Some(request) = open.next() {
            request.suspended.push(tag);
        }
    }

    /// Notes the end of a request. Suspended tasks that were assigned to it belong to other requests.
    fn note_end(&mut self, is_it: impl Fn(&AioRequest) -> bool, end: Result<String, String>) {
        // An error does not name its request.
        let (before, from) = self.requests.split_at_mut(self.latest);
        let mut open = from.iter_mut().chain(before).filter(|it| it.is_open);
        let Some(request) = open.find(|it| is_it(it)) else { return };
        if end.is_err() {
            self.disk.note_error();
        }
        (request.is_open, request.ended) = (false, Some(end));
        let tags = std::mem::take(&mut request.suspended);
        tags.into_iter().for_each(|tag| self.suspend(tag));
    }

    /// Ends all requests, and removes the breakpoints.
    fn end(mut self) -> Answer {
        let breakpoints = std::mem::take(&mut self.breakpoints);
        for tag in breakpoints.into_iter().flatten() {
            self.say(format_args!("remove_break t{tag}"))?;
        }
        let suspended: Vec<_> =
            self.requests.iter_mut().flat_map(|it| std::mem::take(&mut it.suspended)).collect();
        for tag in suspended {
            self.say(format_args!("resume t{tag}"))?;
        }
        self.say(format_args!("aio_flush"))?;
        self.disk.repeat()
    }
}

/// Reports whether a text is the offset of a line of a dump.
fn is_offset(text: &str) -> bool {
    text.len() >= 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}
