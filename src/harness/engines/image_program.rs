//! A program with the command line of qemu-img as an engine. qemu-img is one of them. It answers each question about
//! the files in a folder by a process: `info`, `map`, `check`, and `convert` to a raw file, which the harness reads.
//!
//! Does not ask about disks that have more than 2^17 tables or 2^47 bytes, files that have more than 2^21 clusters, and
//! images that have more than 1,024 snapshots: qemu-img takes seconds for them. Nor about the data of disks whose map
//! has more than 256 MiB of data, and about snapshots of another size than that of the disk, to which qemu-img gives
//! the size of the disk.

use std::cell::Cell;
use std::rc::Rc;

use crate::disk::extent::{Extent, Visitor, Window};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::header::Header;
use crate::harness::against::qemu_io::answers;
use crate::harness::cases::implementation::{Expression, Implementation};
use crate::harness::engine::claims::EnginePolicy;
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::{
    AccessFeedback, Answer, Engine, EngineError, EngineQuestion, Facts, ImageReport, OpenDisk,
    Opened, ReportKind,
};
use crate::harness::files::chain::{Chain, ChainFolder};
use crate::harness::oracles::extents::model;
use crate::harness::{ChainFiles, Walker};
use crate::processes::ProcessEnd;

use super::engine_process::{EndedProgram, ImageCommands, reported};
use super::image_answers::{
    self, ConvertedFile, InfoJson, NamedSnapshot, QemuMapRecord, parse_map, without_holes,
};

/// The largest number of bytes of data that are written to a raw file.
const MAX_RAW_DATA_BYTES: u64 = 256 << 20;
/// The longest window of qemu-img.
const MAX_QEMU_WINDOW_BYTES: u64 = i64::MAX.unsigned_abs();

/// A program with the command line of qemu-img: the implementation under test.
#[derive(Clone, Debug)]
pub struct ImageProgram {
    line: Rc<str>,
    version: Rc<str>,
    answers: QuestionKinds,
    /// `map` takes the bounds of a window. Otherwise the harness cuts the map of the disk.
    has_windows: bool,
}

impl ImageProgram {
    /// Runs `line` with a shell, to find out its version and its options: snapshots need `convert -l`, and windows `map
    /// --start-offset` and `--max-length`.
    ///
    /// # Errors
    /// Returns one line for the user: the program cannot be run.
    pub fn start(line: &str) -> Result<Self, String> {
        let folder = std::path::Path::new(".");
        let commands = ImageCommands { line, folder };
        let printed = |arguments: &[&str]| {
            let EndedProgram { end, output } = commands.try_run(arguments)?;
            Ok::<_, String>(format!("{output}{}", end.detail))
        };
        let version = printed(&["--version"])?;
        let has_option = |help: &str, option| {
            help.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == option)
        };
        let has_snapshots = has_option(&printed(&["convert", "--help"])?, "-l");
        let map = printed(&["map", "--help"])?;
        let has_windows =
            ["--start-offset", "--max-length"].iter().all(|option| has_option(&map, option));
        let answers = QuestionKinds::of(&[
            QuestionKind::Open,
            QuestionKind::Map,
            QuestionKind::Read,
            QuestionKind::Info,
            QuestionKind::Check,
        ]);
        let answers = if has_snapshots { answers.with(QuestionKind::Snapshots) } else { answers };
        Ok(Self { line: line.into(), version: version.into(), answers, has_windows })
    }

    /// Returns a text that changes with the version and the options of the program.
    #[cfg(feature = "cli")]
    pub(crate) fn identity(&self) -> String {
        let Self { version, answers, has_windows, .. } = self;
        format!("{version}{answers:?}{has_windows}")
    }
}

impl From<ImageProgram> for Implementation {
    fn from(program: ImageProgram) -> Self {
        let expression = Expression::started(
            "qcowfuzz::harness::engines::image_program::ImageProgram::start",
            &program.line,
        );
        let implementation = Self::new(move |observer| {
            let (program, files) = (program.clone(), ChainFiles::default());
            let shadow = Walker::observed(Rc::clone(observer));
            Box::new(ProgramEngine { program, files, shadow, has_ended: Cell::default() })
        });
        implementation.written_as(expression)
    }
}

struct ProgramEngine {
    program: ImageProgram,
    files: ChainFiles,
    /// Walks the same images, if its events steer the loop.
    shadow: Walker,
    /// The image has ended a process. It is not asked about again: it could end each process at a limit of time.
    has_ended: Cell<bool>,
}

impl Engine for ProgramEngine {
    fn facts(&self) -> Facts {
        Facts {
            answers: self.program.answers,
            policy: EnginePolicy::OTHER_PROCESS,
            reads: AccessFeedback::None,
            is_prepared: true,
            version: self
                .program
                .version
                .lines()
                .next()
                .map_or_else(String::new, String::from)
                .into(),
            ..Facts::new(self.program.line.to_string())
        }
    }

    fn begin_run(&mut self) {
        self.shadow.begin_run();
    }

    fn prepare(&mut self, chain: &Chain, _questions: &[EngineQuestion]) {
        self.shadow.walk_observed(chain);
        self.has_ended.set(false);
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let mut disk = self.disk(chain)?;
        disk.size_bytes = disk.ask(|commands| InfoJson::ask(commands, chain, 0))?.virtual_size;
        disk.convert_small()?;
        Ok(Box::new(disk))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let mut disk = self.disk(chain)?;
        disk.is_snapshot = true;
        let header = Header::read(chain.image())?;
        let snapshots = image_answers::snapshots(chain.image(), &header)?;
        // Only `Unsupported` leaves the image: the harness has no name for the snapshot.
        let nth = usize::try_from(index).unwrap_or(usize::MAX);
        let name = NamedSnapshot::string_of(&snapshots, nth).map_err(|_| EngineError::NoAnswer)?;
        if snapshots.get(nth).is_some_and(|it| it.size_bytes != header.size_bytes) {
            return Err(EngineError::NoAnswer);
        }
        let converted = disk.convert(&["-l", name])?;
        disk.size_bytes = converted.size_bytes;
        disk.converted = Some(converted);
        Ok(Box::new(disk))
    }
}

impl ProgramEngine {
    /// Writes the files of `chain`.
    fn disk<'s>(&'s mut self, chain: &'s Chain) -> Answer<ProgramDisk<'s>> {
        self.files.write(chain)?;
        // The program does not make these reads.
        if answers::is_slow_to_map(&chain.unmetered()) {
            return Err(EngineError::NotGiven("qemu-img would take seconds".into()));
        }
        let Some(folder) = self.files.folder().map(ChainFolder::path) else {
            return Err(EngineError::NoAnswer);
        };
        let (size_bytes, is_snapshot, converted, whole) = Default::default();
        Ok(ProgramDisk {
            commands: ImageCommands { line: &self.program.line, folder },
            has_ended: &self.has_ended,
            chain,
            has_windows: self.program.has_windows,
            size_bytes,
            is_snapshot,
            converted,
            whole,
        })
    }
}

/// An image, or a snapshot of it, about which a program answers.
struct ProgramDisk<'s> {
    commands: ImageCommands<'s>,
    has_ended: &'s Cell<bool>,
    chain: &'s Chain,
    has_windows: bool,
    size_bytes: u64,
    is_snapshot: bool,
    converted: Option<ConvertedFile>,
    /// The map of the whole disk, without an error.
    whole: Option<Vec<Extent>>,
}

impl ProgramDisk<'_> {
    fn format(&self) -> ImageFormat {
        self.chain.format()
    }

    /// Asks the program. If one of its processes has already crashed or hung on this image, returns an error instead.
    fn ask<T>(&self, ask: impl FnOnce(&ImageCommands<'_>) -> Answer<T>) -> Answer<T> {
        if self.has_ended.get() {
            return Err(EngineError::untyped("the process has ended"));
        }
        let answer = ask(&self.commands);
        self.has_ended.set(matches!(answer, Err(EngineError::Ended(_))));
        answer
    }

    /// Has the program write the disk to a raw file.
    fn convert(&self, options: &[&str]) -> Answer<ConvertedFile> {
        let output = if self.is_snapshot { "converted.snapshot" } else { "converted" };
        let name = self.chain.image().name();
        let format = ["convert", "-f", self.format().name()];
        let arguments = [&format[..], options, &["-O", "raw", name, output]].concat();
        let write = || self.ask(|commands| commands.answer(&arguments));
        ConvertedFile::written(self.commands.folder.join(output), write)
    }

    /// Asks for the map of a part of the disk. Returns the extents before an error, too.
    fn ask_map(&self, window: &[&str]) -> (Vec<Extent>, Answer) {
        let (format, name) = (self.format().name(), self.chain.image().name());
        let arguments = [&["map", "--output=json", "-f", format][..], window, &[name]].concat();
        let mut printed = Vec::new();
        let answer = self.ask(|commands| {
            let EndedProgram { end, output } = commands.run(&arguments);
            match end.process {
                ProcessEnd::Exit(0) => {
                    let records: Vec<QemuMapRecord> =
                        serde_json::from_str(&output).map_err(not_a_map)?;
                    printed.extend(records.into_iter().map(Extent::from));
                    Ok(())
                }
                ProcessEnd::Exit(1) => {
                    printed = parse_map(&output).0;
                    Err(reported(&end))
                }
                _ => Err(EngineError::Ended(Box::new(end))),
            }
        });
        (without_holes(&printed, self.chain), answer)
    }

    /// Asks for the map of the whole disk, and keeps it.
    fn whole(&mut self) -> Answer<&[Extent]> {
        if self.whole.is_none() {
            let (extents, answer) = self.ask_map(&[]);
            answer?;
            self.whole = Some(extents);
        }
        // The map has just been stored.
        Ok(self.whole.as_deref().unwrap_or_default())
    }

    /// Has the program write the disk to a raw file, unless its map has too many data.
    ///
    /// A program that cannot read a part of the disk writes no file at all. So an error refuses the image. If the map
    /// fails, too, its error is the answer, and nothing is read.
    fn convert_small(&mut self) -> Answer {
        let is_mapped = match self.data_bytes() {
            Ok(bytes) if bytes > MAX_RAW_DATA_BYTES => return Ok(()),
            Ok(_) => true,
            Err(EngineError::Ended(end)) => return Err(EngineError::Ended(end)),
            Err(_) => false,
        };
        match self.convert(&[]) {
            Ok(converted) => self.converted = Some(converted),
            Err(EngineError::Untyped(_)) if !is_mapped => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the number of bytes that are data, by the map of the whole disk.
    fn data_bytes(&mut self) -> Answer<u64> {
        let data = self.whole()?.iter().filter(|extent| extent.mapping.data);
        // A saturated sum is larger than any disk.
        Ok(data.fold(0, |sum: u64, extent| sum.saturating_add(extent.length_bytes)))
    }
}

impl OpenDisk for ProgramDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.size_bytes
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let range = window.clipped(self.size_bytes);
        // The range lies on the disk, and does not end before it begins.
        let length = range.end.get().saturating_sub(range.start.get());
        if self.is_snapshot {
            return Err(EngineError::NoAnswer);
        }
        if length == 0 {
            // qemu-img would print a record of 0 bytes, but an empty window has no extents.
            return Ok(());
        }
        let is_whole = length == self.size_bytes;
        let (extents, answer) = if is_whole && self.whole.is_none() {
            let asked = self.ask_map(&[]);
            self.whole = asked.1.is_ok().then(|| asked.0.clone());
            asked
        } else if !is_whole && self.has_windows && length <= MAX_QEMU_WINDOW_BYTES {
            let start = format!("--start-offset={}", range.start.get());
            self.ask_map(&[&start, &format!("--max-length={length}")])
        } else {
            let (bytes, mut clipped) = (range.start.get()..range.end.get(), Vec::new());
            model::clip(self.whole()?, &bytes, &mut clipped);
            (clipped, Ok(()))
        };
        let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
        answer
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        match &mut self.converted {
            Some(converted) => converted.read(guest, into),
            None => Err(EngineError::NoAnswer),
        }
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        match about {
            _ if self.is_snapshot => Err(EngineError::NoAnswer),
            ReportKind::Info => {
                self.ask(|it| image_answers::info(it, self.chain)).map(ImageReport::Info)
            }
            ReportKind::Check => {
                self.ask(|it| image_answers::check(it, self.chain)).map(ImageReport::Check)
            }
        }
    }
}

fn not_a_map(error: serde_json::Error) -> EngineError {
    EngineError::untyped(format!("the map is not as expected: {error}"))
}
