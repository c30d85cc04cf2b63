//! Folders in which commands run, an image that tests damage, and functions that find, await and end processes.

use std::ops::Deref;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::corpus::repository;
use crate::prelude::*;
use serde_json::Value;

/// The command under test, which Cargo has built beside the folder of the test's executable.
static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("qcowfuzz")
});

/// The cluster size of the image of [`Folder::with_image`].
pub const CLUSTER: u64 = 65536;
/// The head of a VMDK descriptor without extents.
pub const VMDK_HEAD: &str = "version=1\nCID=1\nparentCID=1\ncreateType=\"vmfs\"\n";

/// Builds an example, and returns its executable. `cargo test --test cli` does not build examples.
pub fn built_example(name: &str) -> PathBuf {
    let build = ["build", "--quiet", "--example", name, "--message-format=json"];
    let mut cargo = Command::new(env!("CARGO"));
    let built = Ran::of(cargo.args(build).current_dir(repository(""))).ok();
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).unwrap();
        let is_example = message["target"]["name"] == name;
        let is_program = is_example && message["target"]["kind"] == serde_json::json!(["example"]);
        message["executable"].as_str().filter(|_| is_program).map(PathBuf::from)
    };
    built.out.lines().filter_map(executable).next().unwrap()
}

/// The command with the small writer: our own walker does not write.
static SMALL_WRITER: LazyLock<PathBuf> = LazyLock::new(|| built_example("small_writer"));

/// The arguments of a command: a line that spaces separate, or a list.
pub trait Words {
    fn words(&self) -> Vec<String>;
}

impl Words for str {
    fn words(&self) -> Vec<String> {
        self.split_whitespace().map(str::to_string).collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<String> {
        self.as_str().words()
    }
}

impl Words for [&str] {
    fn words(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(&self) -> Vec<String> {
        self[..].words()
    }
}

/// The exit code of a command, and what it has printed.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        Self { code: output.status.code(), out, err }
    }
}

impl Ran {
    /// Runs a command.
    pub fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).output().unwrap().into()
    }

    /// Requires this exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }

    /// Requires the exit code 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Requires that the command prints no message.
    #[track_caller]
    pub fn quiet(self) -> Self {
        assert_eq!(self.err, "");
        self
    }

    /// Requires a part of the output.
    #[track_caller]
    pub fn has(self, part: &str) -> Self {
        assert!(self.out.contains(part), "expected {part:?} in:\n{}", self.out);
        self
    }

    /// Requires the beginning of the output.
    #[track_caller]
    pub fn begins(self, start: &str) -> Self {
        assert!(self.out.starts_with(start), "expected {start:?} at the start of:\n{}", self.out);
        self
    }

    /// Requires this exit code, no output, and one line of an error that begins with `start`.
    #[track_caller]
    pub fn fails(self, code: i32, start: &str) -> Self {
        let ran = self.exits(code);
        assert!(ran.line().starts_with(start), "expected {start:?}, found {:?}", ran.line());
        assert_eq!(ran.out, "");
        ran
    }

    /// Requires this exit code, no output, and one line of an error with this part.
    #[track_caller]
    pub fn fails_naming(self, code: i32, part: &str) -> Self {
        let ran = self.fails(code, "");
        assert!(ran.line().contains(part), "expected {part:?}, found {:?}", ran.line());
        ran
    }

    /// Returns the only line that a failing command prints, without the command's name.
    #[track_caller]
    pub fn line(&self) -> &str {
        assert_eq!(self.err.lines().count(), 1, "not one line: {:?}", self.err);
        let line = self.err.trim_end().strip_prefix("qcowfuzz: ");
        line.unwrap_or_else(|| panic!("no name: {:?}", self.err))
    }

    /// Returns the output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A temporary folder in which commands run.
pub struct Folder(tempfile::TempDir);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl Folder {
    /// Creates an empty folder.
    #[expect(clippy::new_without_default, reason = "a folder is more than a value")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Creates a folder with these files.
    pub fn of<const N: usize>(files: [(&str, &[u8]); N]) -> Self {
        let folder = Self::new();
        files.iter().for_each(|(name, bytes)| folder.write(name, bytes));
        folder
    }

    /// Creates a folder with `program` and the image `disk.qcow2` that it builds.
    pub fn with_image() -> Self {
        let folder = Self::of([("program", &small_program())]);
        folder.run("export program -o disk.qcow2 --fill").ok();
        folder
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.join(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.join(name)).unwrap()
    }

    pub fn read_text(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap()
    }

    /// Creates a file of zeros that is too long for an input.
    pub fn write_long(&self, name: &str) {
        File::create(self.join(name)).unwrap().set_len(100 << 20).unwrap();
    }

    /// Returns the names of the files and folders in it, in order.
    pub fn names(&self) -> Vec<String> {
        names_in(self)
    }

    /// Returns a command that runs here.
    pub fn command(&self, program: impl AsRef<OsStr>, words: &(impl Words + ?Sized)) -> Command {
        let mut command = Command::new(program);
        command.args(words.words()).current_dir(&**self);
        command
    }

    /// Runs our command.
    pub fn run(&self, words: &(impl Words + ?Sized)) -> Ran {
        Ran::of(&mut self.command(&*COMMAND, words))
    }

    /// Starts our command. It is killed when the test ends.
    pub fn start(&self, words: &(impl Words + ?Sized)) -> Killed {
        let mut command = self.command(&*COMMAND, words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(command.spawn().unwrap())
    }

    /// Runs the command with the small writer.
    pub fn small_writer(&self, words: &(impl Words + ?Sized)) -> Ran {
        Ran::of(&mut self.command(&*SMALL_WRITER, words))
    }

    /// Runs a tool of QEMU. If it is not installed, prints a line and returns `None`, or panics if it is required.
    pub fn qemu(&self, tool: &str, words: &(impl Words + ?Sized)) -> Option<Ran> {
        match self.command(tool, words).stdin(Stdio::null()).output() {
            Ok(output) => Some(output.into()),
            Err(error) => {
                let required = std::env::var_os("QCOWFUZZ_REQUIRE_QEMU");
                let required = required.is_some_and(|set| set == "1");
                assert!(!required, "{tool}: {error}, and QCOWFUZZ_REQUIRE_QEMU=1");
                skipped(format_args!("{tool}: {error}"));
                None
            }
        }
    }

    /// Runs qemu-img; see [`Folder::qemu`].
    pub fn qemu_img(&self, words: &(impl Words + ?Sized)) -> Option<Ran> {
        self.qemu("qemu-img", words)
    }

    /// Creates an image by qemu-img, which must succeed.
    #[track_caller]
    pub fn create(&self, words: &str) -> Option<Ran> {
        self.qemu_img(&format!("create -q -f {words}")).map(Ran::ok)
    }

    /// Runs qemu-io, which must succeed, with one request.
    #[track_caller]
    pub fn qemu_io(&self, format: &str, request: &str, image: &str) {
        self.qemu("qemu-io", &["-f", format, "-c", request, image]).unwrap().ok();
    }

    /// Runs our command and qemu-img, and requires the same success and the same output.
    #[track_caller]
    pub fn same(&self, words: &(impl Words + ?Sized)) -> Option<[Ran; 2]> {
        let (ours, theirs) = (self.run(words), self.qemu_img(words)?);
        let words = words.words();
        assert_eq!(ours.code == Some(0), theirs.code == Some(0), "{words:?}: {ours:?}, {theirs:?}");
        assert_eq!(ours.out, theirs.out, "{words:?}");
        Some([ours, theirs])
    }
}

/// Returns the names of the files and folders in a folder, in order.
pub fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Returns a folder or a file of the committed corpus.
pub fn corpus(path: &str) -> PathBuf {
    repository("corpus").join(path)
}

/// Returns the names of the committed seeds of a target. They have a text; finds in the same folder have none.
pub fn seeds(target: &str) -> Vec<String> {
    crate::corpus::seeds(target).into_iter().map(|(name, _)| name).collect()
}

/// Checks that each file that the descriptor of a VMDK image in `dir` names is there, as an extent or as the parent.
/// Returns the number of names.
pub fn checked_names_in_descriptors(dir: &Path) -> usize {
    let mut named = 0;
    for image in names_in(dir) {
        let bytes = fs::read(dir.join(&image)).unwrap();
        let front = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]).into_owned();
        let lines = front
            .lines()
            .filter(|line| line.starts_with("RW ") || line.starts_with("parentFileNameHint="));
        for name in lines.filter_map(|line| line.split('"').nth(1)) {
            assert!(dir.join(name).exists(), "{image} names {name}: {:?}", names_in(dir));
            named += 1;
        }
    }
    named
}

/// Returns a program with 64 KiB clusters that writes two clusters apart from each other, and then zeros.
pub fn small_program() -> Vec<u8> {
    let operations = "write at=start+1 clusters=1\nwrite at=start+4 clusters=2\nzero at=start+8 clusters=1 keep=no\n";
    lines::encoded("rng_seed=60265", operations)
}

/// The bytes of the image of [`Folder::with_image`], which tests damage.
#[derive(Clone)]
pub struct Damaged {
    /// The file.
    pub bytes: Vec<u8>,
}

impl Damaged {
    pub fn new(dir: &Folder) -> Self {
        Self { bytes: dir.read("disk.qcow2") }
    }

    pub fn get(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn put_u64(&mut self, at: u64, number: u64) {
        self.put(at, &number.to_be_bytes());
    }

    /// Adds zeros to the end.
    pub fn grow(&mut self, clusters: u64) {
        self.bytes.resize(self.bytes.len() + (clusters * CLUSTER) as usize, 0);
    }

    /// Returns the offset of the only L2 table. The image has one refcount block.
    pub fn l2(&self) -> u64 {
        self.get(self.get(40)) & 0x00FF_FFFF_FFFF_FE00
    }

    pub fn set_refcount(&mut self, cluster: u64, count: u16) {
        let block = self.get(self.get(48));
        self.put(block + cluster * 2, &count.to_be_bytes());
    }
}

/// A process that is killed when the test ends.
pub struct Killed(pub std::process::Child);

impl Killed {
    /// Kills the process now.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `done`. Fails with `what` if that takes two minutes.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// Returns the numbers of the processes for which `is_wanted`, by their folders in Linux's /proc and their command
/// lines, in which a zero byte follows each word.
pub fn processes(is_wanted: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let wanted = all.filter_map(|process| {
        let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
        let name = process.file_name().into_string().ok()?;
        is_wanted(&process.path(), &command).then_some(name)
    });
    wanted.collect()
}

/// Sends a signal to a process.
pub fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}
