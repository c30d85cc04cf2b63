//! The reason why a command failed, as a class. Two programs word their errors differently, so the campaign compares
//! the classes of their messages.
//!
//! [`class_of`] searches tables of phrases for the ones that a program prints. It does not check whether the reason is
//! true, and does not compare offsets or values. If the name of a file contains one of the phrases, the class may be
//! wrong. A message without a class is a finding of its own. The programs must print the texts of system errors in
//! English (`LC_ALL=C`).

mod messages;
#[cfg(test)]
mod tests;

use messages::ReasonClass::{Bitmaps, Entry, Invalid, NotThisFormat, Payload, Read};
use messages::{OUR_MESSAGES, QEMU_MESSAGES, family};

pub use messages::{MessageFamily, ReasonClass};

/// Findings of a completed check, which both programs print in this form. An error that ended the check counts for
/// more, so these come last.
const FINDINGS: &[MessageFamily] = &[
    family("ERROR", ReasonClass::CheckFindings, "a finding of check"),
    family("Leaked cluster", ReasonClass::CheckFindings, "a finding of check"),
];

/// Returns the class of the reason that a program printed to standard error. Returns `None` if no phrase is known.
pub fn class_of(stderr: &str) -> Option<ReasonClass> {
    family_of(stderr).map(|family| family.class)
}

/// Returns the first family whose phrase the text contains. Families with more specific phrases come first.
pub fn family_of(stderr: &str) -> Option<&'static MessageFamily> {
    // clap begins its messages with "error: ".
    let is_ours = |line: &str| line.starts_with("qcowfuzz: ") || line.starts_with("error: ");
    let families = if stderr.lines().any(is_ours) { OUR_MESSAGES } else { QEMU_MESSAGES };
    families.iter().chain(FINDINGS).find(|family| stderr.contains(family.phrase))
}

/// A fault for which QEMU's message has another class than ours.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPair {
    /// The command in which the difference occurs; `None` for all commands.
    pub command: Option<&'static str>,
    /// The class of our message, and that of QEMU's; `None` for all pairs of classes.
    pub classes: Option<(ReasonClass, ReasonClass)>,
    /// A phrase that our message contains.
    pub our_phrase: &'static str,
    /// A phrase that QEMU's message contains.
    pub their_phrase: &'static str,
    /// The reason for the difference. No two pairs have the same.
    pub reason: &'static str,
}

const fn pair(
    classes: (ReasonClass, ReasonClass),
    our_phrase: &'static str,
    their_phrase: &'static str,
    reason: &'static str,
) -> NamedPair {
    NamedPair { command: None, classes: Some(classes), our_phrase, their_phrase, reason }
}

/// The named pairs (QEMU 10.0.2). If several fit, the first one counts.
pub const PAIRS: &[NamedPair] = &[
    NamedPair {
        command: Some("check"),
        classes: None,
        our_phrase: "",
        their_phrase: "Could not open backing file",
        reason: "qemu-img check opens the backing file, which we do not",
    },
    NamedPair {
        command: Some("map"),
        classes: None,
        our_phrase: "in the human format, expected",
        their_phrase: "Could not read file metadata",
        reason: "QEMU reads the next entry before it prints data, and only then misses the host offset",
    },
    NamedPair {
        command: Some("convert"),
        classes: Some((Payload, Read)),
        our_phrase: "",
        their_phrase: "error while reading at byte",
        reason: "QEMU reports a failed read; we name the compressed payload",
    },
    NamedPair {
        command: Some("check"),
        classes: Some((Bitmaps, Invalid)),
        our_phrase: ": a table entry ",
        their_phrase: "Check failed: Invalid argument",
        reason: "QEMU prints only an error number about an entry of a bitmap table",
    },
    pair(
        (Entry, Read),
        "grain at guest offset ",
        "",
        "QEMU reports a failed read; we name the entry of a VMDK table",
    ),
    pair(
        (Entry, Read),
        "block allocation table entry ",
        "error while reading at byte",
        "QEMU reports a failed read; we name the entry of a VHDX table",
    ),
    pair(
        (Invalid, Read),
        "header: parentCID is ",
        "error while reading at byte",
        "QEMU compares the parentCID of a VMDK image only when it reads data",
    ),
    pair(
        (Invalid, Read),
        "smaller than 2^63 bytes",
        "error while reading block status",
        "QEMU opens a VMDK disk of 2^63 bytes and more, and fails to read it",
    ),
    pair(
        (Invalid, Entry),
        "smaller than 2^63 bytes",
        "could not get cluster_offset",
        "QEMU opens a VMDK disk of 2^63 bytes and more, and fails at an entry",
    ),
    pair(
        (Invalid, Read),
        "expected a table that QEMU can read",
        "Could not open '",
        "QEMU reports a failed read of a VHDX table; we name its end",
    ),
    pair(
        (NotThisFormat, Invalid),
        "the file does not begin with 'vhdxfile'",
        ": Invalid argument",
        "QEMU prints only an error number if the signature of a VHDX file is wrong",
    ),
    pair(
        (Entry, Invalid),
        "the block overlaps a region or the log",
        "overlaps with region",
        "QEMU has one message for VHDX blocks and regions that overlap",
    ),
];

/// The result of comparing two reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Both messages have this class.
    Same(ReasonClass),
    /// The classes differ, and the difference has a name.
    Named(&'static NamedPair),
    /// The classes differ, or a message has none: a finding.
    Different {
        /// The class of our message.
        ours: Option<ReasonClass>,
        /// The class of QEMU's message.
        theirs: Option<ReasonClass>,
    },
}

/// Compares the reasons that we and QEMU printed to standard error. Both programs must have failed at `command`:
/// "map", "check", "info" or "convert".
pub fn compare(command: &str, ours: &str, theirs: &str) -> Comparison {
    let (our_class, their_class) = (class_of(ours), class_of(theirs));
    let (Some(one), Some(other)) = (our_class, their_class) else {
        return Comparison::Different { ours: our_class, theirs: their_class };
    };
    if one == other {
        return Comparison::Same(one);
    }
    let is_named = |pair: &&NamedPair| {
        pair.command.is_none_or(|name| name == command)
            && pair.classes.is_none_or(|classes| classes == (one, other))
            && ours.contains(pair.our_phrase)
            && theirs.contains(pair.their_phrase)
    };
    match PAIRS.iter().find(is_named) {
        Some(pair) => Comparison::Named(pair),
        None => Comparison::Different { ours: our_class, theirs: their_class },
    }
}
