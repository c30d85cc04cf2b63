//! A fault of a program in QEMU: a second blkdebug below the first one counts the operations of QEMU on the image, and
//! lets some of them fail. QEMU reads its rules from a file when it opens the image: it opens the image again before
//! the request that is to meet them.
//!
//! blkdebug counts by states: each event of an operation leads from a state to the next one
//! (QEMU, `docs/devel/testing/blkdebug.rst`). The reads of QEMU have events of their own, by what they read.
//!
//! Does not let operations on a data file fail, nor new lengths, which QEMU asks for only when it shrinks a disk. A
//! write that fails stores nothing. The reads of QEMU when it opens the image succeed.

use std::fmt::Write as _;

use crate::programs::operand::{DeviceError, Failures, FileOperation};
use crate::programs::request::FileFault;

/// The name of the file with the rules, in the folder in which QEMU works.
pub(super) const RULES_NAME: &str = "faults";
/// The error numbers of Linux.
const EIO: u8 = 5;
const ENOSPC: u8 = 28;
/// The state in which blkdebug begins.
const FIRST_STATE: u16 = 1;

/// The fault that an open image meets.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectedFault(FileFault);

impl InjectedFault {
    pub(super) fn new(fault: FileFault) -> Self {
        Self(fault)
    }

    /// Reports whether the first blkdebug has the rules: it has the events of reads, the second one those of writes and
    /// flushes.
    pub(super) fn is_above(self) -> bool {
        self.0.of == FileOperation::Read
    }

    /// Returns the rules, as the text of a configuration file.
    pub(super) fn rules(self) -> String {
        let Self(FileFault { of, before, error, failures }) = self;
        let (events, types): (&[&str], &[&str]) = match of {
            FileOperation::Write => (&["pwritev", "pwritev_zero"], &["write", "write-zeroes"]),
            FileOperation::Flush => (&["flush_to_disk"], &["flush"]),
            FileOperation::Read => (
                &["l2_load", "refblock_load", "read_aio", "read_compressed", "cow_read"],
                &["read"; 5],
            ),
            FileOperation::Length => (&[], &[]),
        };
        let errno = match error {
            DeviceError::Io | DeviceError::Short => EIO,
            DeviceError::Full => ENOSPC,
        };
        let fails_in = FIRST_STATE + u16::from(before);
        let (behind_last, once) = match failures {
            Failures::One => (fails_in + 1, "on"),
            Failures::All => (fails_in, "off"),
        };
        let mut rules = String::new();
        for state in FIRST_STATE..behind_last {
            for event in events {
                let next = state + 1;
                // A string takes everything.
                let _ = write!(
                    rules,
                    "[set-state]\nevent = \"{event}\"\nstate = \"{state}\"\nnew_state = \"{next}\"\n"
                );
            }
        }
        for (event, kind) in events.iter().zip(types) {
            // As above.
            let _ = write!(
                rules,
                "[inject-error]\nevent = \"{event}\"\nstate = \"{fails_in}\"\niotype = \"{kind}\"\n\
                 errno = \"{errno}\"\nonce = \"{once}\"\n"
            );
        }
        rules
    }

    /// Reports whether operations may have failed, after `writes` and `flushes` have succeeded: the next one may have
    /// been the one that fails. QEMU records no reads.
    pub(super) fn may_have_failed(self, writes: u32, flushes: u32) -> bool {
        let before = u32::from(self.0.before);
        match self.0.of {
            FileOperation::Write => writes >= before,
            FileOperation::Flush => flushes >= before,
            FileOperation::Read => true,
            FileOperation::Length => false,
        }
    }

    /// Reports whether what follows from the fault is known once it may have been met: later, no operation fails, or
    /// QEMU shows the error. It shows that of a read; closing an image needs none.
    pub(super) fn fails_once(self) -> bool {
        self.0.failures == Failures::One || self.0.of == FileOperation::Read
    }

    /// Returns the fault that is left for the next opening of the image, if there is one.
    pub(super) fn left(self, writes: u32, flushes: u32) -> Option<Self> {
        let Self(mut fault) = self;
        if fault.failures == Failures::One && self.may_have_failed(writes, flushes) {
            return None;
        }
        let done = match fault.of {
            FileOperation::Write => writes,
            FileOperation::Flush => flushes,
            FileOperation::Read | FileOperation::Length => 0,
        };
        // More than 255 is more than any number before.
        fault.before = fault.before.saturating_sub(u8::try_from(done).unwrap_or(u8::MAX));
        Some(Self(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(of: FileOperation, before: u8, failures: Failures) -> InjectedFault {
        InjectedFault::new(FileFault { of, before, error: DeviceError::Full, failures })
    }

    #[test]
    fn each_operation_before_leads_to_the_next_state() {
        let expected = "[set-state]\nevent = \"flush_to_disk\"\nstate = \"1\"\nnew_state = \"2\"\n\
                        [inject-error]\nevent = \"flush_to_disk\"\nstate = \"2\"\niotype = \"flush\"\n\
                        errno = \"28\"\nonce = \"off\"\n";
        assert_eq!(fault(FileOperation::Flush, 1, Failures::All).rules(), expected);
        // Behind the only one that fails, there is another state.
        let once = fault(FileOperation::Flush, 0, Failures::One).rules();
        assert!(once.contains("new_state = \"2\"") && once.contains("once = \"on\""), "{once}");
    }

    #[test]
    fn a_fault_that_may_have_been_met_is_gone() {
        let one = fault(FileOperation::Write, 2, Failures::One);
        assert!(!one.may_have_failed(1, 9) && one.may_have_failed(2, 0));
        assert!(one.left(2, 0).is_none());
        assert_eq!(one.left(1, 0).map(|it| it.0.before), Some(1));
        let all = fault(FileOperation::Write, 2, Failures::All);
        assert_eq!(all.left(900, 0).map(|it| it.0.before), Some(0));
    }
}
