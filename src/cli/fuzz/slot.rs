//! What a worker runs, in a file that outlives it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// Where a worker writes each input before it is run.
#[derive(Debug)]
pub struct Slot {
    file: File,
    /// Written at once: number, length, input.
    buffer: Vec<u8>,
    number: u64,
}

/// What was in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// How many there were before.
    pub number: u64,
    /// The input; `None` between two runs.
    pub input: Option<Vec<u8>>,
}

const HEAD_BYTES: usize = 16;
/// In place of a length: nothing is run.
const IDLE: u64 = u64::MAX;

impl Slot {
    /// The file at `path`, in which nothing is. While it is open, the job is this process's: where another one
    /// has it, this waits until that has ended.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        file.set_len(0)?;
        let mut slot = Self { file, buffer: Vec::new(), number: 0 };
        slot.idle()?;
        Ok(slot)
    }

    /// An input is about to be run.
    pub fn enter(&mut self, input: &[u8]) -> io::Result<()> {
        self.write(input.len() as u64, input)
    }

    /// No input is run until the next one is.
    pub fn idle(&mut self) -> io::Result<()> {
        self.write(IDLE, &[])
    }

    fn write(&mut self, length: u64, input: &[u8]) -> io::Result<()> {
        self.number += 1;
        self.buffer.clear();
        self.buffer.extend(self.number.to_le_bytes());
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(input);
        self.file.rewind()?;
        self.file.write_all(&self.buffer)
    }
}

impl Running {
    /// What the worker runs, or ran when it ended, whose slot is at `path`. Of a worker that is not there yet,
    /// nothing.
    pub fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        // Nothing to watch yet is nothing to tell.
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
