//! The file with the input that a worker runs, which outlives the worker.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file to which a worker writes each input before it runs it.
#[derive(Debug)]
pub struct Slot {
    file: File,
    /// The content of the file, written at once: number, length, input.
    buffer: Vec<u8>,
    number: u64,
}

/// The content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// A number that changes with each write.
    pub number: u64,
    /// The input that is run; `None` between two runs.
    pub input: Option<Vec<u8>>,
}

const HEAD_BYTES: usize = 16;
/// Stands in place of the length between two runs.
const IDLE: u64 = u64::MAX;

impl Slot {
    /// Opens the file at `path` and clears it. While it is open, the job belongs to this process: if another process
    /// has the job, this function waits until that process has ended.
    ///
    /// # Errors
    /// The file cannot be opened, locked or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        file.set_len(0)?;
        let mut slot = Self { file, buffer: Vec::new(), number: 0 };
        slot.idle()?;
        Ok(slot)
    }

    /// Writes the input that is about to be run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn enter(&mut self, input: &[u8]) -> io::Result<()> {
        self.write(input.len() as u64, input)
    }

    /// Notes that no input is run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn idle(&mut self) -> io::Result<()> {
        self.write(IDLE, &[])
    }

    fn write(&mut self, length: u64, input: &[u8]) -> io::Result<()> {
        self.number += 1;
        self.buffer.clear();
        self.buffer.extend(self.number.to_le_bytes());
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(input);
        // One call of the system for each run.
        self.file.write_all_at(&self.buffer, 0)
    }
}

impl Running {
    /// Returns what the worker runs, or ran when it ended, whose slot is at `path`. A worker that has no slot yet runs
    /// nothing.
    pub fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        // If the slot cannot be read yet, no input is running.
        let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Self::default();
        };
        let ([number, length], _) = head.as_chunks::<8>() else { return Self::default() };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let input = rest.get(..length).map(<[u8]>::to_vec);
        Self { number: u64::from_le_bytes(*number), input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_the_input_that_is_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        assert_eq!(Running::read(&path), Running::default());
        let mut slot = Slot::open(&path).unwrap();
        let first = Running::read(&path);
        assert_eq!(first.input, None);
        slot.enter(b"a long input").unwrap();
        slot.enter(b"short").unwrap();
        let running = Running::read(&path);
        assert_eq!(running, Running { number: first.number + 2, input: Some(b"short".to_vec()) });
        slot.enter(b"").unwrap();
        assert_eq!(Running::read(&path).input, Some(Vec::new()));
        slot.idle().unwrap();
        assert_eq!(Running::read(&path).input, None);
    }
}
