//! The outputs of a process: pipes that are read without waiting, and the bytes that came from them.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use smallvec::SmallVec;

/// The largest number of bytes that are read from a pipe at once: as many as a pipe holds.
const PIPE_BYTES: u64 = 64 << 10;

/// The standard output and the standard error of a process.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(super) stdout: Output<ChildStdout>,
    pub(super) stderr: Output<ChildStderr>,
}

/// An output.
#[derive(Debug)]
pub(super) struct Output<P> {
    /// `None` when the process has closed it.
    pipe: Option<P>,
    /// The bytes that were read, and not taken yet.
    pub(super) bytes: Vec<u8>,
}

impl<P: Read + AsFd> Output<P> {
    fn new(pipe: Option<P>) -> io::Result<Self> {
        pipe.as_ref().map_or(Ok(()), do_not_wait)?;
        Ok(Self { pipe, bytes: Vec::new() })
    }

    /// Reports whether the process has closed the output.
    pub(super) fn is_closed(&self) -> bool {
        self.pipe.is_none()
    }

    /// Reads the bytes that the pipe holds.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        match pipe.take(PIPE_BYTES).read_to_end(&mut self.bytes) {
            Ok(read) if read as u64 == PIPE_BYTES => {}
            Ok(_) => self.pipe = None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Outputs {
    pub(super) fn new(
        stdout: Option<ChildStdout>,
        stderr: Option<ChildStderr>,
    ) -> io::Result<Self> {
        Ok(Self { stdout: Output::new(stdout)?, stderr: Output::new(stderr)? })
    }

    /// Waits until a pipe is ready, but not longer than `timeout`, and reads both outputs. `input` is a pipe that has
    /// to take bytes.
    pub(super) fn read(&mut self, input: Option<&ChildStdin>, timeout: Duration) -> io::Result<()> {
        self.wait(input, timeout)?;
        self.stderr.read()?;
        self.stdout.read()
    }

    fn wait(&self, input: Option<&ChildStdin>, timeout: Duration) -> io::Result<()> {
        let mut pipes = SmallVec::<[_; 3]>::new();
        // The end of a pipe would be ready forever.
        pipes.extend(self.stdout.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        pipes.extend(self.stderr.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        pipes.extend(input.map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        let timeout = Timespec::try_from(timeout).ok();
        retry_on_intr(|| poll(&mut pipes, timeout.as_ref()))?;
        Ok(())
    }

    /// Removes all but the last bytes of standard error.
    pub(super) fn shorten_stderr(&mut self, kept_bytes: usize) {
        let surplus = self.stderr.bytes.len().saturating_sub(kept_bytes);
        self.stderr.bytes.drain(..surplus);
    }

    /// Returns the text of standard error that was read.
    pub(super) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr.bytes).into_owned()
    }

    /// Passes the lines of standard output on until the process closes it. Returns the last text of standard error, of
    /// at most `kept_bytes` bytes.
    ///
    /// # Errors
    /// A pipe cannot be read.
    pub(crate) fn each_line(
        mut self,
        kept_bytes: usize,
        pass: &mut dyn FnMut(&[u8]),
    ) -> io::Result<String> {
        while !self.stdout.is_closed() {
            self.read(None, Duration::MAX)?;
            self.shorten_stderr(kept_bytes);
            while let Some(end) = self.stdout.bytes.iter().position(|byte| *byte == b'\n') {
                pass(&self.stdout.bytes[..end]);
                self.stdout.bytes.drain(..=end);
            }
        }
        self.stderr.read()?;
        self.shorten_stderr(kept_bytes);
        Ok(self.stderr_text())
    }
}

/// Has reads and writes of a pipe fail in place of waiting.
pub(super) fn do_not_wait(pipe: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(pipe)?;
    Ok(fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?)
}
