//! A session of QEMU as lines for a shell, which repeat it with qemu-io and qemu-img alone: without the reads of the
//! harness, and with those breakpoints that have suspended a request. The record of the writes stays: blklogwrites
//! passes no zeros on, so that QEMU copies other bytes around a write.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::injected::RULES_NAME;
use super::recorded::RecordedFiles;
use super::session::fail;

/// The largest files of a session, in bytes: their copies have no holes.
const MAX_COPIED_BYTES: u64 = 64 << 20;
/// The text behind the commands of a qemu-io, whose exit code is 1 if a command has failed.
const AFTER_COMMANDS: &str = " || test $? = 1 || exit\n";
/// The line for a moment in which requests end, or begin to wait for others.
const LET_WORK: &str = "sleep 100";

/// The script of the last session, in a folder.
#[derive(Debug)]
pub(super) struct SessionScript {
    folder: PathBuf,
    is_recording: bool,
    lines: Vec<Line>,
    /// The folder in which QEMU works.
    works_in: PathBuf,
    /// The options by which the image is read.
    image: String,
    /// The names of the breakpoints that have suspended a request, by their tags.
    used: BTreeMap<u32, String>,
}

#[derive(Clone, Debug)]
enum Line {
    Io(String),
    Image(String),
}

impl SessionScript {
    /// Creates an empty script, which will be in `folder`.
    pub(super) fn new(folder: &Path) -> Self {
        let (lines, works_in, image, used) = Default::default();
        Self { folder: folder.to_path_buf(), is_recording: false, lines, works_in, image, used }
    }

    /// Begins a session with files of these names beside the image of `files`, and forgets the last one.
    pub(super) fn begin<'n>(
        &mut self,
        files: &RecordedFiles,
        names: impl Iterator<Item = &'n str>,
    ) {
        *self = Self::new(&self.folder);
        match self.copy_files(files, names) {
            Ok(length) if length <= MAX_COPIED_BYTES => self.is_recording = true,
            Ok(_) => return,
            Err(error) => fail(&format!("the script of the session: {error}")),
        }
        self.image = files.options_to_read();
        self.works_in = files.beside("");
    }

    /// Copies the files unless they are too long. Returns their length.
    fn copy_files<'n>(
        &self,
        files: &RecordedFiles,
        names: impl Iterator<Item = &'n str>,
    ) -> io::Result<u64> {
        let (before, after) = (self.folder.join("before"), self.folder.join("after"));
        for folder in [&before, &after] {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
            fs::create_dir_all(folder)?;
        }
        // The log of blklogwrites must exist.
        for name in files.records().filter_map(Path::file_name) {
            fs::write(before.join(name), "")?;
        }
        let mut length = 0u64;
        for name in names {
            let path = files.beside(name);
            length = length.saturating_add(path.metadata()?.len());
            if length <= MAX_COPIED_BYTES {
                fs::copy(path, before.join(name))?;
            }
        }
        Ok(length)
    }

    /// Notes a command of qemu-io.
    pub(super) fn note(&mut self, command: &str) {
        // After the session, images are opened for reading only.
        self.is_recording &= !command.starts_with("open -r");
        if command.starts_with("sleep ") {
            return;
        }
        // A read matters if it is the last command.
        let is_read = |line: &mut Line| matches!(line, Line::Io(it) if it.starts_with("read "));
        if command != "close" {
            self.lines.pop_if(is_read);
        }
        let command = self.with_faults(&self.with_payload(command));
        self.push(Line::Io, &command);
    }

    /// Notes the arguments of qemu-img.
    pub(super) fn note_image_command(&mut self, arguments: &str) {
        let arguments = self.with_faults(arguments);
        self.push(Line::Image, &arguments);
    }

    /// Notes that nothing happens any more after the last command, and that breakpoints with these tags have suspended
    /// requests.
    pub(super) fn note_settled(&mut self, tags: &[u32]) {
        // Only while it sleeps, qemu-io does all that requests have to do; a breakpoint may need longer.
        self.push(Line::Io, LET_WORK);
        for tag in tags {
            let name = name_of(self.used.len());
            self.used.insert(*tag, name);
            self.push(Line::Io, &format!("wait_break t{tag}"));
        }
    }

    fn push(&mut self, line: impl Fn(String) -> Line, command: &str) {
        if self.is_recording {
            self.lines.push(line(command.to_string()));
        }
    }

    /// Returns a command that writes the bytes of a file: with equal bytes in place of the file, or with the name of a
    /// copy.
    fn with_payload(&self, command: &str) -> String {
        let parts = command.strip_prefix("write -s ").and_then(|rest| rest.split_once(' '));
        let Some((name, range)) = parts.filter(|_| self.is_recording) else {
            return command.to_string();
        };
        let bytes = fs::read(self.works_in.join(name));
        match bytes.unwrap_or_else(|error| fail(&format!("{name}: {error}"))).split_first() {
            Some((first, rest)) if rest.iter().all(|byte| byte == first) => {
                format!("write -P {first} {range}")
            }
            _ => format!("write -s {} {range}", self.keep(name)),
        }
    }

    /// Returns a command that opens the image, with the name of a copy of the file with the rules of faults, if there
    /// is one.
    fn with_faults(&self, command: &str) -> String {
        let option = format!(".config={RULES_NAME}");
        match self.is_recording && command.contains(&option) {
            true => command.replace(&option, &format!(".config={}", self.keep(RULES_NAME))),
            false => command.to_string(),
        }
    }

    /// Keeps a copy of a file that QEMU reads. Returns its name.
    fn keep(&self, name: &str) -> String {
        let kept = format!("{name}.{}", self.lines.len());
        let copied = fs::copy(self.works_in.join(name), self.folder.join("before").join(&kept));
        copied.unwrap_or_else(|error| fail(&format!("{name}: {error}")));
        kept
    }

    /// Writes the script of a session that has ended. If QEMU has closed `files`, their copies lie beside it. Without
    /// them, QEMU itself has ended, and another process would go on.
    pub(super) fn finish(&mut self, files: Option<&RecordedFiles>) {
        if self.is_recording {
            let written = fs::write(self.folder.join("session.sh"), self.text());
            let copied = written.and_then(|()| match files {
                Some(files) => files.names().try_for_each(|name| {
                    fs::copy(files.beside(name), self.folder.join("after").join(name)).map(drop)
                }),
                None => Ok(()),
            });
            copied.unwrap_or_else(|error| fail(&format!("the script of the session: {error}")));
            self.is_recording = files.is_some();
        }
    }

    /// Returns the lines for a shell: a qemu-io for each time that the image is open.
    fn text(&self) -> String {
        let mut text = format!("image='{}'\n", self.image);
        let mut is_open = false;
        for line in &self.lines {
            // A string takes everything.
            let _ = match line {
                Line::Io(command) => {
                    let Some(command) = self.with_names(command) else { continue };
                    let program = if is_open { "" } else { "qemu-io" };
                    is_open = true;
                    write!(text, "{program} \\\n    -c '{command}'")
                }
                Line::Image(arguments) => {
                    let end = if std::mem::take(&mut is_open) { AFTER_COMMANDS } else { "" };
                    writeln!(text, "{end}qemu-img {arguments} || true")
                }
            };
        }
        text.push_str(if is_open { AFTER_COMMANDS } else { "" });
        text
    }

    /// Returns a command with the name of its breakpoint, if it has one: nothing if the breakpoint has suspended no
    /// request.
    fn with_names(&self, command: &str) -> Option<String> {
        let of_breakpoints = ["break ", "remove_break ", "wait_break ", "resume "];
        if !of_breakpoints.iter().any(|verb| command.starts_with(verb)) {
            return Some(command.to_string());
        }
        let (before, tag) = command.rsplit_once(" t")?;
        let name = self.used.get(&tag.parse().ok()?)?;
        Some(format!("{before} {name}"))
    }
}

/// Returns the name of a breakpoint: A to Z, then A1 and so on.
fn name_of(nth: usize) -> String {
    let letter = char::from(b'A' + (nth % 26) as u8);
    match nth / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_breakpoints_that_suspend_a_request() {
        let folder = tempfile::tempdir().unwrap();
        let mut script = SessionScript::new(folder.path());
        script.note("write -P 1 0 512");
        assert!(script.lines.is_empty());
        script.is_recording = true;
        script.image = "driver=qcow2".to_string();
        for command in
            ["open -n", "read -v 0 1", "break a t0", "break b t1", "aio_write -P 1 0 512"]
        {
            script.note(command);
        }
        script.note_settled(&[1]);
        script.note("resume t1");
        script.note("sleep 0");
        script.note_settled(&[]);
        script.note("remove_break t0");
        script.note("close");
        script.note_image_command("snapshot -c x");
        for command in ["open -n", "read -v 5 1", "close", "open -r", "read 0 1"] {
            script.note(command);
        }
        let io = |commands: &[&str]| -> String {
            let options = commands.iter().map(|it| format!(" \\\n    -c '{it}'"));
            format!("qemu-io{}{AFTER_COMMANDS}", options.collect::<String>())
        };
        let first = ["open -n", "break b A", "aio_write -P 1 0 512", "sleep 100", "wait_break A"];
        let first = [&first[..], &["resume A", "sleep 100", "close"]].concat();
        let second = io(&["open -n", "read -v 5 1", "close"]);
        let expected =
            format!("image='driver=qcow2'\n{}qemu-img snapshot -c x || true\n{second}", io(&first));
        assert_eq!(script.text(), expected);
        assert_eq!([25, 26].map(name_of), ["Z", "A1"]);
    }

    #[test]
    fn a_session_ends_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut script = SessionScript::new(folder.path());
        script.is_recording = true;
        script.note("write -P 1 0 512");
        script.finish(None);
        let ended = fs::read_to_string(folder.path().join("session.sh")).unwrap();
        assert!(ended.contains("-c 'write -P 1 0 512'"), "{ended}");
        // The disk is dropped, and closed in a new process.
        script.note("close");
        assert_eq!(script.text(), ended);
    }
}
