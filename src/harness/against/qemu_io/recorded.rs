//! The files of an image that QEMU writes, the image and its data file: QEMU records its writes to copies on disk, and
//! the engine repeats them in the files of the chain.
//!
//! QEMU's driver blklogwrites writes the records (block/blklogwrites.c): a sector with the size of the sectors, then a
//! sector for each write or flush, with the written bytes behind it. All numbers are little-endian.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::harness::engine::{Answer, EngineError};
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::files::file_faults::FileFaults;

use super::injected::{InjectedFault, RULES_NAME};
use super::session::fail;

/// The name of the file with the bytes of a write, in the folder in which QEMU works.
pub(super) const PAYLOAD_NAME: &str = "payload";

/// The files of an image that is open for writing.
#[derive(Debug)]
pub(super) struct RecordedFiles {
    chain: Chain,
    /// The operations of QEMU that fail.
    fault: Option<InjectedFault>,
    /// One may have failed, and the harness knows.
    has_noted: bool,
    image: RecordedFile,
    data_file: Option<RecordedFile>,
    /// The options that name the data files of the layers below.
    below: String,
}

/// The options by which QEMU opens an image and records its writes.
#[derive(Clone, Debug)]
pub(super) struct ImageOptions {
    /// For commands that open no layer below: they refuse options about one.
    pub(super) alone: String,
    pub(super) with_layers_below: String,
}

/// A file of the chain, its copy on disk, and the record of the writes to the copy.
#[derive(Debug)]
struct RecordedFile {
    file: ChainFile,
    path: PathBuf,
    record: WriteRecord,
}

impl RecordedFiles {
    /// Creates the files at the top of `chain`, whose image lies at `path`.
    pub(super) fn new(chain: &Chain, path: PathBuf) -> Self {
        let data_file = chain
            .data_file()
            .map(|file| RecordedFile::new(file, path.with_file_name(file.name()), "data-writes"));
        let below = data_file_options(chain, 1);
        let image = RecordedFile::new(chain.image(), path, "writes");
        Self { chain: chain.clone(), fault: None, has_noted: false, image, data_file, below }
    }

    pub(super) fn image(&self) -> &ChainFile {
        &self.image.file
    }

    /// Returns the folder in which QEMU works.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.image.path.parent()
    }

    /// Returns the path of a file beside the image.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.image.path.with_file_name(name)
    }

    /// Takes the fault that the program lets the next operations meet. Returns true if there is one: QEMU meets it
    /// when it has opened the image again.
    pub(super) fn take_fault(&mut self) -> bool {
        let armed = self.chain.faults(FileFaults::take_armed).flatten();
        if let Some(fault) = armed {
            (self.fault, self.has_noted) = (Some(InjectedFault::new(fault)), false);
        }
        armed.is_some()
    }

    /// Notes that operations may have failed.
    pub(super) fn note_failed(&self) {
        self.chain.faults(FileFaults::note_met);
    }

    /// Reports whether operations fail, or the image lies on a device, which ends.
    pub(super) fn may_fail(&self) -> bool {
        self.fault.is_some() || self.chain.device_bytes().is_some()
    }

    /// Begins empty records. Returns the options by which QEMU opens the image and records its writes.
    pub(super) fn begin(&mut self) -> ImageOptions {
        let Recorded { writes, flushes } = self.image.record.recorded;
        self.fault = self.fault.and_then(|fault| fault.left(writes, flushes));
        let image = self.image.begin_image(self.fault, self.chain.device_bytes());
        let mut alone = format!("driver=qcow2,{image}");
        if let Some(file) = &mut self.data_file {
            // A string takes everything.
            let _ = write!(alone, ",{}", file.begin("data-file"));
        }
        ImageOptions { with_layers_below: format!("{alone}{}", self.below), alone }
    }

    /// Returns the options by which QEMU reads the image, without a record.
    pub(super) fn options_to_read(&self) -> String {
        let children = ["file", "data-file"].into_iter().zip(self.names());
        let option = |(child, name)| format!(",{child}.driver=file,{child}.filename={name}");
        let options: String = children.map(option).collect();
        format!("driver=qcow2{options}{}", self.below)
    }

    /// Writes the bytes of a request to the file from which qemu-io takes them.
    pub(super) fn write_payload(&self, bytes: &[u8]) {
        let written = std::fs::write(self.beside(PAYLOAD_NAME), bytes);
        written.unwrap_or_else(|error| fail(&format!("{PAYLOAD_NAME}: {error}")));
    }

    /// Returns the names of the files to which QEMU writes.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files().map(|it| it.file.name())
    }

    /// Returns the paths of the records.
    pub(super) fn records(&self) -> impl Iterator<Item = &Path> {
        self.files().map(|it| it.record.path.as_path())
    }

    fn files(&self) -> impl Iterator<Item = &RecordedFile> {
        [Some(&self.image), self.data_file.as_ref()].into_iter().flatten()
    }

    /// Repeats the new writes of QEMU. The record does not show how the writes to one file follow those to the other
    /// within a command. The data come first here: QEMU writes entries when it has written the data that they name.
    pub(super) fn repeat(&mut self) -> Answer {
        self.data_file.as_mut().map_or(Ok(()), RecordedFile::repeat)?;
        self.image.repeat()?;
        let Recorded { writes, flushes } = self.image.record.recorded;
        if let Some(fault) = self.fault.filter(|fault| fault.may_have_failed(writes, flushes))
            && !(self.has_noted && fault.fails_once())
        {
            self.has_noted = true;
            self.note_failed();
        }
        Ok(())
    }
}

impl RecordedFile {
    /// Creates an empty record with this name beside the copy at `path`.
    fn new(file: &ChainFile, path: PathBuf, record: &str) -> Self {
        let record = WriteRecord::create(path.with_file_name(record))
            .unwrap_or_else(|error| unreadable(&error));
        Self { file: file.clone(), path, record }
    }

    /// Begins an empty record. Returns the options of the image, for which alone QEMU raises events. Operations meet
    /// `fault`, and end with the device, if there are these.
    fn begin_image(&mut self, fault: Option<InjectedFault>, device_bytes: Option<u64>) -> String {
        let mut options = "file.driver=blkdebug".to_string();
        let mut node = "file.image".to_string();
        if let Some(fault) = fault {
            let rules = self.path.with_file_name(RULES_NAME);
            std::fs::write(rules, fault.rules()).unwrap_or_else(|error| unreadable(&error));
            let at = if fault.is_above() { "file" } else { &node };
            // A string takes everything, here and below.
            let _ = write!(options, ",{node}.driver=blkdebug,{at}.config={RULES_NAME}");
            node.push_str(".image");
        }
        if let Some(length_bytes) = device_bytes {
            // Above the record, which has writes that fail below it, too.
            let _ = write!(options, ",{node}.driver=raw,{node}.size={length_bytes}");
            node.push_str(".file");
        }
        format!("{options},{}", self.begin(&node))
    }

    /// Begins an empty record. Returns the options of `node`, which records the writes to the file.
    fn begin(&mut self, node: &str) -> String {
        self.record.begin().unwrap_or_else(|error| unreadable(&error));
        let [path, record] = [&self.path, &self.record.path].map(|path| name_of(path));
        format!(
            "{node}.driver=blklogwrites,{node}.file.driver=file,{node}.file.filename={path},\
             {node}.log.driver=file,{node}.log.filename={record}"
        )
    }

    fn repeat(&mut self) -> Answer {
        self.record.repeat(&self.file).map_err(not_given_if_too_large)?;
        // QEMU records no change of the length.
        let length_bytes = self.path.metadata().unwrap_or_else(|error| unreadable(&error)).len();
        if length_bytes != self.file.length_bytes() {
            self.file.set_length(length_bytes)?;
        }
        Ok(())
    }
}

/// The harness takes a limited number of writes. QEMU may need more: each snapshot copies the L1 table, of 32 MiB at
/// most.
fn not_given_if_too_large(error: StorageError) -> EngineError {
    match error.kind {
        io::ErrorKind::FileTooLarge => EngineError::NotGiven(error.into()),
        _ => error.into(),
    }
}

/// Returns the name of a file in the folder in which QEMU works.
pub(super) fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()
}

/// Returns the options that name the data files of `chain` from the layer at `depth` on.
pub(super) fn data_file_options(chain: &Chain, depth: usize) -> String {
    let mut options = String::new();
    for (depth, layer) in chain.layers().iter().enumerate().skip(depth) {
        if let Some(file) = &layer.data_file {
            let child = format!("{}data-file", "backing.".repeat(depth));
            // A string takes everything.
            let _ = write!(options, ",{child}.driver=file,{child}.filename={}", file.name());
        }
    }
    options
}

/// The unit of the record: the size of a sector, which QEMU takes if no option says otherwise.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The flag of an entry that is a flush.
const FLUSHED: u64 = 1;
/// The flag of an entry that is a discard. It has no bytes.
const DISCARDED: u64 = 4;

/// The record of the writes to one file at a time.
#[derive(Debug)]
struct WriteRecord {
    path: PathBuf,
    file: File,
    /// The offset of the next entry.
    position: u64,
    bytes: Vec<u8>,
    recorded: Recorded,
}

/// The operations in a record.
#[derive(Clone, Copy, Debug, Default)]
struct Recorded {
    writes: u32,
    flushes: u32,
}

struct WriteEntry {
    first_sector: u64,
    sectors: u64,
    flags: u64,
}

impl WriteRecord {
    /// Creates an empty record at `path`.
    fn create(path: PathBuf) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        let recorded = Recorded::default();
        Ok(Self { path, file, position: SECTOR_BYTES, bytes: Vec::new(), recorded })
    }

    /// Empties the record.
    fn begin(&mut self) -> io::Result<()> {
        (self.position, self.recorded) = (SECTOR_BYTES, Recorded::default());
        self.file.set_len(0)
    }

    /// Repeats the new entries in a file. QEMU has answered the command that caused them, so that all are there.
    /// Discards are not repeated: the discarded bytes may stay as they are.
    ///
    /// # Errors
    /// The file takes no more. A record that cannot be read ends the run without a verdict.
    fn repeat(&mut self, file: &ChainFile) -> Result<(), StorageError> {
        while let Some(entry) = self.next().unwrap_or_else(|error| unreadable(&error)) {
            let from = self.position.saturating_add(SECTOR_BYTES);
            self.position = from;
            if entry.flags & DISCARDED == 0 {
                let length = entry.sectors.saturating_mul(SECTOR_BYTES);
                self.position = from.saturating_add(length);
                self.read(from, length).unwrap_or_else(|error| unreadable(&error));
                let offset = entry.first_sector.saturating_mul(SECTOR_BYTES);
                if length > 0 {
                    self.recorded.writes = self.recorded.writes.saturating_add(1);
                    file.write_at(HostOffset::new(offset), &self.bytes)?;
                }
            }
            if entry.flags & FLUSHED != 0 {
                self.recorded.flushes = self.recorded.flushes.saturating_add(1);
                file.flush()?;
            }
        }
        Ok(())
    }

    /// Reads the bytes of an entry.
    fn read(&mut self, from: u64, length: u64) -> io::Result<()> {
        if from.saturating_add(length) > self.file.metadata()?.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.file.read_exact_at(&mut self.bytes, from)
    }

    fn next(&self) -> io::Result<Option<WriteEntry>> {
        if self.position.saturating_add(SECTOR_BYTES) > self.file.metadata()?.len() {
            return Ok(None);
        }
        let mut words = [0; 24];
        self.file.read_exact_at(&mut words, self.position)?;
        let (words, _) = words.as_chunks::<8>();
        let [first_sector, sectors, flags] = [0, 1, 2].map(|nth| u64::from_le_bytes(words[nth]));
        Ok(Some(WriteEntry { first_sector, sectors, flags }))
    }
}

/// Ends the run without a verdict: the system refuses the record, or the file that QEMU writes.
pub(super) fn unreadable(error: &io::Error) -> ! {
    fail(&format!("the record of the writes: {error}"))
}
