//! QEMU as an engine: a long-running qemu-io opens the images, reads them and writes to them. It is the reference
//! implementation of writing.
//!
//! QEMU writes to copies of the image and of its data file, and records each write and each flush. The engine repeats
//! them in the files of the chain, so that the harness sees their order.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::base::features::{Feature, FeatureSet};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::formats::qcow2::header::Header;
use crate::harness::ChainFiles;
use crate::harness::engine::flights::Flights;
use crate::harness::engine::{
    AccessFeedback, Answer, BitmapChange, Engine, EngineError, Facts, ImageReport, NewImage,
    OpenDisk, Opened, ReportKind, Request,
};
use crate::harness::engines::engine_process::ImageCommands;
use crate::harness::engines::image_answers::{self, NamedSnapshot};
use crate::harness::files::chain::{Chain, ChainFile, ChainFolder};

use super::qemu_img::{self, SnapshotChange};
use super::recorded::{ImageOptions, RecordedFiles, data_file_options, unreadable};
use super::script::SessionScript;
use super::session::{QemuIo, fail};

/// The number of bytes in a line of a dump.
const DUMPED_BYTES: usize = 16;
/// The bytes of a new image that are copied at once.
const NEW_PIECE_BYTES: usize = 64 << 10;
/// The most clusters that a smaller disk loses.
const MAX_CUT_OFF_CLUSTERS: u64 = 1 << 16;

/// QEMU under test.
#[derive(Debug, Default)]
pub struct QemuEngine {
    io: QemuIo,
    files: ChainFiles,
    script: Option<SessionScript>,
}

/// A clone has a process and files of its own, and no script.
impl Clone for QemuEngine {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// An image that QEMU has opened.
#[derive(Debug)]
pub struct QemuDisk<'s> {
    engine: &'s mut QemuEngine,
    size_bytes: u64,
    cluster_bits: u32,
    /// The files to which QEMU writes.
    written: Option<RecordedFiles>,
    /// The chain, for the reports of qemu-img. They are about an image that is open for reading only.
    chain: Option<&'s Chain>,
    is_open: bool,
}

impl Engine for QemuEngine {
    fn facts(&self) -> Facts {
        // QEMU reads copies of the files, and the harness sees no access.
        let facts = Facts { reads: AccessFeedback::None, ..Facts::new("qemu") };
        // Nor does an operation that the harness lets fail reach QEMU.
        facts.without(FeatureSet::of(&[Feature::FileErrors]))
    }

    fn begin_run(&mut self) {
        self.io.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let path = self.files.write(chain)?;
        let header = Header::read(chain.image())?;
        let data_files = data_file_options(chain, &path, 0);
        let path = path.display();
        self.open_with(format_args!("-r -o driver=qcow2{data_files} {path}"))?;
        self.opened(&header, None, Some(chain))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let path = self.files.write(chain)?;
        let header = Header::read(chain.image())?;
        // QEMU writes to the file from now on.
        self.files.forget();
        let mut recorded = RecordedFiles::new(chain, path);
        if let Some(script) = &mut self.script {
            let layers = chain.layers().iter();
            let files = layers.flat_map(|it| [Some(&it.image), it.data_file.as_ref()]);
            let names = files.flatten().map(ChainFile::name);
            script.begin(&recorded, names);
        }
        self.open_recorded(&mut recorded).map_err(not_given_without_room)?;
        self.opened(&header, Some(recorded), None)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let path = self.files.write(chain)?;
        qemu_img::open_snapshot(chain, &path, index)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        let path = self.files.write(chain)?;
        self.files.forget();
        qemu_img::create(&path, image)?;
        copy(&path, chain.image())
    }

    fn record_script(&mut self, folder: &Path) {
        self.script = Some(SessionScript::new(folder));
    }
}

/// Reports whether a line is part of the warning about bitmaps.
fn is_warning(line: &str) -> bool {
    line.contains("warning: a program lacking bitmap support modified this file")
        || line.starts_with("Some clusters may be leaked")
}

/// The header of an image may have no room for the feature names that QEMU adds when it writes a header. The harness
/// cannot give QEMU such an image for writing.
fn not_given_without_room(error: EngineError) -> EngineError {
    match error.to_string().contains("No space left on device") {
        true => EngineError::NotGiven(error.into()),
        false => error,
    }
}

/// Returns the error of a request that QEMU does not support for this image, if it has this text.
fn unsupported_if(error: EngineError, text: &str) -> EngineError {
    match error.to_string().contains(text) {
        true => EngineError::unsupported(error),
        false => error,
    }
}

/// Copies the file at `path` to a file of a chain that has its length, or is shorter. Holes stay holes.
fn copy(path: &Path, into: &ChainFile) -> Answer {
    let mut file = File::open(path).unwrap_or_else(|error| unreadable(&error));
    let (mut piece, mut at) = ([0; NEW_PIECE_BYTES], 0u64);
    loop {
        let count = file.read(&mut piece).unwrap_or_else(|error| unreadable(&error));
        let bytes = &piece[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            into.write_at(HostOffset::new(at), bytes)?;
        }
        // A file ends before 2^63.
        at = at.saturating_add(count as u64);
        if count == 0 {
            return Ok(into.set_length(at)?);
        }
    }
}

impl QemuEngine {
    /// Opens an image. QEMU warns of bitmaps that a program without support for them has left.
    fn open_with(&mut self, arguments: fmt::Arguments<'_>) -> Answer {
        let output = self.ask(format_args!("open {arguments}"))?;
        let lines = output.trim().lines().filter(|line| !is_warning(line));
        let said = lines.collect::<Vec<_>>().join("\n");
        if said.is_empty() {
            return Ok(());
        }
        // QEMU may have opened it all the same, and would not open the next one.
        self.ask(format_args!("close"))?;
        Err(EngineError::untyped(said))
    }

    /// Opens an image for writing, with empty records.
    fn open_recorded(&mut self, files: &mut RecordedFiles) -> Answer {
        // Without `-n`, qemu-io flushes after each write. It also bypasses the cache of the system, which
        // `cache.direct=off` undoes.
        let options = files.begin().with_layers_below;
        self.open_with(format_args!("-n -o cache.direct=off,{options}"))
    }

    /// Returns the disk that qemu-io has just opened. qemu-io prints rounded sizes only. So the header states the size,
    /// and QEMU must read the last byte and none behind it.
    fn opened<'s>(
        &'s mut self,
        header: &Header,
        written: Option<RecordedFiles>,
        chain: Option<&'s Chain>,
    ) -> Opened<'s> {
        let size_bytes = header.virtual_size_bytes();
        let cluster_bits = header.geometry.cluster_size.bits();
        let disk =
            QemuDisk { engine: self, size_bytes, cluster_bits, written, chain, is_open: true };
        if let Some(last) = size_bytes.checked_sub(1) {
            disk.engine.say(format_args!("read -q {last} 1"), "")?;
        }
        disk.engine.say(format_args!("read -q {size_bytes} 1"), "read failed: ")?;
        Ok(Box::new(disk))
    }

    /// Sends a command, and returns its output.
    fn ask(&mut self, command: fmt::Arguments<'_>) -> Answer<&str> {
        if let Some(script) = &mut self.script {
            script.note(&command.to_string());
        }
        match self.io.ask(command) {
            Ok(output) => Ok(output),
            Err(ended) => {
                self.script.iter_mut().for_each(|script| script.finish(None));
                Err(EngineError::Ended(Box::new(ended.end)))
            }
        }
    }

    /// Sends a command whose output begins with `expected`, or is empty if `expected` is.
    fn say(&mut self, command: fmt::Arguments<'_>, expected: &str) -> Answer {
        let output = self.ask(command)?.trim();
        let is_expected = match expected {
            "" => output.is_empty(),
            _ => output.starts_with(expected),
        };
        match is_expected {
            true => Ok(()),
            false => Err(EngineError::untyped(output.to_string())),
        }
    }
}

impl QemuDisk<'_> {
    /// Has QEMU change the image, and repeats its writes in the files of the chain.
    fn change(&mut self, command: fmt::Arguments<'_>, expected: &str) -> Answer {
        let said = self.engine.say(command, expected);
        if let Err(EngineError::Ended(_)) = said {
            // The last entry of the record may not be complete.
            return said;
        }
        self.repeat()?;
        said
    }

    /// Closes the image, has qemu-img change it, and opens it again. `command` gets the options that name the image,
    /// and returns the arguments of qemu-img. If the header has no room, the image is not judged.
    fn change_closed(&mut self, command: impl FnOnce(&ImageOptions) -> String) -> Answer {
        self.reopen_changed(command).map_err(not_given_without_room)
    }

    fn reopen_changed(&mut self, command: impl FnOnce(&ImageOptions) -> String) -> Answer {
        self.is_open = false;
        self.change(format_args!("close"), "")?;
        let Some(files) = &mut self.written else { return Err(EngineError::NoAnswer) };
        let arguments = command(&files.begin());
        if let Some(script) = &mut self.engine.script {
            script.note_image_command(&arguments);
        }
        let changed = qemu_img::run(&arguments);
        if let Err(EngineError::Ended(_)) = changed {
            return changed;
        }
        files.repeat()?;
        self.engine.open_recorded(files)?;
        self.is_open = true;
        self.size_bytes = Header::read(files.image())?.virtual_size_bytes();
        changed
    }

    /// Returns the snapshots of the image, in the order of its table.
    fn snapshots(&self) -> Answer<Vec<NamedSnapshot>> {
        let Some(files) = &self.written else { return Err(EngineError::NoAnswer) };
        let file = files.image();
        image_answers::snapshots(file, &Header::read(file)?)
    }

    /// Reports whether QEMU would cut many clusters off for this size. It visits each of them, and writes and flushes
    /// tables in between: it is not asked to.
    fn cuts_off_many(&self, size_bytes: u64) -> bool {
        self.size_bytes.saturating_sub(size_bytes) >> self.cluster_bits > MAX_CUT_OFF_CLUSTERS
    }

    /// Reports whether a disk of this size would end inside a cluster of which QEMU keeps the bytes behind the end. It
    /// shows them again when the disk grows, and the harness expects zeros there.
    fn cuts_inside_cluster(&self, size_bytes: u64) -> bool {
        size_bytes < self.size_bytes && self.is_inside_cluster(size_bytes)
    }

    fn is_inside_cluster(&self, offset: u64) -> bool {
        offset & ((1 << self.cluster_bits) - 1) != 0
    }

    /// Returns the image to which QEMU writes.
    pub(super) fn written_image(&self) -> Option<&ChainFile> {
        self.written.as_ref().map(RecordedFiles::image)
    }

    /// Sends a command, and returns its output.
    pub(super) fn ask(&mut self, command: fmt::Arguments<'_>) -> Answer<&str> {
        self.engine.ask(command)
    }

    /// Notes in the script that nothing happens any more: see [`SessionScript::note_settled`].
    pub(super) fn note_settled(&mut self, suspended: &[u32]) {
        if let Some(script) = &mut self.engine.script {
            script.note_settled(suspended);
        }
    }

    /// Waits until QEMU waits for something itself.
    pub(super) fn wait_until_asleep(&self) {
        self.engine.io.wait_until_asleep();
    }

    /// Ends QEMU. The image is no longer open.
    pub(super) fn restart(&mut self) {
        self.is_open = false;
        self.engine.io.restart();
    }

    fn finish_script(&mut self) {
        let written = self.written.as_ref();
        self.engine.script.iter_mut().for_each(|script| script.finish(written));
    }

    pub(super) fn repeat(&mut self) -> Answer {
        self.written.as_mut().map_or(Ok(()), RecordedFiles::repeat)
    }
}

/// An image that is not closed would stay open.
impl Drop for QemuDisk<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // The next image reports it if QEMU cannot go on.
            let _ = self.engine.say(format_args!("close"), "");
            self.finish_script();
        }
    }
}

/// The requests.
impl QemuDisk<'_> {
    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        let Some(files) = &self.written else { return Err(EngineError::NoAnswer) };
        let path = files.beside("payload");
        if let Err(error) = std::fs::write(&path, bytes) {
            fail(&format!("{}: {error}", path.display()));
        }
        let (guest, length) = (guest.get(), bytes.len());
        self.change(format_args!("write -s {} {guest} {length}", path.display()), "wrote ")
    }

    fn resize(&mut self, size_bytes: u64) -> Answer {
        if self.cuts_off_many(size_bytes) {
            return Err(EngineError::NoAnswer);
        }
        if self.is_inside_cluster(size_bytes.min(self.size_bytes)) {
            return Err(EngineError::unsupported(
                "another size of a disk that ends inside a cluster",
            ));
        }
        let resized = self.change(format_args!("truncate {size_bytes}"), "");
        // Version 2 has no zero clusters to hide the layers below.
        resized.map_err(|error| unsupported_if(error, "Operation not supported"))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn take_snapshot(&mut self) -> Answer {
        let change = SnapshotChange::take(&self.snapshots()?);
        self.change_closed(|options| change.arguments(options))
    }

    fn apply_snapshot(&mut self, index: u32) -> Answer {
        let snapshots = self.snapshots()?;
        let change = SnapshotChange::apply(&snapshots, index as usize)?;
        let size = snapshots.get(index as usize).map(|snapshot| snapshot.size_bytes);
        if size.is_some_and(|size| self.cuts_off_many(size) || self.cuts_inside_cluster(size)) {
            return Err(EngineError::NoAnswer);
        }
        self.change_closed(|options| change.arguments(options))
    }

    fn delete_snapshot(&mut self, index: u32) -> Answer {
        let change = SnapshotChange::delete(&self.snapshots()?, index as usize)?;
        self.change_closed(|options| change.arguments(options))
    }

    fn change_bitmap(&mut self, index: u32, change: BitmapChange) -> Answer {
        let Some(files) = &self.written else { return Err(EngineError::NoAnswer) };
        let name =
            qemu_img::bitmap_name(&qemu_img::bitmap_names(files.image())?, index as usize, change)?;
        let changed =
            self.change_closed(|options| qemu_img::bitmap_arguments(&name, change, options));
        changed.map_err(|error| unsupported_if(error, "Too much space will be occupied"))
    }
}

impl OpenDisk for QemuDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        if into.is_empty() {
            return Ok(());
        }
        let (guest, length) = (guest.get(), into.len());
        let dump = self.engine.ask(format_args!("read -v {guest} {length}"))?;
        match parse_dump(dump, into) {
            Some(()) => Ok(()),
            None => Err(EngineError::untyped(dump.trim().to_string())),
        }
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        let folder = self.engine.files.folder().map(ChainFolder::path);
        let (Some(chain), Some(folder)) = (self.chain, folder) else {
            return Err(EngineError::NoAnswer);
        };
        let commands = ImageCommands { line: "qemu-img", folder };
        match about {
            ReportKind::Info => Ok(ImageReport::Info(image_answers::info(&commands, chain)?)),
            ReportKind::Check => Ok(ImageReport::Check(image_answers::check(&commands, chain)?)),
        }
    }

    fn request(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Write { guest, bytes } => self.write(guest, bytes),
            Request::WriteZeroes { guest, length_bytes } => {
                self.change(format_args!("write -z {guest} {length_bytes}"), "wrote ")
            }
            // A discard of QEMU may leave the bytes as they are. These zeros free the clusters.
            Request::Discard { guest, length_bytes } => {
                self.change(format_args!("write -z -u {guest} {length_bytes}"), "wrote ")
            }
            Request::Resize { size_bytes } => self.resize(size_bytes),
            Request::TakeSnapshot => self.take_snapshot(),
            Request::ApplySnapshot { index } => self.apply_snapshot(index),
            Request::DeleteSnapshot { index } => self.delete_snapshot(index),
            Request::ChangeBitmap { index, change } => self.change_bitmap(index, change),
            Request::Flush => self.change(format_args!("flush"), ""),
        }
    }

    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        self.fly(flights)
    }

    fn close(mut self: Box<Self>) -> Answer {
        self.is_open = false;
        let closed = self.change(format_args!("close"), "");
        self.finish_script();
        closed
    }
}

/// Fills `into` with the bytes of a dump: lines with an offset, a colon and up to 16 bytes in hexadecimal digits.
/// Returns `None` if there are others.
pub(super) fn parse_dump(dump: &str, into: &mut [u8]) -> Option<()> {
    let mut lines = dump.lines();
    for bytes in into.chunks_mut(DUMPED_BYTES) {
        let (_, line) = lines.next()?.split_once(':')?;
        let mut digits = line.split_ascii_whitespace();
        for byte in bytes {
            *byte = u8::from_str_radix(digits.next()?, 16).ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn a_dump_has_all_bytes() {
        let mut dump = String::new();
        let bytes: Vec<u8> = (0..40).map(|it| it * 6).collect();
        for (nth, line) in bytes.chunks(DUMPED_BYTES).enumerate() {
            let digits: Vec<String> = line.iter().map(|it| format!("{it:02x}")).collect();
            writeln!(dump, "{:08x}:  {}  ...", nth * DUMPED_BYTES, digits.join(" ")).unwrap();
        }
        dump.push_str("read 40/40 bytes at offset 0\n");
        let mut parsed = [0; 40];
        assert_eq!(parse_dump(&dump, &mut parsed), Some(()));
        assert_eq!(parsed.as_slice(), bytes);
        assert_eq!(parse_dump(&dump, &mut [0; 80]), None);
        assert_eq!(parse_dump("read failed: Input/output error", &mut [0; 4]), None);
    }
}
