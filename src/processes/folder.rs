//! Temporary folders that do not outlive the process that made them, even if it is killed.

use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder. It is deleted with this value, and when this process ends, however it ends.
///
/// A shell makes the folder, waits for the end of its input, and deletes the folder. The system closes the input of the
/// shell if this process is killed, when no destructor runs.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    path: PathBuf,
    shell: Child,
}

/// Reports that the folder was made, closes all outputs, and waits. Signals that end a session do not end the shell.
const SHELL: &str = r#"trap '' HUP INT TERM
mkdir -m 700 -- "$0" || exit 1
exec >&- 2>&-
read -r line
rm -rf -- "$0""#;

/// The number of names that are tried. The processes of two containers may have one id and share a folder.
const MAX_NAMES: u32 = 1 << 10;

impl TemporaryFolder {
    /// Makes a folder in memory, if the system has a place for that and the user names no other place by `TMPDIR`.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn in_memory() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        match std::env::var_os("TMPDIR").is_none() && memory.is_dir() {
            true => Self::in_folder(memory),
            false => Self::on_disk(),
        }
    }

    /// Makes a folder in the place for temporary files.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn on_disk() -> io::Result<Self> {
        Self::in_folder(&std::env::temp_dir())
    }

    fn in_folder(place: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        for _ in 0..MAX_NAMES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = place.join(format!("qcowfuzz-{process}-{number}"));
            if path.symlink_metadata().is_err() {
                return Self::made(path);
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "all names are in use"))
    }

    fn made(path: PathBuf) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SHELL]).arg(&path).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C at the terminal and the end of a worker's group do not reach the shell.
        let mut shell = command.process_group(0).spawn()?;
        let mut errors = String::new();
        // The shell closes its output when the folder is there.
        if let Some(mut output) = shell.stderr.take() {
            output.read_to_string(&mut errors)?;
        }
        match path.is_dir() {
            true => Ok(Self { path, shell }),
            false => {
                shell.wait()?;
                Err(io::Error::other(errors.trim_end().to_string()))
            }
        }
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // It fails only if the system cannot wait for the shell.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_folder_is_deleted_with_its_content() {
        let [one, other] = [(); 2].map(|()| TemporaryFolder::in_memory().unwrap());
        assert_ne!(one.path(), other.path());
        fs::create_dir(one.path().join("below")).unwrap();
        fs::write(one.path().join("below/file"), "x").unwrap();
        let path = one.path().to_path_buf();
        drop(one);
        assert!(!path.exists() && other.path().is_dir());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let error = TemporaryFolder::in_folder(Path::new("/no/such/place")).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    /// Set in the process that the test kills.
    const WAITS: &str = "QCOWFUZZ_TEST_WAITS";

    #[test]
    fn the_folder_of_a_killed_process_is_deleted() {
        if std::env::var_os(WAITS).is_some() {
            let folder = TemporaryFolder::in_memory().unwrap();
            println!("\n{}", folder.path().display());
            std::thread::sleep(Duration::from_secs(1000));
        }
        let name = "processes::folder::tests::the_folder_of_a_killed_process_is_deleted";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(WAITS, "1").stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let path = lines.find_map(|line| {
            let path = PathBuf::from(line.unwrap());
            path.is_dir().then_some(path)
        });
        let path = path.unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let is_gone = || {
            std::thread::sleep(Duration::from_millis(10));
            !path.exists()
        };
        assert!((0..6000).any(|_| is_gone()), "{}", path.display());
    }
}
