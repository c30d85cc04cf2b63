//! Runs the commands, makes an image that tests damage, and finds, awaits and ends processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use qcowfuzz::programs::text::assemble;

use crate::skipped::skipped;

/// The cluster size of the image.
pub const CLUSTER: u64 = 65536;

/// Runs the command in `dir`.
pub fn qcowfuzz(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// Builds an example, and returns its executable. `cargo test --test cli` does not build examples.
pub fn built_example(name: &str) -> PathBuf {
    let build = ["build", "--quiet", "--example", name, "--message-format=json"];
    let mut cargo = Command::new(env!("CARGO"));
    let built = cargo.args(build).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_example = message["target"]["name"] == name;
        let is_program = is_example && message["target"]["kind"] == serde_json::json!(["example"]);
        message["executable"].as_str().filter(|_| is_program).map(PathBuf::from)
    };
    text(&built.stdout).lines().filter_map(executable).next().unwrap()
}

/// The command with the small writer: our own walker does not write.
static SMALL_WRITER: LazyLock<PathBuf> = LazyLock::new(|| built_example("small_writer"));

/// Runs the command with the small writer in `dir`.
pub fn small_writer(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(&*SMALL_WRITER);
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// Runs qemu-img in `dir`. If it is not installed, prints a line and returns `None`, or panics if it is required.
pub fn qemu_img(dir: &Path, arguments: &[&str]) -> Option<Output> {
    qemu("qemu-img", dir, arguments)
}

pub fn qemu(tool: &str, dir: &Path, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).current_dir(dir).stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let required = std::env::var_os("QCOWFUZZ_REQUIRE_QEMU").is_some_and(|set| set == "1");
            assert!(!required, "{tool}: {error}, and QCOWFUZZ_REQUIRE_QEMU=1");
            skipped(format_args!("{tool}: {error}"));
            None
        }
    }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the only line that a failing command prints, without the command's name.
pub fn error_line(output: &Output) -> &str {
    let line = text(&output.stderr);
    assert_eq!(line.lines().count(), 1, "not one line: {line:?}");
    line.trim_end().strip_prefix("qcowfuzz: ").unwrap_or_else(|| panic!("no name: {line:?}"))
}

/// Returns a program with 64 KiB clusters that writes two clusters apart from each other, and then zeros.
pub fn small_program() -> Vec<u8> {
    let text = "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=60265 \
                blocks=append table=append tolerance=0\n\
                write at=start+1 clusters=1\n\
                write at=start+4 clusters=2\n\
                zero at=start+8 clusters=1 keep=no\n";
    assemble(text).unwrap().encode()
}

/// Returns a directory with `program` and the image `disk.qcow2` that it builds.
pub fn with_image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("program"), small_program()).unwrap();
    let made = qcowfuzz(dir.path(), &["export", "program", "-o", "disk.qcow2", "--fill"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    dir
}

/// The bytes of the image of [`with_image`], which tests damage.
pub struct Damaged {
    /// The file.
    pub bytes: Vec<u8>,
}

impl Damaged {
    pub fn new(dir: &Path) -> Self {
        Self { bytes: fs::read(dir.join("disk.qcow2")).unwrap() }
    }

    pub fn get(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the offset of the only L2 table. The image has one refcount block.
    pub fn l2(&self) -> u64 {
        self.get(self.get(40)) & 0x00FF_FFFF_FFFF_FE00
    }

    pub fn set_refcount(&mut self, cluster: u64, count: u16) {
        let block = self.get(self.get(48));
        self.put(block + cluster * 2, &count.to_be_bytes());
    }

    pub fn save(&self, dir: &Path, name: &str) {
        fs::write(dir.join(name), &self.bytes).unwrap();
    }
}

/// A process that is killed when the test ends.
pub struct Killed(pub Child);

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
#[cfg(target_os = "linux")]
pub fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}
