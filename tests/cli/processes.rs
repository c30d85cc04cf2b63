//! Processes that a test starts, finds, waits for and ends.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

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
