//! Operations of an engine on the files that it writes, of which a program lets some fail.

use std::io::ErrorKind;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::programs::operand::{DeviceError, Failures, FileOperation};
use crate::programs::request::FileFault;

/// The fault of a program, and the operations that have met it. Only operations of the engine for a request meet it.
/// The harness suspends it while it reads the files itself, and while it has the engine read them for an oracle.
#[derive(Debug, Default)]
pub(crate) struct FileFaults {
    /// The fault, until it has let its operations fail.
    armed: Option<FileFault>,
    /// The harness carries out a request.
    is_active: bool,
    /// The number of operations that have failed.
    met: u32,
    /// The last one has stored the first half of its bytes.
    is_short: bool,
    /// The number of operations of each kind so far, failed or not.
    operations: [u32; FileOperation::ALL.len()],
}

impl FileFaults {
    /// Takes the fault that the next operations meet. It replaces an earlier one.
    pub(crate) fn arm(&mut self, fault: FileFault) {
        self.armed = Some(fault);
    }

    /// Forgets the fault: the image is closed.
    pub(crate) fn disarm(&mut self) {
        self.armed = None;
    }

    /// Lets operations meet the fault from now on, or not.
    pub(crate) fn set_active(&mut self, is_active: bool) {
        self.is_active = is_active;
    }

    /// Takes the fault that operations meet now, for an engine whose operations do not pass through these files.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn take_armed(&mut self) -> Option<FileFault> {
        if self.is_active { self.armed.take() } else { None }
    }

    /// Notes that an operation has failed; or that one of such an engine may have failed.
    pub(crate) fn note_met(&mut self) {
        self.met = self.met.saturating_add(1);
    }

    /// Returns the number of operations that have failed.
    pub(crate) fn met(&self) -> u32 {
        self.met
    }

    /// Returns the number of operations of each kind that requests have led to, failed or not.
    pub(crate) fn operations(&self) -> [u32; FileOperation::ALL.len()] {
        self.operations
    }

    /// Reports whether the last operation that failed has stored the first half of its bytes.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Counts an operation that needs room behind the end of a device, and returns its error.
    pub(crate) fn meet_end(&mut self, offset: HostOffset) -> StorageError {
        self.note_met();
        StorageError { offset, kind: ErrorKind::StorageFull }
    }

    /// Counts an operation. Returns the error with which it fails, if it does.
    pub(crate) fn meet(&mut self, of: FileOperation, offset: HostOffset) -> Option<StorageError> {
        if !self.is_active {
            return None;
        }
        let count = &mut self.operations[of as usize];
        *count = count.saturating_add(1);
        let fault = self.armed.as_mut().filter(|fault| fault.of == of)?;
        if let Some(before) = fault.before.checked_sub(1) {
            fault.before = before;
            return None;
        }
        self.met = self.met.saturating_add(1);
        self.is_short = of == FileOperation::Write && fault.error == DeviceError::Short;
        let kind = match fault.error {
            // Names without a number of the system: an engine passes them on as text.
            DeviceError::Io | DeviceError::Short => ErrorKind::Other,
            DeviceError::Full => ErrorKind::StorageFull,
        };
        if fault.failures == Failures::One {
            self.armed = None;
        }
        Some(StorageError { offset, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(of: FileOperation, before: u8, failures: Failures) -> FileFault {
        FileFault { of, before, error: DeviceError::Full, failures }
    }

    /// Returns which of the next writes fail.
    fn failed(faults: &mut FileFaults) -> [bool; 5] {
        [(); 5].map(|()| faults.meet(FileOperation::Write, HostOffset::ZERO).is_some())
    }

    #[test]
    fn the_operation_with_the_number_of_a_fault_fails() {
        let mut faults = FileFaults::default();
        faults.set_active(true);
        assert_eq!(failed(&mut faults), [false; 5]);
        faults.arm(fault(FileOperation::Write, 2, Failures::One));
        assert_eq!(failed(&mut faults), [false, false, true, false, false]);
        faults.arm(fault(FileOperation::Write, 2, Failures::All));
        assert_eq!(failed(&mut faults), [false, false, true, true, true]);
        faults.set_active(false);
        assert_eq!((failed(&mut faults), faults.met()), ([false; 5], 4));
        faults.set_active(true);
        faults.disarm();
        assert_eq!(failed(&mut faults), [false; 5]);
        faults.arm(fault(FileOperation::Flush, 0, Failures::All));
        assert_eq!(failed(&mut faults), [false; 5]);
    }
}
