//! An engine in another process: a command that answers questions on pipes, in any language. `docs/protocol.md`
//! describes the lines.
//!
//! A round trip for each question would cost more than the answer. So the harness judges each image twice: in the
//! rehearsal, our walker answers, and the engine records the questions; then the command gets all of them in one write.
//! The walker answers nothing else. A question that the rehearsal did not foresee is sent by itself.

mod hello;
mod question;
mod session;

use std::cell::RefCell;
use std::rc::Rc;

use crate::disk::extent::{Visitor, Window};
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;

use super::chain::Chain;
use super::claims::{Claims, EnginePolicy};
use super::engine::{Engine, EngineEnd, EngineError, OpenDisk};
use super::engine_process::EngineProcess;
use super::implementation::Implementation;
use super::status::GuestRun;
use super::walker::{Walker, WalkerDisk};

use hello::{Hello, Verbs};
use question::{LineQuestion, ParsedAnswer};
use session::Session;

/// A command that answers questions about images: the implementation under test.
#[derive(Clone, Debug)]
pub struct EngineCommand {
    line: Rc<str>,
    hello: Rc<Hello>,
    /// The process that said it, for the first engine that asks.
    first: Rc<RefCell<Option<EngineProcess>>>,
}

impl EngineCommand {
    /// Starts `line` with a shell, and reads its first lines.
    ///
    /// # Errors
    /// Returns one line for the user: the command does not start, or does not speak the protocol.
    pub fn start(line: &str) -> Result<Self, String> {
        let (process, hello) = session::started(line)?;
        let first = Rc::new(RefCell::new(Some(process)));
        Ok(Self { line: line.into(), hello: Rc::new(hello), first })
    }

    /// Returns a text that changes with the name, the claims, the policy and the verbs of the command.
    pub(crate) fn first_lines(&self) -> String {
        format!("{:?}", self.hello)
    }
}

impl Implementation for EngineCommand {
    type Engine<O: Observer + Clone + 'static> = CommandEngine<O>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> CommandEngine<O> {
        let (line, hello) = (Rc::clone(&self.line), Rc::clone(&self.hello));
        let session = Session::new(line, hello, Rc::clone(&self.first));
        let walker = Walker::observed(observer.clone());
        CommandEngine { session, walker, rehearsed: None, is_rehearsal: false }
    }
}

/// The engine of an [`EngineCommand`]. It has a process of its own, and starts another one when that has ended.
#[derive(Debug)]
pub struct CommandEngine<O: Observer = ()> {
    session: Session,
    /// Answers in rehearsals. Its events steer the loop: it walks the same images.
    walker: Walker<O>,
    /// The chain that the walker reads. Its reads do not count.
    rehearsed: Option<Chain>,
    is_rehearsal: bool,
}

impl<O: Observer> CommandEngine<O> {
    fn open_disk<'s>(
        &'s mut self,
        chain: &'s Chain,
        question: LineQuestion,
    ) -> Result<CommandDisk<'s, O>, EngineError> {
        let Self { session, walker, rehearsed, is_rehearsal } = self;
        session.hold(chain)?;
        if !*is_rehearsal {
            let size_bytes = session.open(question)?;
            return Ok(CommandDisk { session, source: AnswerSource::Command(size_bytes) });
        }
        session.plan(question);
        let chain = rehearsed.insert(chain.unmetered());
        let disk = match question {
            LineQuestion::OpenSnapshot(index) => walker.open_snapshot(chain, index)?,
            _ => walker.open(chain)?,
        };
        Ok(CommandDisk { session, source: AnswerSource::Walker(disk) })
    }
}

impl<O: Observer> Engine for CommandEngine<O> {
    type Disk<'s>
        = CommandDisk<'s, O>
    where
        O: 's;

    fn name(&self) -> &str {
        &self.session.hello().name
    }

    fn claims(&self) -> Claims {
        self.session.hello().claims
    }

    fn policy(&self) -> EnginePolicy {
        self.session.hello().policy
    }

    fn begin_rehearsal(&mut self) -> bool {
        self.session.begin_plan();
        self.is_rehearsal = true;
        true
    }

    fn end_rehearsal(&mut self) {
        self.is_rehearsal = false;
        // The build reuses files that nothing else holds.
        self.rehearsed = None;
    }

    fn take_end(&mut self) -> Option<EngineEnd> {
        self.session.take_end()
    }

    fn begin_run(&mut self) {
        self.walker.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<CommandDisk<'s, O>, EngineError> {
        self.open_disk(chain, LineQuestion::Open)
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<CommandDisk<'s, O>, EngineError> {
        match self.session.hello().verbs.snapshot {
            true => self.open_disk(chain, LineQuestion::OpenSnapshot(index)),
            false => Err(EngineError::NotAsked),
        }
    }
}

/// An image that a [`CommandEngine`] has opened.
pub struct CommandDisk<'s, O: Observer = ()> {
    session: &'s mut Session,
    source: AnswerSource<'s, O>,
}

/// The origin of the answers about an image.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum AnswerSource<'s, O: Observer> {
    /// Our walker: the session records the questions.
    Walker(WalkerDisk<'s, O>),
    /// The command. The disk has this size in bytes.
    Command(u64),
}

impl<O: Observer> CommandDisk<'_, O> {
    /// Asks the command. In a rehearsal, records the question and asks our walker by `walk`.
    fn ask<T>(
        &mut self,
        is_answered: impl FnOnce(&Verbs) -> bool,
        question: LineQuestion,
        walk: impl FnOnce(&mut WalkerDisk<'_, O>) -> Result<T, EngineError>,
    ) -> Result<SourcedAnswer<T>, EngineError> {
        if !is_answered(&self.session.hello().verbs) {
            return Err(EngineError::NotAsked);
        }
        match &mut self.source {
            AnswerSource::Walker(disk) => {
                self.session.plan(question);
                Ok(SourcedAnswer::Walked(walk(disk)?))
            }
            AnswerSource::Command(_) => Ok(SourcedAnswer::Answered(self.session.ask(question)?)),
        }
    }
}

/// The answer to a question.
enum SourcedAnswer<T> {
    /// Our walker has given it.
    Walked(T),
    /// The command has given it. It is no error.
    Answered(ParsedAnswer),
}

impl<O: Observer> OpenDisk for CommandDisk<'_, O> {
    fn virtual_size_bytes(&self) -> u64 {
        match &self.source {
            AnswerSource::Walker(disk) => disk.virtual_size_bytes(),
            AnswerSource::Command(size_bytes) => *size_bytes,
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        let question = LineQuestion::Read(guest, into.len());
        let asked = self.ask(|verbs| verbs.read, question, |disk| disk.read(guest, into))?;
        if let SourcedAnswer::Answered(ParsedAnswer::Bytes(bytes)) = asked {
            into.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        let question = LineQuestion::Status(guest);
        match self.ask(|verbs| verbs.status, question, |disk| disk.status(guest))? {
            SourcedAnswer::Walked(run) | SourcedAnswer::Answered(ParsedAnswer::Status(run)) => {
                Ok(run)
            }
            SourcedAnswer::Answered(_) => Err(EngineError::NotAsked),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        let question = LineQuestion::Map(window);
        let asked = self.ask(|verbs| verbs.map, question, |disk| disk.map(window, visitor))?;
        if let SourcedAnswer::Answered(ParsedAnswer::Extents(extents)) = asked {
            let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
        }
        Ok(())
    }
}
