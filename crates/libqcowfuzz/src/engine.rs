//! The code under test, as C describes it, and the engine of the harness that asks it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::rc::Rc;

use harness::harness::engine::questions::{QuestionKind, QuestionKinds};
use harness::harness::engine::{CheckCounts, ImageReport};
use harness::harness::{ChainFiles, KnownFindings};
use harness::prelude::{
    Answer as Answered, Chain, Engine, EngineError, Facts, GuestOffset, GuestRun, OpenDisk, Opened,
    ReportKind, Request, Visitor, Window,
};

use crate::answer::{Answer, Details, Extent, Extents, Reply, copied};
use crate::case_files::Files;
use crate::errors;
use crate::question::*;
use crate::stage::Exchange;

/// A callback that opens an image: it stores its disk in `disk`.
pub type OpenCallback = Option<
    unsafe extern "C-unwind" fn(
        context: *mut c_void,
        files: *const Files<'static>,
        disk: *mut *mut c_void,
    ) -> c_int,
>;

/// The code under test: its name, its claims, and its callbacks. Each callback returns QCOWFUZZ_OK or an error. A
/// callback that is null has no answer to its question, for any image; `open` and `size` are required to read, and
/// `open_to_write`, `size`, `read` and `request` to write. A callback may leave by `longjmp` or a C++ exception: the
/// run then ends without a verdict, and the next call begins a new one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EngineTable {
    /// `sizeof(qcowfuzz_engine)`, so that later versions of the library know which fields there are.
    pub struct_size: usize,
    /// The name, for reports.
    pub name: *const c_char,
    /// Lines about the features that the code supports, or null: `no FEATURE`, `refuse FEATURE`, `yes FEATURE`,
    /// `size near`, `version VERSION`. docs/engines.md explains them. Without a line, the code supports all features
    /// of qcow2.
    pub claims: *const c_char,
    /// The text of a file of known findings, or null.
    pub known: *const c_char,
    /// An argument of the callbacks that open images.
    pub context: *mut c_void,
    /// QCOWFUZZ_OPEN.
    pub open: OpenCallback,
    /// QCOWFUZZ_OPEN_TO_WRITE.
    pub open_to_write: OpenCallback,
    /// QCOWFUZZ_OPEN_SNAPSHOT.
    pub open_snapshot: Option<
        unsafe extern "C-unwind" fn(
            context: *mut c_void,
            files: *const Files<'static>,
            index: u32,
            disk: *mut *mut c_void,
        ) -> c_int,
    >,
    /// QCOWFUZZ_SIZE: returns the size of the disk in bytes.
    pub size: Option<unsafe extern "C-unwind" fn(disk: *mut c_void) -> u64>,
    /// QCOWFUZZ_READ: fills `into`.
    pub read: Option<
        unsafe extern "C-unwind" fn(
            disk: *mut c_void,
            offset: u64,
            into: *mut u8,
            length: usize,
        ) -> c_int,
    >,
    /// QCOWFUZZ_STATUS: fills `run`.
    pub status: Option<
        unsafe extern "C-unwind" fn(disk: *mut c_void, offset: u64, run: *mut Extent) -> c_int,
    >,
    /// QCOWFUZZ_MAP: calls `qcowfuzz_emit(into, ...)` for each extent.
    pub map: Option<
        unsafe extern "C-unwind" fn(
            disk: *mut c_void,
            start: u64,
            length: u64,
            into: *mut Extents,
        ) -> c_int,
    >,
    /// QCOWFUZZ_CHECK.
    pub check: Option<
        unsafe extern "C-unwind" fn(disk: *mut c_void, errors: *mut u64, leaks: *mut u64) -> c_int,
    >,
    /// QCOWFUZZ_WRITE to QCOWFUZZ_DELETE_SNAPSHOT. It returns QCOWFUZZ_NO_ANSWER for a kind that it does not know.
    pub request:
        Option<unsafe extern "C-unwind" fn(disk: *mut c_void, request: *const Question) -> c_int>,
    /// QCOWFUZZ_CLOSE. The callback frees the disk, even if it returns an error.
    pub close: Option<unsafe extern "C-unwind" fn(disk: *mut c_void) -> c_int>,
}

impl EngineTable {
    /// A table without a callback.
    pub(crate) const NONE: Self = Self {
        struct_size: size_of::<Self>(),
        name: ptr::null(),
        claims: ptr::null(),
        known: ptr::null(),
        context: ptr::null_mut(),
        open: None,
        open_to_write: None,
        open_snapshot: None,
        size: None,
        read: None,
        status: None,
        map: None,
        check: None,
        request: None,
        close: None,
    };

    /// Copies a table of a caller, whose version of the header may have fewer fields.
    ///
    /// # Errors
    /// The table says that it is too small, or larger than one of this version.
    ///
    /// # Safety
    /// `table` is valid, as far as its size says.
    pub(crate) unsafe fn copied_from(table: *const Self) -> Result<Self, String> {
        // SAFETY: the caller's promise. Every version begins with the size.
        let given = unsafe { ptr::addr_of!((*table).struct_size).read() };
        let (least, most) = (std::mem::offset_of!(Self, open_to_write), size_of::<Self>());
        if given < least || given > most || given % align_of::<Self>() != 0 {
            return Err(format!(
                "struct_size: expected {least} to {most}, found {given}: the header and the library differ"
            ));
        }
        let mut copy = Self::NONE;
        // SAFETY: both have at least `given` bytes, and every field of a table may be all zeros.
        unsafe { ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast(), given) };
        Ok(copy)
    }

    /// Returns what the table states.
    ///
    /// # Errors
    /// The claims or the known findings are malformed: one line for the user.
    ///
    /// # Safety
    /// The texts are null or valid.
    pub(crate) unsafe fn facts(&self) -> Result<Facts, String> {
        // SAFETY: the caller's promise.
        let [name, claims, known] =
            [self.name, self.claims, self.known].map(|it| unsafe { copied(it) });
        let facts = Facts::new(name.unwrap_or_else(|| "unnamed".into()));
        let facts =
            facts.stated(&claims.unwrap_or_default()).map_err(|what| format!("claims: {what}"))?;
        let known = KnownFindings::parse(&known.unwrap_or_default());
        let known = known.map_err(|what| format!("known: {what}"))?;
        Ok(Facts { known, ..facts })
    }

    /// Returns the table without the texts, which belong to the caller.
    pub(crate) fn without_texts(self) -> Self {
        let (name, claims, known) = (ptr::null(), ptr::null(), ptr::null());
        Self { name, claims, known, ..self }
    }

    /// Returns the kinds of questions that have a callback.
    pub(crate) fn answers(&self) -> QuestionKinds {
        let kinds = [
            (true, &[QuestionKind::Open][..]),
            (self.map.is_some(), &[QuestionKind::Map]),
            (self.status.is_some(), &[QuestionKind::Status]),
            (self.read.is_some(), &[QuestionKind::Read]),
            (self.open_snapshot.is_some(), &[QuestionKind::Snapshots]),
            (self.check.is_some(), &[QuestionKind::Check]),
            (self.open_to_write.is_some() && self.request.is_some(), REQUESTS),
        ];
        let has = kinds.iter().filter(|(has, _)| *has).flat_map(|(_, kinds)| *kinds);
        has.fold(QuestionKinds::default(), |all, kind| all.with(*kind))
    }

    /// Has a callback answer a question. `extents` get those of the answer.
    ///
    /// Nothing in this function needs to be dropped: the callback may leave by `longjmp` or an exception.
    ///
    /// # Safety
    /// The callbacks keep the rules of the header, and the question is the one that the harness waits for.
    pub(crate) unsafe fn call(&self, question: &Question, extents: *const Extents) -> Answer {
        errors::begin_callback();
        let mut answer = Answer::of(crate::answer::QCOWFUZZ_NO_ANSWER);
        let Question { files, index, disk, offset, length, buffer, .. } = *question;
        // SAFETY: the promise of the caller of the library.
        let code = unsafe {
            match question.kind {
                QCOWFUZZ_OPEN => self.open.map(|it| it(self.context, files, &mut answer.disk)),
                QCOWFUZZ_OPEN_TO_WRITE => {
                    self.open_to_write.map(|it| it(self.context, files, &mut answer.disk))
                }
                QCOWFUZZ_OPEN_SNAPSHOT => {
                    self.open_snapshot.map(|it| it(self.context, files, index, &mut answer.disk))
                }
                QCOWFUZZ_SIZE => self.size.map(|it| {
                    answer.size_bytes = it(disk);
                    0
                }),
                QCOWFUZZ_READ => self.read.map(|it| it(disk, offset, buffer, length as usize)),
                QCOWFUZZ_STATUS => self.status.map(|it| {
                    (*extents).0.borrow_mut().clear();
                    let mut run = Extent::RUN;
                    let code = it(disk, offset, &mut run);
                    (*extents).0.borrow_mut().push(run);
                    code
                }),
                QCOWFUZZ_MAP => self.map.map(|it| {
                    (*extents).0.borrow_mut().clear();
                    it(disk, offset, length, extents.cast_mut())
                }),
                QCOWFUZZ_CHECK => {
                    self.check.map(|it| it(disk, &mut answer.errors, &mut answer.leaks))
                }
                QCOWFUZZ_CLOSE => Some(self.close.map_or(0, |it| it(disk))),
                _ => self.request.map(|it| it(disk, question)),
            }
        };
        if let Some(code) = code {
            answer.code = code;
            answer.error = errors::of_callback();
        }
        answer
    }
}

/// The kinds of questions of a writer, whose single callback may leave some of them without an answer.
const REQUESTS: &[QuestionKind] = &[
    QuestionKind::Writing,
    QuestionKind::WriteZeroes,
    QuestionKind::Discard,
    QuestionKind::Resize,
    QuestionKind::Flush,
    QuestionKind::TakeSnapshot,
    QuestionKind::ApplySnapshot,
    QuestionKind::DeleteSnapshot,
];

/// The questions of one handle, and the answers.
#[derive(Clone, Default)]
pub(crate) struct Questions {
    pub(crate) exchange: Rc<Exchange<Question, Reply>>,
    pub(crate) details: Rc<Details>,
}

impl Questions {
    /// Asks a question. Without a caller that could answer, there is no answer.
    #[inline]
    fn ask(&self, question: Question) -> Answered<Reply> {
        let reply = self.exchange.ask(question).ok_or(EngineError::NoAnswer)?;
        reply.answered(&self.details)
    }
}

/// An engine that asks the caller of the library.
pub(crate) struct AskingEngine {
    facts: Facts,
    questions: Questions,
    files: ChainFiles,
}

impl AskingEngine {
    pub(crate) fn new(facts: Facts, questions: Questions) -> Self {
        Self { facts, questions, files: ChainFiles::default() }
    }

    fn open_as<'s>(&'s mut self, chain: &'s Chain, question: Question) -> Opened<'s> {
        let is_writable = question.kind == QCOWFUZZ_OPEN_TO_WRITE;
        let Self { questions, files, .. } = self;
        let files = Box::new(Files::new(chain, files, is_writable));
        let question = Question { files: ptr::from_ref(&*files).cast(), ..question };
        match questions.ask(question) {
            Ok(Reply { disk, .. }) => {
                Ok(Box::new(AskingDisk { questions, files, disk, is_open: true }))
            }
            Err(error) => Err(files.take_refusal().unwrap_or(error)),
        }
    }
}

impl Engine for AskingEngine {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.open_as(chain, Question { kind: QCOWFUZZ_OPEN, ..Question::NONE })
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.open_as(chain, Question { kind: QCOWFUZZ_OPEN_TO_WRITE, ..Question::NONE })
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.open_as(chain, Question { kind: QCOWFUZZ_OPEN_SNAPSHOT, index, ..Question::NONE })
    }
}

/// An image that the caller of the library has opened.
struct AskingDisk<'s> {
    questions: &'s Questions,
    files: Box<Files<'s>>,
    disk: *mut c_void,
    is_open: bool,
}

impl AskingDisk<'_> {
    #[inline]
    fn ask(&self, question: Question) -> Answered<Reply> {
        let files = ptr::from_ref(&*self.files).cast();
        self.questions.ask(Question { files, ..question })
    }

    fn about(&self, kind: c_int) -> Question {
        Question::about(self.disk, kind)
    }
}

impl OpenDisk for AskingDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        // A disk without a size has no bytes: the oracles find that.
        self.ask(self.about(QCOWFUZZ_SIZE)).map_or(0, |reply| reply.size_bytes)
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answered {
        let question = self.about(QCOWFUZZ_READ).over(guest.get(), into.len() as u64);
        self.ask(Question { buffer: into.as_mut_ptr(), ..question })?;
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answered<GuestRun> {
        self.ask(self.about(QCOWFUZZ_STATUS).over(guest.get(), 0))?;
        match &**self.questions.details.extents.0.borrow() {
            [run] => run.as_run(),
            other => Err(EngineError::untyped(format!("{} extents, expected one", other.len()))),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answered {
        let question = self.about(QCOWFUZZ_MAP).over(window.start.get(), window.length_bytes);
        self.ask(question)?;
        for extent in &*self.questions.details.extents.0.borrow() {
            if visitor.extent(extent.in_map()?).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn report(&mut self, about: ReportKind) -> Answered<ImageReport> {
        match about {
            ReportKind::Info => Err(EngineError::NoAnswer),
            ReportKind::Check => {
                let Reply { errors, leaks, .. } = self.ask(self.about(QCOWFUZZ_CHECK))?;
                Ok(ImageReport::Check(CheckCounts { errors, leaks }))
            }
        }
    }

    fn request(&mut self, request: &Request) -> Answered {
        let about = |kind| self.about(kind);
        let question = match *request {
            Request::Write { guest, bytes } => Question {
                bytes: bytes.as_ptr(),
                ..about(QCOWFUZZ_WRITE).over(guest.get(), bytes.len() as u64)
            },
            Request::WriteZeroes { guest, length_bytes } => {
                about(QCOWFUZZ_WRITE_ZEROES).over(guest.get(), length_bytes)
            }
            Request::Discard { guest, length_bytes } => {
                about(QCOWFUZZ_DISCARD).over(guest.get(), length_bytes)
            }
            Request::Resize { size_bytes } => about(QCOWFUZZ_RESIZE).over(0, size_bytes),
            Request::Flush => about(QCOWFUZZ_FLUSH),
            Request::TakeSnapshot => about(QCOWFUZZ_TAKE_SNAPSHOT),
            Request::ApplySnapshot { index } => {
                Question { index, ..about(QCOWFUZZ_APPLY_SNAPSHOT) }
            }
            Request::DeleteSnapshot { index } => {
                Question { index, ..about(QCOWFUZZ_DELETE_SNAPSHOT) }
            }
            Request::ChangeBitmap { .. } => return Err(EngineError::NoAnswer),
        };
        self.ask(question)?;
        match request {
            Request::Flush => self.files.pass_back(true),
            _ => Ok(()),
        }
    }

    fn close(mut self: Box<Self>) -> Answered {
        self.is_open = false;
        self.ask(self.about(QCOWFUZZ_CLOSE))?;
        self.files.pass_back(false)
    }
}

/// Closes an image that the harness leaves open, so that the code can free it.
impl Drop for AskingDisk<'_> {
    fn drop(&mut self) {
        // A run that ends by a panic, or because a callback never returned, cannot ask any more.
        if self.is_open && !std::thread::panicking() {
            // The answer of a disk that was not to be changed does not count.
            let _ = self.ask(self.about(QCOWFUZZ_CLOSE));
        }
    }
}
