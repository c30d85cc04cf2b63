//! The line protocol (`docs/engines.md`), in front of callbacks: a program in C becomes the command of
//! `qcowfuzz --engine-command`, with all its verbs.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::PathBuf;
use std::ptr;

use crate::answer::{
    Answer, Extent, Extents, QCOWFUZZ_BELOW, QCOWFUZZ_COMPRESSED, QCOWFUZZ_DATA, QCOWFUZZ_HOLE,
    QCOWFUZZ_IO, QCOWFUZZ_MALFORMED, QCOWFUZZ_NO_ANSWER, QCOWFUZZ_NO_DEPTH, QCOWFUZZ_NO_OFFSET,
    QCOWFUZZ_OK, QCOWFUZZ_STORED, QCOWFUZZ_UNSUPPORTED, QCOWFUZZ_ZEROS, copied,
};
use crate::case_files::{
    Files, NamedFile, QCOWFUZZ_DATA_FILE, QCOWFUZZ_EXTENT_FILE, QCOWFUZZ_IMAGE,
};
use crate::engine::EngineTable;
use crate::errors::misuse;
use crate::question::{
    QCOWFUZZ_CLOSE, QCOWFUZZ_MAP, QCOWFUZZ_OPEN, QCOWFUZZ_OPEN_SNAPSHOT, QCOWFUZZ_READ,
    QCOWFUZZ_SIZE, QCOWFUZZ_STATUS, Question,
};

/// The longest range of one question: the harness asks for less.
const MAX_READ_BYTES: u64 = 1 << 30;

/// Answers the questions of `qcowfuzz --engine-command` on standard input and output, until the input ends. The
/// callbacks may print to standard error only. Returns 0, or QCOWFUZZ_ERROR on an error of the table or of a stream.
/// A target of QCOWFUZZ_FUZZ_TARGET calls it if its first argument is `--engine`.
///
/// # Safety
/// `engine` is valid, and its texts are; the callbacks keep the rules of the header, and return.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn qcowfuzz_serve(engine: *const EngineTable) -> c_int {
    // SAFETY: the caller's promise.
    let table = match engine.is_null() {
        true => Err("expected an engine, found a null pointer".to_string()),
        // SAFETY: the caller's promise.
        false => unsafe { EngineTable::copied_from(engine) },
    };
    // SAFETY: the caller's promise.
    let served = table.and_then(|table| unsafe {
        // The harness would say the same, without the name of the field.
        table.facts()?;
        let mut server = Server::new(table);
        server.serve(io::stdin().lock()).map_err(|error| error.to_string())
    });
    match served {
        Ok(()) => 0,
        Err(what) => misuse(format!("qcowfuzz_serve: {what}")),
    }
}

/// Calls `qcowfuzz_serve`, and ends the process, if the first argument of the program is `--engine`. Programs call it
/// in `LLVMFuzzerInitialize`: see QCOWFUZZ_FUZZ_TARGET. Returns 0.
///
/// # Safety
/// As for `qcowfuzz_serve`; `argc` and `argv` are those of `LLVMFuzzerInitialize`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn qcowfuzz_initialize(
    argc: *const c_int,
    argv: *const *const *const c_char,
    engine: *const EngineTable,
) -> c_int {
    if argc.is_null() || argv.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let first = unsafe { if *argc > 1 { copied(*(*argv).add(1)) } else { None } };
    if first.as_deref() != Some("--engine") {
        return 0;
    }
    // SAFETY: the caller's promise.
    if unsafe { qcowfuzz_serve(engine) } == 0 {
        std::process::exit(0);
    }
    eprintln!("{}", crate::errors::last());
    std::process::exit(2)
}

/// The state between lines.
struct Server {
    table: EngineTable,
    out: BufWriter<io::StdoutLock<'static>>,
    /// The lines that name files.
    named: Vec<NamedFile>,
    files: Option<Box<Files<'static>>>,
    disk: Option<*mut c_void>,
    extents: Extents,
    buffer: Vec<u8>,
}

impl Server {
    fn new(table: EngineTable) -> Self {
        let (named, files, disk, extents, buffer) = Default::default();
        let out = BufWriter::new(io::stdout().lock());
        Self { table, out, named, files, disk, extents, buffer }
    }

    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn serve(&mut self, lines: impl BufRead) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.first_lines()? };
        for line in lines.lines() {
            let line = line?;
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb {
                "image" => {
                    let (format, path) = rest.split_once(' ').unwrap_or((rest, ""));
                    let layers = self.named.iter().filter(|file| file.kind == QCOWFUZZ_IMAGE);
                    let layer = layers.count() as u32;
                    self.name(layer, QCOWFUZZ_IMAGE, format, path)?;
                }
                "data" => self.name_other(QCOWFUZZ_DATA_FILE, rest)?,
                "extent" => self.name_other(QCOWFUZZ_EXTENT_FILE, rest)?,
                // SAFETY: the caller's promise.
                "end" => unsafe {
                    self.close();
                    (self.named, self.files) = Default::default();
                    self.out.flush()?;
                },
                // SAFETY: the caller's promise.
                _ => unsafe { self.answer(verb, rest)? },
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn first_lines(&mut self) -> io::Result<()> {
        // SAFETY: the caller's promise.
        let [name, claims] = [self.table.name, self.table.claims].map(|it| unsafe { copied(it) });
        writeln!(self.out, "qcowfuzz-engine 1\nname {}", name.unwrap_or_else(|| "unnamed".into()))?;
        for line in claims.unwrap_or_default().lines().map(str::trim) {
            if !line.is_empty() {
                writeln!(self.out, "{line}")?;
            }
        }
        let verbs = [
            ("read", self.table.read.is_some()),
            ("status", self.table.status.is_some()),
            ("map", self.table.map.is_some()),
            ("snapshot", self.table.open_snapshot.is_some()),
        ];
        let answers: Vec<_> = verbs.iter().filter(|it| it.1).map(|it| it.0).collect();
        writeln!(self.out, "answers {}\nready", answers.join(" "))?;
        self.out.flush()
    }

    fn name_other(&mut self, kind: c_int, path: &str) -> io::Result<()> {
        let layer = self.named.last().map_or(0, |file| file.layer);
        self.name(layer, kind, "raw", path)
    }

    fn name(&mut self, layer: u32, kind: c_int, format: &str, path: &str) -> io::Result<()> {
        let (format, path) = (format.to_string(), PathBuf::from(path));
        let file = File::open(&path)?;
        self.named.push(NamedFile { layer, kind, format, path, file });
        Ok(())
    }

    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn answer(&mut self, verb: &str, rest: &str) -> io::Result<()> {
        let mut words = rest.split(' ').map(|word| word.parse().ok());
        let mut number = || words.next().flatten().unwrap_or(0u64);
        let (first, second) = (number(), number());
        let kind = match verb {
            "open" => QCOWFUZZ_OPEN,
            "snapshot" => QCOWFUZZ_OPEN_SNAPSHOT,
            "read" => QCOWFUZZ_READ,
            "status" => QCOWFUZZ_STATUS,
            "map" => QCOWFUZZ_MAP,
            _ => return writeln!(self.out, "unsupported the verb {verb}"),
        };
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                QCOWFUZZ_OPEN | QCOWFUZZ_OPEN_SNAPSHOT => self.open(kind, first),
                _ => self.ask(kind, first, second),
            }
        }
    }

    /// Closes the disk that is open.
    ///
    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn close(&mut self) {
        if let Some(disk) = self.disk.take() {
            // SAFETY: the caller's promise. The result of closing a disk that has not changed does not count.
            unsafe { self.table.call(&Question::about(disk, QCOWFUZZ_CLOSE), &self.extents) };
        }
    }

    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn open(&mut self, kind: c_int, index: u64) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.close() };
        if !self.named.is_empty() {
            self.files = Some(Box::new(Files::named(std::mem::take(&mut self.named))));
        }
        let files = self.files.as_deref().map_or(ptr::null(), ptr::from_ref);
        let question = Question { kind, files, index: index as u32, ..Question::NONE };
        // SAFETY: the caller's promise.
        let answer = unsafe { self.table.call(&question, &self.extents) };
        if answer.code != QCOWFUZZ_OK {
            // SAFETY: the caller's promise.
            return unsafe { self.error(&answer) };
        }
        self.disk = Some(answer.disk);
        let size = Question::about(answer.disk, QCOWFUZZ_SIZE);
        // SAFETY: the caller's promise.
        let size_bytes = unsafe { self.table.call(&size, &self.extents) }.size_bytes;
        writeln!(self.out, "ok {size_bytes}")
    }

    /// # Safety
    /// As for `qcowfuzz_serve`.
    unsafe fn ask(&mut self, kind: c_int, offset: u64, length: u64) -> io::Result<()> {
        let Some(disk) = self.disk else { return writeln!(self.out, "error no disk is open") };
        let mut question = Question::about(disk, kind).over(offset, length);
        if kind == QCOWFUZZ_READ {
            if length > MAX_READ_BYTES {
                return writeln!(self.out, "error a read of more than {MAX_READ_BYTES} bytes");
            }
            self.buffer.clear();
            self.buffer.resize(length as usize, 0xA5);
            question.buffer = self.buffer.as_mut_ptr();
        }
        // SAFETY: the caller's promise.
        let answer = unsafe { self.table.call(&question, &self.extents) };
        if answer.code != QCOWFUZZ_OK {
            // SAFETY: the caller's promise.
            return unsafe { self.error(&answer) };
        }
        let extents = self.extents.0.borrow();
        match (kind, &**extents) {
            (QCOWFUZZ_READ, _) => {
                writeln!(self.out, "ok {length}")?;
                self.out.write_all(&self.buffer)
            }
            (QCOWFUZZ_STATUS, [run]) => writeln!(self.out, "ok {} {}", run.length, Words(run)),
            (_, extents) => {
                writeln!(self.out, "ok {}", extents.len())?;
                extents.iter().try_for_each(|extent| {
                    writeln!(self.out, "{} {} {}", extent.start, extent.length, Words(extent))
                })
            }
        }
    }

    /// # Safety
    /// The answer is that of the last callback.
    unsafe fn error(&mut self, answer: &Answer) -> io::Result<()> {
        // SAFETY: the caller's promise.
        let text = unsafe { copied(answer.error) };
        let or = |other: &str| text.clone().unwrap_or_else(|| other.to_string()).replace('\n', " ");
        match answer.code {
            QCOWFUZZ_NO_ANSWER => writeln!(self.out, "unsupported the question"),
            QCOWFUZZ_UNSUPPORTED => writeln!(self.out, "unsupported {}", or("unsupported")),
            QCOWFUZZ_IO => writeln!(self.out, "io {}", or("input or output")),
            QCOWFUZZ_MALFORMED => writeln!(self.out, "failed {}", or("malformed")),
            code => writeln!(self.out, "error {}", or(&format!("error {code}"))),
        }
    }
}

/// Prints `STATUS HOST DEPTH` of an extent. A status that does not exist is printed as it is: the harness reports it.
struct Words<'e>(&'e Extent);

impl std::fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Extent { host_offset, depth, status, .. } = *self.0;
        match status {
            QCOWFUZZ_HOLE => f.write_str("hole"),
            QCOWFUZZ_ZEROS => f.write_str("zeros"),
            QCOWFUZZ_DATA => f.write_str("data"),
            QCOWFUZZ_COMPRESSED => f.write_str("compressed"),
            QCOWFUZZ_STORED => f.write_str("stored"),
            QCOWFUZZ_BELOW => f.write_str("below"),
            other => write!(f, "{other}"),
        }?;
        match host_offset {
            QCOWFUZZ_NO_OFFSET => f.write_str(" -"),
            offset => write!(f, " {offset}"),
        }?;
        match depth {
            QCOWFUZZ_NO_DEPTH => f.write_str(" -"),
            depth => write!(f, " {depth}"),
        }
    }
}
