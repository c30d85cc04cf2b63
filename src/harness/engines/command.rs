//! An engine in another process: a command that answers questions on pipes, in any language. `docs/engines.md`
//! describes the lines.
//!
//! A round trip for each question would cost more than the answer. So the harness announces its questions about an
//! image, and the command gets all of them in one write. A question that was not announced is sent by itself.
//!
//! # Arithmetic
//! A missing line is an empty one.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::ChainFiles;
use crate::harness::cases::implementation::{Expression, Implementation};
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{
    AccessFeedback, Answer, Engine, EngineEnd, EngineError, EngineQuestion, ErrorKind, Facts,
    OpenDisk, Opened, failure,
};
use crate::harness::files::chain::Chain;
use crate::processes::ProcessEnd;

use super::command_lines::{Hello, HelloParser, Lines, ParsedAnswer, parse_answer};
use super::engine_process::{EngineProcess, Silence};
use super::walker::Walker;

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
        let (process, hello) = started(line)?;
        let first = Rc::new(RefCell::new(Some(process)));
        Ok(Self { line: line.into(), hello: Rc::new(hello), first })
    }

    /// Returns a text that changes with the name, the claims, the policy and the verbs of the command.
    #[cfg(feature = "cli")]
    pub(crate) fn first_lines(&self) -> String {
        format!("{:?}", self.hello)
    }
}

impl From<EngineCommand> for Implementation {
    fn from(command: EngineCommand) -> Self {
        let expression = Expression::started(
            "qcowfuzz::harness::engines::command::EngineCommand::start",
            &command.line,
        );
        let implementation = Self::new(move |observer| {
            let shadow = Walker::observed(Rc::clone(observer));
            Box::new(CommandEngine::new(command.clone(), shadow))
        });
        implementation.written_as(expression)
    }
}

/// The engine of an [`EngineCommand`], which is asked about one image at a time. It has a process of its own, and
/// starts another one when that has ended.
#[derive(Debug)]
struct CommandEngine {
    command: EngineCommand,
    process: Option<EngineProcess>,
    /// Walks the same images, if its events steer the loop.
    shadow: Walker,
    /// The files of the image.
    chain: ChainFiles,
    /// The lines that name the files.
    files: String,
    disks: Vec<DiskQuestions>,
    /// The command has answered the questions in `disks`.
    is_asked: bool,
    /// The index of the disk that is open.
    open: usize,
    /// The image has ended two processes.
    has_ended: bool,
}

/// The questions about a disk, in the order of the oracles, and the answers.
#[derive(Debug)]
struct DiskQuestions {
    /// The questions; the first one opens the disk.
    questions: Vec<EngineQuestion>,
    /// The answers to the questions. Those that the oracles have got are gone.
    answers: Vec<Option<ParsedAnswer>>,
    /// The index of the next question.
    next: usize,
    /// The number of writes to the folder when the questions were planned: they belong to these files.
    writes: u64,
}

impl Engine for CommandEngine {
    fn facts(&self) -> Facts {
        let Hello { name, version, claims, policy, answers } = &*self.command.hello;
        Facts {
            version: version.clone().into(),
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
        // If the files are too large, `open` reports the error.
        self.begin_image();
        if self.hold(chain).is_ok() {
            self.plan(questions);
        }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.open_disk(chain, EngineQuestion::Open)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.open_disk(chain, EngineQuestion::OpenSnapshot(index))
    }
}

/// An image that a [`CommandEngine`] has opened.
struct CommandDisk<'s> {
    engine: &'s mut CommandEngine,
    size_bytes: u64,
}

impl OpenDisk for CommandDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        match self.engine.ask(EngineQuestion::Read(guest, into.len()))? {
            ParsedAnswer::Bytes(bytes) => into.copy_from_slice(&bytes),
            _ => return Err(EngineError::NoAnswer),
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        match self.engine.ask(EngineQuestion::Status(guest))? {
            ParsedAnswer::Status(run) => Ok(run),
            _ => Err(EngineError::NoAnswer),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let ParsedAnswer::Extents(extents) = self.engine.ask(EngineQuestion::Map(window))? else {
            return Err(EngineError::NoAnswer);
        };
        let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
        Ok(())
    }
}

/// Starts a process of the command, and reads its first lines.
fn started(line: &str) -> Result<(EngineProcess, Hello), String> {
    let failed = |what: String| format!("--engine-command: {line}: {what}");
    let (mut parser, mut hello) = (HelloParser::default(), None);
    let started =
        EngineProcess::start(line, None).map_err(Silence::from).and_then(|mut process| {
            process.exchange(b"", &mut |bytes| {
                let mut lines = Lines { bytes, at: 0 };
                while hello.is_none()
                    && let Some(line) = lines.next_line()?
                {
                    hello = parser.line(line)?;
                }
                Ok((lines.at, hello.is_some()))
            })?;
            Ok(process)
        });
    match (started, hello) {
        (Ok(process), Some(hello)) => Ok((process, hello)),
        (Ok(_), None) => Err(failed("expected first lines".to_string())),
        (Err(Silence::Failed(what)), _) => Err(failed(what)),
        (Err(Silence::Ended(end)), _) if end.process == ProcessEnd::WrongAnswer => {
            Err(failed(end.detail))
        }
        (Err(Silence::Ended(EngineEnd { process, detail, .. })), _) => {
            let last = detail.lines().last().map(|last| format!(": {last}")).unwrap_or_default();
            Err(failed(format!("expected the line 'ready', found the end ({process}){last}")))
        }
    }
}

impl CommandEngine {
    /// Creates an engine without a process.
    fn new(command: EngineCommand, shadow: Walker) -> Self {
        let (process, chain, files, disks) = Default::default();
        let (is_asked, open, has_ended) = Default::default();
        Self { command, process, shadow, chain, files, disks, is_asked, open, has_ended }
    }

    /// Takes the questions about an image whose files are held.
    fn plan(&mut self, questions: &[EngineQuestion]) {
        let writes = self.writes();
        for question in questions {
            match (question, self.disks.last_mut()) {
                (EngineQuestion::Open | EngineQuestion::OpenSnapshot(_), _) | (_, None) => {
                    self.disks.push(DiskQuestions::new(*question, writes));
                }
                (_, Some(disk)) => disk.questions.push(*question),
            }
        }
    }

    /// Forgets the last image.
    fn begin_image(&mut self) {
        self.disks.clear();
        self.is_asked = false;
        self.has_ended = false;
    }

    /// Writes the files of `chain`.
    fn hold(&mut self, chain: &Chain) -> Answer {
        self.chain.write(chain)?;
        let Some(folder) = self.chain.folder() else { return Ok(()) };
        self.files.clear();
        for layer in chain.layers() {
            let path = folder.path_of(layer.name());
            // A string takes everything.
            let _ = writeln!(self.files, "image {} {}", layer.format.name(), path.display());
            if let Some(file) = &layer.data_file {
                let _ = writeln!(self.files, "data {}", folder.path_of(file.name()).display());
            }
            for file in &layer.extents {
                let _ = writeln!(self.files, "extent {}", folder.path_of(file.name()).display());
            }
        }
        Ok(())
    }

    fn open_disk<'s>(&'s mut self, chain: &Chain, question: EngineQuestion) -> Opened<'s> {
        self.hold(chain)?;
        let writes = self.writes();
        if !self.is_asked {
            self.is_asked = true;
            self.disks.retain(|disk| disk.writes == writes);
            self.send()?;
        }
        let planned = |disk: &DiskQuestions| {
            disk.writes == writes && disk.next == 0 && disk.questions.first() == Some(&question)
        };
        self.open = match self.disks.iter().position(planned) {
            Some(at) => at,
            None => {
                self.disks.push(DiskQuestions::new(question, writes));
                self.disks.len() - 1
            }
        };
        match self.ask(question)? {
            ParsedAnswer::Opened(size_bytes) => {
                Ok(Box::new(CommandDisk { engine: self, size_bytes }))
            }
            _ => Err(EngineError::NoAnswer),
        }
    }

    /// Returns the answer about the disk that is open. It is not an error. A question whose verb the command does not
    /// answer is not sent.
    fn ask(&mut self, question: EngineQuestion) -> Answer<ParsedAnswer> {
        if !self.command.hello.answers.has(question.kind()) {
            return Err(EngineError::NoAnswer);
        }
        let Some(disk) = self.disks.get_mut(self.open) else { return Err(EngineError::NoAnswer) };
        let answer = match disk.planned(question) {
            Some(answer) => answer,
            None => self.ask_alone(question)?,
        };
        match answer {
            ParsedAnswer::Error(kind, text) => {
                let text = self.without_folder(&text);
                Err(match kind {
                    ErrorKind::Unsupported => EngineError::unsupported(text),
                    ErrorKind::Failed => EngineError::Failed(text.into()),
                    ErrorKind::Io => EngineError::Io(text.into()),
                    ErrorKind::NoAnswer | ErrorKind::Untyped => EngineError::untyped(text),
                })
            }
            answer => Ok(answer),
        }
    }

    /// Removes the path of the temporary folder from an error, because each process has another one.
    fn without_folder(&self, text: &str) -> String {
        let folder = self.chain.folder().map(|folder| folder.path_of(""));
        folder.map_or_else(|| text.to_string(), |it| text.replace(&*it.to_string_lossy(), ""))
    }

    /// Asks a question that the harness has not announced.
    fn ask_alone(&mut self, question: EngineQuestion) -> Answer<ParsedAnswer> {
        let opening = self.disks.get(self.open).and_then(|disk| disk.questions.first().copied());
        let both: Vec<_> =
            opening.into_iter().filter(|it| *it != question).chain([question]).collect();
        let mut answers = self.exchange(&both)?;
        answers.pop().ok_or(EngineError::NoAnswer)
    }

    /// Sends all planned questions.
    fn send(&mut self) -> Answer {
        let questions: Vec<_> =
            self.disks.iter().flat_map(|disk| disk.questions.iter().copied()).collect();
        if questions.is_empty() {
            return Ok(());
        }
        let mut answers = self.exchange(&questions)?.into_iter().map(Some);
        for disk in &mut self.disks {
            disk.answers = answers.by_ref().take(disk.questions.len()).collect();
        }
        Ok(())
    }

    /// Sends questions and returns the answers. If the process ends, a new one is asked the same.
    fn exchange(&mut self, questions: &[EngineQuestion]) -> Answer<Vec<ParsedAnswer>> {
        if self.has_ended {
            return Err(EngineError::untyped("the process has ended"));
        }
        let mut batch = self.files.clone();
        for question in questions {
            // A string takes everything.
            let _ = writeln!(batch, "{question}");
        }
        batch.push_str("end\n");
        let mut is_second = false;
        loop {
            let mut process = self.process.take().unwrap_or_else(|| self.start());
            let mut answers = Vec::with_capacity(questions.len());
            let exchanged = process.exchange(batch.as_bytes(), &mut |bytes| {
                let mut at = 0;
                while let Some(question) = questions.get(answers.len())
                    && let Some((answer, length)) = parse_answer(*question, &bytes[at..])?
                {
                    answers.push(answer);
                    at += length;
                }
                Ok((at, answers.len() == questions.len()))
            });
            match exchanged {
                Ok(()) => {
                    self.process = Some(process);
                    return Ok(answers);
                }
                Err(Silence::Failed(what)) => self.fail(&what),
                Err(Silence::Ended(ended)) => {
                    let detail = self.without_folder(&ended.detail);
                    if is_second {
                        self.has_ended = true;
                        return Err(EngineError::Ended(Box::new(EngineEnd { detail, ..ended })));
                    }
                    is_second = true;
                }
            }
        }
    }

    fn start(&self) -> EngineProcess {
        let EngineCommand { line, hello, first } = &self.command;
        if let Some(first) = first.borrow_mut().take() {
            return first;
        }
        let (process, again) = started(line).unwrap_or_else(|line| failure::fail(line));
        if again != **hello {
            self.fail("expected the first lines of its first process, found others");
        }
        process
    }

    fn fail(&self, what: &str) -> ! {
        failure::fail(format!("--engine-command: {}: {what}", self.command.line))
    }

    fn writes(&self) -> u64 {
        self.chain.folder().map_or(0, |folder| folder.writes())
    }
}

impl DiskQuestions {
    fn new(opening: EngineQuestion, writes: u64) -> Self {
        Self { questions: vec![opening], answers: Vec::new(), next: 0, writes }
    }

    /// Takes the answer to a question of the plan, and skips the questions before it. Returns `None` if the plan does
    /// not have it.
    fn planned(&mut self, question: EngineQuestion) -> Option<ParsedAnswer> {
        let rest = self.questions.get(self.next..)?;
        let at = self.next + rest.iter().position(|it| *it == question)?;
        let answer = self.answers.get_mut(at)?.take()?;
        self.next = at + 1;
        Some(answer)
    }
}
