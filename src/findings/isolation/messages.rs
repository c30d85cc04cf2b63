//! The messages of a process on its standard output.

use std::fs::File;
use std::io::{self, Write};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stdout, stderr, stdout};
use serde::Serialize;

/// Writes messages to the standard output of this process, each as a line of JSON.
#[derive(Debug)]
pub struct Messages(File);

impl Messages {
    /// Takes standard output. From now on, text that the code under test prints there goes to standard error. It cannot
    /// get between the messages.
    ///
    /// # Errors
    /// The system has no file descriptor left, or the process has no standard output.
    pub fn take_stdout() -> io::Result<Self> {
        // Processes that the code under test starts must not hold the pipe open.
        let output = fcntl_dupfd_cloexec(stdout(), 0)?;
        dup2_stdout(stderr())?;
        Ok(Self(output.into()))
    }

    /// Writes a message.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process that the test starts.
    const PRINTS: &str = "QCOWFUZZ_TEST_PRINTS";

    #[test]
    fn what_the_code_under_test_prints_is_no_message() {
        if std::env::var_os(PRINTS).is_some() {
            let messages = Messages::take_stdout().unwrap();
            print!("noise without an end of the line");
            messages.send(&["a message"]).unwrap();
            println!("noise");
            std::process::exit(0);
        }
        let name =
            "findings::isolation::messages::tests::what_the_code_under_test_prints_is_no_message";
        let mut test = Command::new(std::env::current_exe().unwrap());
        let ran = test.args(["--exact", name, "--nocapture"]).env(PRINTS, "1").output().unwrap();
        let [out, errors] = [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(out.ends_with("\n[\"a message\"]\n") && !out.contains("noise"), "{out}");
        assert!(errors.contains("noise without"), "{errors}");
    }
}
