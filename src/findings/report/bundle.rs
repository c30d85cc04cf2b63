//! The archive of a finding: the input, and everything that explains it, to attach to a bug report.

use std::io;
use std::path::{Path, PathBuf};

use tar::{Builder, Header};

use crate::base::files::Existing;
use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::harness::cases::target::Expectation;
use crate::harness::targets::TargetKind;
use crate::images::files::export::Holes;
use crate::images::files::{FileNames, Images};
use crate::processes::TemporaryFolder;
use crate::programs::export::{self, Built};
use crate::recipes::recipe::quoted;

use super::Report;
use super::qemu::{self, QemuResult};
use super::records::{MapRecord, RecordList};
use super::script::ScriptFile;

/// The maximum total length of the images in an archive, in bytes.
const MAX_PACKED_BYTES: u64 = 64 << 20;

/// Returns an archive of the report of `input`, with the files of a script that shows the finding without this project.
/// Its images name each other by [`FileNames::default`]. All files are in `folder`. The same input gives the same
/// archive, except for the versions in it.
///
/// # Errors
/// The images cannot be written to a temporary folder.
pub fn archive(
    report: &Report,
    input: &[u8],
    script: &[ScriptFile],
    folder: &Path,
) -> io::Result<Vec<u8>> {
    let mut archive = Archive { folder: folder.to_path_buf(), tar: Builder::new(Vec::new()) };
    archive.contents(report, input)?;
    for ScriptFile { name, bytes } in script {
        archive.file(&format!("script/{name}"), bytes)?;
    }
    archive.finish()
}

/// An archive in memory, with all files in one folder.
struct Archive {
    folder: PathBuf,
    tar: Builder<Vec<u8>>,
}

impl Archive {
    fn contents(&mut self, report: &Report, input: &[u8]) -> io::Result<()> {
        let target = report.target;
        self.file("input", input)?;
        if let Some(program) = &report.program {
            self.file("program.txt", program.as_bytes())?;
        }
        if !report.recipe.is_empty() {
            self.file("recipe.txt", (report.recipe.join("\n") + "\n").as_bytes())?;
        }
        let [mut text, mut json] = [Vec::new(), Vec::new()];
        report.text(&mut text)?;
        report.json(&mut json)?;
        self.file("replay.txt", &text)?;
        self.file("replay.json", &json)?;
        let evidence = &report.evidence;
        if !evidence.expected.is_empty() {
            self.map("map-model.json", &evidence.expected)?;
        }
        if target.definition().expectation != Expectation::NotWalked {
            self.map("map-walker.json", &evidence.actual)?;
        }
        match QemuResult::of(report).answer {
            Ok(map) => {
                self.map("map-qemu-img.json", &map.extents)?;
                if map.holes == Holes::Keep {
                    self.file("map-qemu-img.txt", SPARSE.as_bytes())?;
                }
            }
            Err(why) => self.file("map-qemu-img.txt", format!("{why}\n").as_bytes())?,
        }
        if let Some(built) = &evidence.built {
            self.images(built.files(), target)?;
        }
        self.file("versions.txt", versions(report).as_bytes())?;
        self.with_mode("reproduce.sh", reproduce(report).as_bytes(), 0o755)
    }

    /// Adds a map in the form of qemu-img.
    fn map(&mut self, name: &str, extents: &[Extent]) -> io::Result<()> {
        let mut list = RecordList::begin(Vec::new())?;
        extents.iter().try_for_each(|extent| list.push(&MapRecord::from(extent)))?;
        let mut text = list.end()?;
        text.push(b'\n');
        self.file(name, &text)
    }

    /// Adds the image at the top, and its backing and data files.
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
        let scratch = TemporaryFolder::on_disk()?;
        let top = top_name(built.1);
        let path = scratch.path().join(&top);
        export::write_named(&path, &names, Existing::Keep, built, Holes::Fill)
            .map_err(|error| io::Error::other(error.to_string()))?;
        for (name, _) in built.1.files(&names) {
            let name = name.unwrap_or(&top);
            self.file(&format!("image/{name}"), &std::fs::read(scratch.path().join(name))?)?;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.with_mode(name, bytes, 0o644)
    }

    /// Adds a file. The entry has no time and no owner, so that the same input gives the same archive.
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

/// The remark beside a map of files that are too long to write without holes.
const SPARSE: &str = "The files were too long to write without holes, so qemu-img may report that \
                      allocated clusters which were never written read as zeros.\n";
/// Returns the name of the file of the image at the top. [`FileNames::default`] names the other files, and an image
/// whose descriptor names itself.
fn top_name(images: &Images) -> String {
    match images.top() {
        top if top.format == ImageFormat::Qcow2 => "layer.qcow2".to_string(),
        top => top.name.clone(),
    }
}

fn versions(report: &Report) -> String {
    let qemu = qemu::version().unwrap_or_else(|| "not installed".to_string());
    let (os, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
    let (ours, tested) = (env!("CARGO_PKG_VERSION"), &report.implementation);
    format!("under test: {tested}\nqcowfuzz {ours}\nqemu-img {qemu}\n{os} {architecture}\n")
}

/// Returns a script that reproduces the bug.
fn reproduce(report: &Report) -> String {
    let fingerprint = report.judgement().replace('\'', "'\\''");
    let target = format!("--target={}", report.target.name());
    let options = quoted(&[&report.options[..], &[target]].concat());
    REPRODUCE.replace("FINGERPRINT", &fingerprint).replace("OPTIONS", &options)
}

const REPRODUCE: &str = r#"#!/bin/sh
# Runs the input again: exits with 0 where it shows what it showed, with 1 where it does not, with 2 where it cannot
# be run. QCOWFUZZ is the command, built with the code under test; by default the one on the path. Commands of engines
# run in the current folder.
expected='FINGERPRINT'
qcowfuzz=$(command -v "${QCOWFUZZ:-qcowfuzz}") || { echo "no ${QCOWFUZZ:-qcowfuzz}" >&2; exit 2; }
input=$(dirname "$0")/input
found=$("$qcowfuzz" replay --brief --show-known OPTIONS "$input")
test $? -le 1 || exit 2
found=${found#"$input: "}
found=${found%"; known findings: "*}
echo "expected: $expected"
echo "found:    $found"
test "$found" = "$expected"
"#;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;
    use crate::findings::report::Verdict;
    use crate::findings::report::examiner::Examiner;
    use crate::harness::Checks;
    use crate::harness::cases::implementation::Implementation;
    use crate::programs::generate::{GenerateSettings, generate};

    /// Returns a report of a sound program with a made-up fingerprint.
    fn found(target: TargetKind, input: &[u8]) -> Report {
        let mut examiner = Examiner::new(
            &Implementation::our_walker(),
            target,
            Checks::default(),
            FileNames::default(),
        );
        let mut report = examiner.examine(Path::new("input"), input);
        report.verdict = Verdict::Violation;
        report.fingerprint = Some("model: it's, one → two".to_string());
        report
    }

    fn unpacked(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let (name, mode) =
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (name, (mode, bytes))
        });
        entries.collect()
    }

    #[test]
    fn the_archive_has_the_input_and_all_that_explains_it() {
        let input = generate(3, GenerateSettings { operations: 5, compressed: false }).encode();
        let report = found(TargetKind::MapExtents, &input);
        let packed = archive(&report, &input, &[], Path::new("bug-bundle")).unwrap();
        assert_eq!(packed, archive(&report, &input, &[], Path::new("bug-bundle")).unwrap());
        let files = unpacked(&packed);
        let text = |name: &str| {
            let (_, bytes) =
                files.get(&format!("bug-bundle/{name}")).unwrap_or_else(|| panic!("{name}"));
            String::from_utf8_lossy(bytes).into_owned()
        };
        assert_eq!(files["bug-bundle/input"].1, input);
        assert_eq!(Some(text("program.txt")), report.program);
        assert!(text("replay.txt").starts_with("model: it's, one → two\ninput: "));
        assert!(text("replay.json").contains("\"fingerprint\":\"model: it's, one → two\""));
        // The program is sound, so the walker and the model agree.
        assert_eq!(text("map-model.json"), text("map-walker.json"));
        assert!(files["bug-bundle/image/layer.qcow2"].1.starts_with(b"QFI"));
        let version = env!("CARGO_PKG_VERSION");
        let versions = format!("under test: map_extents {version}\nqcowfuzz {version}\n");
        assert!(text("versions.txt").starts_with(&versions));
        assert_eq!(files["bug-bundle/reproduce.sh"].0, 0o755);
        let script = text("reproduce.sh");
        assert!(script.contains("expected='model: it'\\''s, one → two'"), "{script}");
        assert!(script.contains(" --show-known --target=map_extents \"$input\")"), "{script}");
    }
}
