//! The bytes that a guest must read after the commands of a recipe. They are a third answer to questions about data and
//! maps, beside those of QEMU and of the program under test. They follow from the writes of qemu-io, and from the
//! operations that keep or move data. All other bytes are unknown, and never compared.

use std::collections::BTreeMap;

use super::guest_data::{GuestContent, GuestData};
use super::pattern::Pattern;
use super::perform::Performed;
use super::recipe::{Command, named_by, value_of};
use crate::processes::{ProcessEnd, Reply};

/// The disks of an iteration, by the names of their files.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestModel {
    pub(crate) disks: BTreeMap<String, GuestData>,
    /// The image below an image.
    pub(crate) backing: BTreeMap<String, String>,
    /// The internal snapshots, by the image and the name.
    pub(crate) snapshots: BTreeMap<(String, String), GuestData>,
}

impl GuestModel {
    /// Returns the bytes of a disk, if anything is known of them.
    pub(crate) fn disk(&self, file: &str) -> Option<&GuestData> {
        self.disks.get(file)
    }

    fn disk_or_unknown(&self, file: &str) -> GuestData {
        self.disks.get(file).cloned().unwrap_or_else(GuestData::unknown)
    }

    /// Forgets a disk, and those above it.
    pub(crate) fn forget(&mut self, file: &str) {
        self.disks.remove(file);
        self.snapshots.retain(|(image, _), _| image != file);
        self.forget_above(file);
    }

    /// Forgets the disks above an image, which has changed.
    fn forget_above(&mut self, file: &str) {
        let above: Vec<String> = self
            .backing
            .iter()
            .filter(|(_, lower)| *lower == file)
            .map(|(upper, _)| upper.clone())
            .collect();
        for upper in above {
            // The check ends the recursion if images back each other in a circle.
            if self.disks.remove(&upper).is_some() {
                self.forget_above(&upper);
            }
        }
    }
}

impl GuestModel {
    /// Notes a command that was performed.
    pub(crate) fn note(&mut self, command: &Command, performed: &Performed) {
        match performed {
            Performed::Reply(reply) => self.ran(command, reply),
            Performed::Written | Performed::Program(_) => self.wrote(command),
        }
    }

    /// Notes a command that wrote a file, and ran no tool of QEMU.
    fn wrote(&mut self, command: &Command) {
        match command {
            Command::Pattern { content, file } => {
                let mut data = GuestData::zeros(content.length());
                let piece = GuestContent::File { name: file.clone(), origin: 0 };
                data.write(0, Pattern::length(*content), piece);
                self.disks.insert(file.clone(), data);
            }
            // The oracles judge the images of programs. Damage may have any effect.
            Command::Program { file, .. } | Command::Damage { file, .. } => self.forget(file),
            Command::Folder { .. } | Command::QemuImg(_) | Command::QemuIo { .. } => {}
        }
    }

    /// Notes a command of QEMU and its end.
    fn ran(&mut self, command: &Command, reply: &Reply) {
        match command {
            Command::QemuIo { requests, file, .. } => {
                self.requests(requests, &file_of(file), reply)
            }
            Command::QemuImg(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.image_command(&words, reply.is_success());
            }
            _ => {}
        }
    }

    fn requests(&mut self, requests: &[String], file: &str, reply: &Reply) {
        // A write to a damaged image may go anywhere. So a disk that is unknown stays so.
        match self.disks.get_mut(file) {
            Some(data) if matches!(reply.end, ProcessEnd::Exit(_)) => {
                for request in requests {
                    // If one request fails, the exit code does not say which one.
                    perform(data, request, reply.is_success());
                }
                self.forget_above(file);
            }
            _ => self.forget(file),
        }
    }

    fn image_command(&mut self, words: &[&str], succeeded: bool) {
        let [verb, words @ ..] = words else { return };
        // The files, and the size of `resize`, are the last words. A new image may have a size behind its file.
        let [.., before, last] = words else { return };
        let is_size = |word: &str| word.parse::<u64>().is_ok();
        match *verb {
            "create" if is_size(last) => self.create(words, before, last.parse().ok(), succeeded),
            "create" => self.create(words, last, None, succeeded),
            "convert" => {
                let data = self.disk_or_unknown(&file_of(before));
                self.made(&file_of(last), data, succeeded);
            }
            "resize" => self.resize(before, last.parse().ok(), succeeded),
            "amend" => {
                let size = value_of(words, "-o").and_then(|text| text.strip_prefix("size="));
                let known = self.disks.get(*last).map(|data| data.size);
                self.resize(last, size.map_or(known, |size| size.parse().ok()), succeeded);
            }
            "snapshot" => self.snapshot(words, last, succeeded),
            "commit" => self.commit(last, succeeded),
            "rebase" => self.rebase(words, last, succeeded),
            // Bitmaps are no guest data; a repair of an image without damage changes counts only.
            "bitmap" | "check" => {}
            _ => self.forget(&file_of(last)),
        }
    }

    /// Notes an image that a command made, or has failed to make.
    fn made(&mut self, file: &str, data: GuestData, succeeded: bool) {
        self.backing.remove(file);
        self.forget(file);
        if succeeded {
            self.disks.insert(file.to_string(), data);
        }
    }

    fn resize(&mut self, file: &str, size: Option<u64>, succeeded: bool) {
        match (self.disks.get_mut(file), size) {
            (Some(data), Some(size)) if succeeded => data.resize(size),
            _ => self.forget(file),
        }
        self.forget_above(file);
    }

    fn create(&mut self, words: &[&str], file: &str, size: Option<u64>, succeeded: bool) {
        let lower = value_of(words, "-b").map(|name| named_by(file, name));
        let data = match (&lower, size) {
            (Some(lower), size) => {
                let data = self.disk_or_unknown(lower);
                data.below(size.unwrap_or(data.size))
            }
            (None, Some(size)) => GuestData::zeros(size),
            (None, None) => GuestData::unknown(),
        };
        self.made(file, data, succeeded);
        if let Some(lower) = lower {
            self.backing.insert(file.to_string(), lower);
        }
    }

    fn snapshot(&mut self, words: &[&str], file: &str, succeeded: bool) {
        let place = |name: &str| (file.to_string(), name.to_string());
        if let Some(name) = value_of(words, "-c").filter(|_| succeeded) {
            self.snapshots.insert(place(name), self.disk_or_unknown(file));
        }
        if let Some(name) = value_of(words, "-a") {
            match self.snapshots.get(&place(name)).filter(|_| succeeded).cloned() {
                Some(data) => {
                    self.disks.insert(file.to_string(), data);
                    self.forget_above(file);
                }
                None => self.forget(file),
            }
        }
        if let Some(name) = value_of(words, "-d") {
            self.snapshots.remove(&place(name));
        }
    }

    /// After a commit, the lower image has the upper image's content. The upper image keeps it.
    fn commit(&mut self, file: &str, succeeded: bool) {
        let Some(lower) = self.backing.get(file).cloned() else { return self.forget(file) };
        let upper = self.disks.get(file).cloned();
        // The rest of a longer lower image is not tracked.
        let is_covered = self
            .disks
            .get(&lower)
            .is_some_and(|data| upper.as_ref().is_some_and(|upper| data.size <= upper.size));
        self.disks.remove(&lower);
        self.forget_above(&lower);
        if let (Some(upper), true) = (upper, succeeded) {
            if is_covered {
                self.disks.insert(lower, upper.clone());
            }
            self.disks.insert(file.to_string(), upper);
        }
    }

    /// A safe rebase keeps what a guest reads. An unsafe one does not.
    fn rebase(&mut self, words: &[&str], file: &str, succeeded: bool) {
        if words.contains(&"-u") || !succeeded {
            self.forget(file);
        } else {
            self.forget_above(file);
        }
        match value_of(words, "-b").filter(|name| !name.is_empty()) {
            Some(name) => self.backing.insert(file.to_string(), named_by(file, name)),
            None => self.backing.remove(file),
        };
    }
}

/// Performs a request of qemu-io. Without success, its range is unknown.
fn perform(data: &mut GuestData, request: &str, succeeded: bool) {
    let words: Vec<&str> = request.split(' ').collect();
    let [.., at, length] = words.as_slice() else { return };
    let (Ok(at), Ok(length)) = (at.parse(), length.parse()) else {
        *data = GuestData::unknown();
        return;
    };
    let byte = value_of(&words, "-P").and_then(|byte| byte.parse().ok());
    let content = match (words.first(), value_of(&words, "-s"), byte) {
        _ if !succeeded => GuestContent::Unknown,
        (Some(&"write"), Some(name), _) => {
            GuestContent::File { name: name.to_string(), origin: at }
        }
        (Some(&"write"), None, Some(byte)) => GuestContent::Byte(byte),
        (Some(&"write"), None, None) if words.contains(&"-z") => GuestContent::Byte(0),
        // A discard may keep the bytes, show zeros, or show the layer below.
        _ => GuestContent::Unknown,
    };
    data.write(at, length, content);
}

/// Returns the name of a file, also from the options of an image.
fn file_of(word: &str) -> String {
    word.rsplit_once("filename=").map_or(word, |(_, name)| name).to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::GuestContent;
    use crate::processes::{ProcessEnd, Reply};
    use crate::recipes::recipe::Command;

    use std::ops::Range;

    use super::GuestModel;

    fn reply(code: i32) -> Reply {
        Reply { end: ProcessEnd::Exit(code), stdout: Vec::new(), stderr: Vec::new() }
    }

    pub(crate) fn img(model: &mut GuestModel, line: &str) {
        let words = line.split(' ').map(str::to_string).collect();
        model.ran(&Command::QemuImg(words), &reply(0));
    }

    pub(crate) fn io(model: &mut GuestModel, request: &str, file: &str, code: i32) {
        let requests = vec![request.to_string()];
        let command = Command::QemuIo { options: Vec::new(), requests, file: file.to_string() };
        model.ran(&command, &reply(code));
    }

    /// Returns the pieces of a disk as text.
    fn pieces(model: &GuestModel, file: &str) -> String {
        let Some(data) = model.disk(file) else { return "unknown".to_string() };
        let piece = |(Range { start, end }, content): (Range<u64>, &GuestContent)| match content {
            GuestContent::Byte(byte) => format!("{start}-{end}={byte}"),
            GuestContent::File { name, origin } => format!("{start}-{end}={name}@{origin}"),
            GuestContent::Unknown => format!("{start}-{end}=?"),
        };
        data.pieces.iter().map(piece).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn later_writes_replace_parts_of_earlier_ones() {
        let mut model = GuestModel::default();
        img(&mut model, "create -q -f qcow2 -o compat=1.1 a.qcow2 4096");
        io(&mut model, "write -q -P 7 0 2048", "a.qcow2", 0);
        io(&mut model, "write -q -s noise 512 512", "a.qcow2", 0);
        io(&mut model, "write -q -z -u 1024 256", "a.qcow2", 0);
        assert_eq!(pieces(&model, "a.qcow2"), "0-512=7 512-1024=noise@512 1280-2048=7");
        io(&mut model, "discard -q 256 512", "a.qcow2", 0);
        assert_eq!(pieces(&model, "a.qcow2"), "0-256=7 256-768=? 768-1024=noise@512 1280-2048=7");
        io(&mut model, "write -q -P 9 0 4096", "a.qcow2", 1);
        assert_eq!(pieces(&model, "a.qcow2"), "0-4096=?");
    }

    #[test]
    fn operations_keep_and_move_data() {
        let mut model = GuestModel::default();
        img(&mut model, "create -q -f qcow2 a.qcow2 4096");
        io(&mut model, "write -q -P 7 0 2048", "a.qcow2", 0);
        img(&mut model, "snapshot -q -c one a.qcow2");
        img(&mut model, "create -q -f qcow2 -b {folder}/a.qcow2 -F qcow2 b.qcow2 8192");
        io(&mut model, "write -q -P 8 4096 512", "b.qcow2", 0);
        img(&mut model, "convert -q -O raw b.qcow2 c.raw");
        assert_eq!(pieces(&model, "c.raw"), "0-2048=7 4096-4608=8");
        img(&mut model, "commit -q -f qcow2 b.qcow2");
        assert_eq!(pieces(&model, "a.qcow2"), "0-2048=7 4096-4608=8");
        assert_eq!(pieces(&model, "b.qcow2"), "0-2048=7 4096-4608=8");
        img(&mut model, "resize -q --shrink a.qcow2 1000");
        assert_eq!(pieces(&model, "a.qcow2"), "0-1000=7 1000-1024=?");
        assert_eq!(pieces(&model, "b.qcow2"), "unknown");
        img(&mut model, "snapshot -q -a one a.qcow2");
        assert_eq!(pieces(&model, "a.qcow2"), "0-2048=7");
        img(&mut model, "rebase -q -u -b  c.raw");
        assert_eq!(pieces(&model, "c.raw"), "unknown");
    }
}
