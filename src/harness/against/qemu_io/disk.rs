//! An image that QEMU has opened: its reads and its requests, one after the other. The engine repeats each write of
//! QEMU in the files of the chain.

use std::fmt;
use std::future::ready;

use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::header::Header;
use crate::harness::engine::flights::Flights;
use crate::harness::engine::{
    Answer, BitmapChange, EngineError, ImageReport, OpenDisk, ReportKind, Request,
};
use crate::harness::engines::engine_process::ImageCommands;
use crate::harness::engines::image_answers::{self, NamedSnapshot};
use crate::harness::files::chain::{Chain, ChainFile, ChainFolder};

use super::commands::{QemuCommands, not_given_without_room};
use super::qemu_img::{self, SnapshotChange};
use super::recorded::{ImageOptions, PAYLOAD_NAME, RecordedFiles};

/// The number of bytes in a line of a dump.
const DUMPED_BYTES: usize = 16;
/// The command for a flush that may fail, and the beginning of its output. The command "flush" prints no error. A write
/// of no bytes with FUA is a flush, too, because QEMU's qcow2 driver has no FUA of its own.
const FLUSH_THAT_MAY_FAIL: (&str, &str) = ("write -f 0 0", "wrote ");
/// The most clusters that a smaller disk loses.
const MAX_CUT_OFF_CLUSTERS: u64 = 1 << 16;

/// An image that QEMU has opened.
#[derive(Debug)]
pub struct QemuDisk<'s> {
    pub(super) commands: &'s mut QemuCommands,
    pub(super) size_bytes: u64,
    pub(super) cluster_bits: u32,
    /// The files to which QEMU writes.
    pub(super) written: Option<RecordedFiles>,
    /// The chain, for the reports of qemu-img. They are about an image that is open for reading only.
    pub(super) chain: Option<&'s Chain>,
    pub(super) is_open: bool,
}

impl QemuDisk<'_> {
    /// Has QEMU change the image, and repeats its writes in the files of the chain.
    fn change(&mut self, command: fmt::Arguments<'_>, expected: &str) -> Answer {
        let said = self.commands.say(command, expected);
        if let Err(EngineError::Ended(_)) = said {
            // The last entry of the record may not be complete.
            return said;
        }
        self.repeat()?;
        self.note_if_failed(&said);
        said
    }

    /// Reports whether operations of QEMU on the image may fail.
    fn may_fail(&self) -> bool {
        self.written.as_ref().is_some_and(RecordedFiles::may_fail)
    }

    /// Notes an error of QEMU, which follows from a failing operation if one may fail.
    pub(super) fn note_error(&self) {
        let may_fail = self.written.as_ref().filter(|files| files.may_fail());
        may_fail.into_iter().for_each(RecordedFiles::note_failed);
    }

    fn note_if_failed(&self, said: &Answer) {
        if said.is_err() {
            self.note_error();
        }
    }

    /// Opens the image again if the program lets operations fail from now on.
    pub(super) fn meet_fault(&mut self) -> Answer {
        let takes_fault = self.written.as_mut().is_some_and(RecordedFiles::take_fault);
        match takes_fault && self.is_open {
            true => {
                self.close_image()?;
                self.open_again()
            }
            false => Ok(()),
        }
    }

    /// Returns the command for a flush, and the beginning of its output.
    pub(super) fn flush(&self) -> (&'static str, &'static str) {
        match self.may_fail() {
            true => FLUSH_THAT_MAY_FAIL,
            false => ("flush", ""),
        }
    }

    fn close_image(&mut self) -> Answer {
        self.is_open = false;
        self.change(format_args!("close"), "")
    }

    /// Opens the closed image, with empty records.
    fn open_again(&mut self) -> Answer {
        let Some(files) = &mut self.written else { return Err(EngineError::NoAnswer) };
        let opened = self.commands.open_recorded(files);
        self.note_if_failed(&opened);
        self.is_open = opened.is_ok();
        opened
    }

    /// Closes the image, has qemu-img change it, and opens it again. `command` gets the options that name the image,
    /// and returns the arguments of qemu-img. If the header has no room, the image is not judged.
    fn change_closed(&mut self, command: impl FnOnce(&ImageOptions) -> String) -> Answer {
        let changed = self.reopen_changed(command);
        match self.may_fail() {
            true => changed,
            false => changed.map_err(not_given_without_room),
        }
    }

    fn reopen_changed(&mut self, command: impl FnOnce(&ImageOptions) -> String) -> Answer {
        self.close_image()?;
        let Some(files) = &mut self.written else { return Err(EngineError::NoAnswer) };
        let arguments = command(&files.begin());
        if let Some(script) = &mut self.commands.script {
            script.note_image_command(&arguments);
        }
        let changed = qemu_img::run(&arguments, files.folder());
        if let Err(error @ EngineError::Ended(_)) = changed {
            return Err(error);
        }
        files.repeat()?;
        let header = Header::read(files.image());
        // A bitmap that is not stored is no error of qemu-img: it stays in use.
        if changed.as_ref().is_ok_and(|printed| printed.contains("Lost persistent bitmaps")) {
            self.note_error();
        }
        let changed = changed.map(drop);
        self.note_if_failed(&changed);
        let opened = self.open_again();
        self.size_bytes = header?.virtual_size_bytes();
        opened.and(changed)
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
        self.commands.ask(command)
    }

    /// Notes in the script that nothing happens any more, as
    /// [`SessionScript::note_settled`](super::script::SessionScript::note_settled) does.
    pub(super) fn note_settled(&mut self, suspended: &[u32]) {
        if let Some(script) = &mut self.commands.script {
            script.note_settled(suspended);
        }
    }

    /// Waits until QEMU waits for something itself.
    pub(super) fn wait_until_asleep(&self) {
        self.commands.io.wait_until_asleep();
    }

    /// Ends QEMU. The image is no longer open.
    pub(super) fn restart(&mut self) {
        self.is_open = false;
        self.commands.io.restart();
    }

    fn finish_script(&mut self) {
        let written = self.written.as_ref();
        self.commands.script.iter_mut().for_each(|script| script.finish(written));
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
            let _ = self.commands.say(format_args!("close"), "");
            self.finish_script();
        }
    }
}

/// The requests.
impl QemuDisk<'_> {
    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        let Some(files) = &self.written else { return Err(EngineError::NoAnswer) };
        files.write_payload(bytes);
        let (guest, length) = (guest.get(), bytes.len());
        self.change(format_args!("write -s {PAYLOAD_NAME} {guest} {length}"), "wrote ")
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
        self.meet_fault()?;
        let (guest, length) = (guest.get(), into.len());
        let dump = self.commands.ask(format_args!("read -v {guest} {length}"))?;
        let read = match parse_dump(dump, into) {
            Some(()) => Ok(()),
            None => Err(EngineError::untyped(dump.trim().to_string())),
        };
        self.note_if_failed(&read);
        read
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        let folder = self.commands.files.folder().map(ChainFolder::path);
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
        self.meet_fault()?;
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
            Request::Flush => {
                let (command, expected) = self.flush();
                self.change(format_args!("{command}"), expected)
            }
        }
    }

    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        match self.meet_fault() {
            Err(error @ EngineError::Ended(_)) => Err(error),
            _ if self.is_open => self.fly(flights),
            _ => flights.run(|_| ready(Err(EngineError::untyped("no image is open any more")))),
        }
    }

    fn close(mut self: Box<Self>) -> Answer {
        self.meet_fault()?;
        let closed = self.close_image();
        self.finish_script();
        closed
    }
}

/// Returns the error of a request that QEMU does not support for this image, if it has this text.
fn unsupported_if(error: EngineError, text: &str) -> EngineError {
    match error.to_string().contains(text) {
        true => EngineError::unsupported(error),
        false => error,
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
