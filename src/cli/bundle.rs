//! `bundle`: an input and all that there is to tell of it, in one archive: what one attaches to a bug report.

use qcowfuzz::harness::target::Expectation;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serializer;
use tar::{Builder, Header};

use qcowfuzz::disk::storage::Storage;
use qcowfuzz::findings::panics::PanicNotes;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::export::Holes;
use qcowfuzz::images::files::FileNames;

use super::account::{Account, Verdict};
use super::examine::Examiner;
use super::exit::{Exit, Failure, Outcome};
use super::files::Built;
use super::files::{self, Existing};
use super::once::survived;
use super::output::{QemuMap, Record, Row};
use super::print::say;
use super::qemu;
use super::target;
use qcowfuzz::harness::targets::TargetKind;

/// Pack an input with all that is known of it into an archive: what one attaches to a bug report
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has one folder: the input, the program as text, what replay tells of it as text and as \
JSON, the image that it builds with the files that it names, the map of the disk as the reference \
model, the walker and qemu-img have it, versions, and reproduce.sh, which shows the bug again. The \
same input gives the same archive, but for versions.

Exit codes: 0 the archive was written; 2 nothing is found in INPUT, or a file could not be read or \
written.

Example: qcowfuzz bundle small -o zeros-moved.tar")]
pub struct Arguments {
    /// The input, which shows a bug
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Where the archive goes
    #[arg(short, value_name = "F.tar")]
    output: PathBuf,
    /// The fuzz target that the input is for
    #[arg(long, value_parser = target::parser(), default_value = target::DEFAULT)]
    target: TargetKind,
    /// Replace the output if it is there already
    #[arg(long)]
    force: bool,
}

/// Images up to this length, together, are packed.
const MAX_PACKED_BYTES: u64 = 64 << 20;

/// Packs the input.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { input, output, target, force } = arguments;
    let existing = files::not_the_input(output, input, *force)?;
    let bytes = files::read_input(input)?;
    survived(input, &bytes, *target)?;
    let _silence = PanicNotes::take_over();
    let mut examiner = Examiner::new(*target, Checks::AtCheckpoints, FileNames::default());
    // By the name that it has in the archive: where it lay is nobody's business.
    let account = examiner.examine(Path::new("input"), &bytes);
    if account.verdict != Verdict::Violation {
        return Err(files::nothing_found(input, *target));
    }
    let mut archive = Archive::new(output);
    archive.contents(&account, *target, &bytes).map_err(|error| Failure::at(output, error))?;
    let packed = archive.finish().map_err(|error| Failure::at(output, error))?;
    files::write(output, existing, &packed)?;
    say(format_args!("{}: {}", output.display(), account.judgement()))?;
    Ok(Exit::Nothing)
}

/// An archive in memory, all of whose files are in one folder.
struct Archive {
    folder: PathBuf,
    tar: Builder<Vec<u8>>,
}

impl Archive {
    /// The folder is called as the archive is, and unlike an input that lies beside it.
    fn new(output: &Path) -> Self {
        let mut folder = output.file_stem().unwrap_or("bug".as_ref()).to_os_string();
        folder.push("-bundle");
        Self { folder: folder.into(), tar: Builder::new(Vec::new()) }
    }

    fn contents(&mut self, account: &Account, target: TargetKind, input: &[u8]) -> io::Result<()> {
        self.file("input", input)?;
        if let Some(program) = &account.program {
            self.file("program.txt", program.as_bytes())?;
        }
        let [mut text, mut json] = [Vec::new(), Vec::new()];
        account.whole(&mut text)?;
        account.json(&mut json)?;
        self.file("replay.txt", &text)?;
        self.file("replay.json", &json)?;
        let evidence = &account.evidence;
        if !evidence.expected.is_empty() {
            self.map("map-model.json", &evidence.expected)?;
        }
        if target.definition().expectation != Expectation::NotWalked {
            self.map("map-walker.json", &evidence.actual)?;
        }
        match qemu::asked(account, target) {
            Ok(map) => {
                self.map("map-qemu-img.json", &map.records)?;
                if map.holes == Holes::Keep {
                    self.file("map-qemu-img.txt", SPARSE.as_bytes())?;
                }
            }
            Err(why) => self.file("map-qemu-img.txt", format!("{why}\n").as_bytes())?,
        }
        if let Some(explanation) = evidence.explanation() {
            self.images(explanation.built(), target)?;
        }
        self.file("versions.txt", versions().as_bytes())?;
        self.with_mode("reproduce.sh", reproduce(account).as_bytes(), 0o755)
    }

    /// A map as qemu-img prints it.
    fn map(&mut self, name: &str, records: &[Record]) -> io::Result<()> {
        let mut text = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, QemuMap::default());
        serializer.collect_seq(records.iter().map(Row))?;
        text.push(b'\n');
        self.file(name, &text)
    }

    /// The image at the top, and the files that it names.
    fn images(&mut self, built: Built, target: TargetKind) -> io::Result<()> {
        let names = FileNames::default();
        let length: u64 = built.1.files(&names).map(|(_, image)| image.length_bytes()).sum();
        if length > MAX_PACKED_BYTES {
            let name = target.name();
            let line = format!(
                "Left out: {length} bytes. To write them:\n\
                 qcowfuzz replay --target {name} ../input --dump-image layer.qcow2\n"
            );
            return self.file("image/left-out.txt", line.as_bytes());
        }
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join(TOP_NAME);
        files::write_images(&path, Existing::Keep, built, Holes::Fill)
            .map_err(|failure| io::Error::other(failure.to_string()))?;
        for (name, _) in built.1.files(&names) {
            let name = name.unwrap_or(TOP_NAME);
            self.file(&format!("image/{name}"), &std::fs::read(scratch.path().join(name))?)?;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.with_mode(name, bytes, 0o644)
    }

    /// Of no time and no owner: the same input gives the same archive.
    fn with_mode(&mut self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_mtime(0);
        self.tar.append_data(&mut header, self.folder.join(name), bytes)
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        self.tar.into_inner()
    }
}

/// What is to be known of a map of long files.
const SPARSE: &str = "The files were too long to be written out: of clusters that were allocated and hold \
                      nothing, qemu-img may say that they read as zeros.\n";
/// What the image at the top is called: so that [`FileNames::default`] are the names of the others.
const TOP_NAME: &str = "layer.qcow2";

fn versions() -> String {
    let qemu = qemu::version().unwrap_or_else(|| "not installed".to_string());
    let (os, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("qcowfuzz {}\nqemu-img {qemu}\n{os} {architecture}\n", env!("CARGO_PKG_VERSION"))
}

/// A script that shows the bug again.
fn reproduce(account: &Account) -> String {
    let fingerprint = account.judgement().replace('\'', "'\\''");
    REPRODUCE.replace("FINGERPRINT", &fingerprint).replace("TARGET", account.target.name())
}

const REPRODUCE: &str = r#"#!/bin/sh
# Runs the input again: exits with 0 where it shows what it showed, with 1 where it does not, with 2 where it cannot
# be run. QCOWFUZZ is the command, built with the code under test; by default the one on the path.
expected='FINGERPRINT'
qcowfuzz=$(command -v "${QCOWFUZZ:-qcowfuzz}") || { echo "no ${QCOWFUZZ:-qcowfuzz}" >&2; exit 2; }
case $qcowfuzz in /*) ;; *) qcowfuzz=$PWD/$qcowfuzz ;; esac
cd "$(dirname "$0")" || exit 2
found=$("$qcowfuzz" replay --brief --target TARGET input)
test $? -le 1 || exit 2
found=${found#input: }
echo "expected: $expected"
echo "found:    $found"
test "$found" = "$expected"
"#;
