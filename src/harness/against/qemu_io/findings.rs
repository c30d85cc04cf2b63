//! The differences between QEMU's answers and those of an engine, as violations.

use crate::disk::extent::Extent;
use crate::disk::observer::SecondAnswer;
use crate::harness::against::second_opinion::findings::Other;
use crate::harness::oracles::{Violation, disagreement};

use super::session::QemuEnd;

/// The first word of the fingerprints.
pub(super) const ORACLE: &str = "qemu";

/// QEMU, as findings name it.
pub(super) const QEMU: Other<'static> = Other { oracle: ORACLE, whose: "QEMU's", name: "QEMU" };

/// A function that records the class of an answer of QEMU.
pub(super) type RecordAnswer<'a> = dyn FnMut(SecondAnswer) + 'a;

/// Returns the violation of a byte that only one side allocates in the image at the top.
pub(super) fn wrong_allocation(at: u64, is_allocated: bool) -> Box<Violation> {
    let kinds = match is_allocated {
        true => ("allocated", "not allocated"),
        false => ("not allocated", "allocated"),
    };
    let (theirs, ours) = kinds;
    let detail = format!(
        "guest offset {at:#x}: to QEMU it is {theirs} in the image at the top, to the implementation {ours}"
    );
    disagreement(ORACLE, "allocation", kinds, detail)
}

/// Returns the violation of an end of qemu-io in place of an answer.
#[expect(clippy::boxed_local, reason = "the error of a question has a box")]
pub(super) fn ended(end: Box<QemuEnd>) -> Box<Violation> {
    // Addresses and numbers of processes differ from run to run, so only the status is shown.
    let QemuEnd { end, .. } = *end;
    let detail = "qemu-io ends in place of an answer; 'none' means that it was silent for too long";
    disagreement(ORACLE, "end", ("an answer", end.process.name()), detail.to_string())
}

/// Returns the violation of data that differ, if blkverify has ended qemu-io for that.
pub(super) fn mismatch(end: &QemuEnd, extents: &[Extent]) -> Option<Box<Violation>> {
    let (_, report) = end.output.rsplit_once("blkverify: ")?;
    let number = |name: &str| {
        let (_, rest) = report.split_once(name)?;
        let digits = rest.split(|one: char| !one.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    match number("contents mismatch at offset ") {
        Some(at) => Some(QEMU.other_byte(at, extents)),
        None if report.contains("return value mismatch") => {
            Some(QEMU.unread(number("read offset=")?, extents, "blkverify"))
        }
        None => None,
    }
}
