//! An engine in another process: a command that answers questions on pipes, in any language. `docs/protocol.md`
//! describes the lines.
//!
//! A round trip for each question would cost more than the answer. So the harness announces its questions about an
//! image, and the command gets all of them in one write. A question that was not announced is sent by itself.

mod hello;
mod question;
mod session;

use std::cell::RefCell;
use std::rc::Rc;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{
    AccessFeedback, Answer, Engine, EngineError, EngineQuestion, Facts, OpenDisk, Opened,
};
use crate::harness::engines::engine_process::EngineProcess;
use crate::harness::engines::walker::Walker;
use crate::harness::files::chain::Chain;

use hello::Hello;
use question::ParsedAnswer;
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

impl From<EngineCommand> for Implementation {
    fn from(command: EngineCommand) -> Self {
        Self::new(move |observer| {
            let (line, hello) = (Rc::clone(&command.line), Rc::clone(&command.hello));
            let session = Session::new(line, hello, Rc::clone(&command.first));
            Box::new(CommandEngine { session, shadow: Walker::observed(Rc::clone(observer)) })
        })
    }
}

/// The engine of an [`EngineCommand`]. It has a process of its own, and starts another one when that has ended.
#[derive(Debug)]
struct CommandEngine {
    session: Session,
    /// Walks the same images, if its events steer the loop.
    shadow: Walker,
}

impl Engine for CommandEngine {
    fn facts(&self) -> Facts {
        let Hello { name, claims, policy, answers } = self.session.hello();
        Facts {
            claims: *claims,
            policy: *policy,
            answers: *answers,
            // The command reads copies of the files, and the harness sees no access.
            reads: AccessFeedback::None,
            is_prepared: true,
            ..Facts::new(name.clone())
        }
    }

    fn begin_run(&mut self) {
        self.shadow.begin_run();
    }

    fn prepare(&mut self, chain: &Chain, questions: &[EngineQuestion]) {
        self.shadow.walk_observed(chain);
        // If the files are too large, the opening says so.
        match self.session.hold(chain) {
            Ok(()) => self.session.plan(questions),
            Err(_) => self.session.begin_image(),
        }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.open_disk(chain, EngineQuestion::Open)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.open_disk(chain, EngineQuestion::OpenSnapshot(index))
    }
}

impl CommandEngine {
    fn open_disk<'s>(&'s mut self, chain: &'s Chain, question: EngineQuestion) -> Opened<'s> {
        let Self { session, .. } = self;
        session.hold(chain)?;
        let size_bytes = session.open(question)?;
        Ok(Box::new(CommandDisk { session, size_bytes }))
    }
}

/// An image that a [`CommandEngine`] has opened.
struct CommandDisk<'s> {
    session: &'s mut Session,
    size_bytes: u64,
}

impl OpenDisk for CommandDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        match self.session.ask(EngineQuestion::Read(guest, into.len()))? {
            ParsedAnswer::Bytes(bytes) => into.copy_from_slice(&bytes),
            _ => return Err(EngineError::NoAnswer),
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        match self.session.ask(EngineQuestion::Status(guest))? {
            ParsedAnswer::Status(run) => Ok(run),
            _ => Err(EngineError::NoAnswer),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let ParsedAnswer::Extents(extents) = self.session.ask(EngineQuestion::Map(window))? else {
            return Err(EngineError::NoAnswer);
        };
        let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
        Ok(())
    }
}
