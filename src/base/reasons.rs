//! The reasons why a command on an image fails, as classes, and the messages that have them. The drawer of a format has
//! the messages about its images.

use qcowfuzz_walker::closed;

closed! {
    /// The reason why `map`, `check`, `info` or `convert` failed.
    ReasonClass {
        /// The name of a file leads nowhere.
        MissingFile = "missing file",
        /// A file exists, but its type or its permissions do not allow the program to open it, or its name is refused.
        UnusableFile = "unusable file",
        /// The file is not an image of the format: the magic is wrong, or the file is too short.
        NotThisFormat = "not this format",
        /// The image is of a version, or uses a feature, that the program does not support. Encryption is one.
        Unsupported = "unsupported",
        /// A structure that is read on opening is malformed: the header, its extensions, the tables that it locates.
        Invalid = "invalid structure",
        /// The bitmaps are malformed. QEMU loads them whenever it opens an image.
        Bitmaps = "invalid bitmap",
        /// A table entry that the walk met is malformed.
        Entry = "invalid entry",
        /// A compressed cluster or grain is malformed.
        Payload = "invalid payload",
        /// A read failed.
        Read = "failed read",
        /// The image has a log or a journal that has to be replayed first.
        LogReplay = "log to replay",
        /// The chain of backing files contains itself, or has too many images.
        EndlessChain = "endless chain",
        /// The image needs more memory than the program allows.
        TooLarge = "too large",
        /// The command line is wrong.
        Usage = "usage",
        /// The output cannot be written.
        Output = "output",
        /// The format has no checks.
        NoChecks = "no checks",
        /// The human form of `map` cannot show data without a host offset.
        NoHostOffset = "no host offset",
        /// The check was completed and found something.
        CheckFindings = "check findings",
    }
}

/// Messages with the same reason.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageFamily {
    /// A phrase that the messages contain.
    pub phrase: &'static str,
    /// The class of the reason.
    pub class: ReasonClass,
    /// The function of QEMU, or our type, from which the messages come.
    pub source: &'static str,
}

/// Returns a family.
pub(crate) const fn family(
    phrase: &'static str,
    class: ReasonClass,
    source: &'static str,
) -> MessageFamily {
    MessageFamily { phrase, class, source }
}

/// A fault for which QEMU's message has another class than ours.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPair {
    /// The command in which the difference occurs; `None` for all commands.
    pub command: Option<&'static str>,
    /// The class of our message and the class of QEMU's message; `None` for all pairs of classes.
    pub classes: Option<(ReasonClass, ReasonClass)>,
    /// A phrase that our message contains.
    pub our_phrase: &'static str,
    /// A phrase that QEMU's message contains.
    pub their_phrase: &'static str,
    /// The reason for the difference. Each pair has a different one.
    pub reason: &'static str,
}

/// Returns a pair for all commands.
pub(crate) const fn pair(
    classes: (ReasonClass, ReasonClass),
    our_phrase: &'static str,
    their_phrase: &'static str,
    reason: &'static str,
) -> NamedPair {
    NamedPair { command: None, classes: Some(classes), our_phrase, their_phrase, reason }
}

/// The messages about the images of a format, of this program and of QEMU.
#[derive(Clone, Copy, Debug)]
pub struct FormatMessages {
    /// Our messages. More specific phrases come first.
    pub ours: &'static [MessageFamily],
    /// QEMU's messages. More specific phrases come first.
    pub qemu: &'static [MessageFamily],
    /// The faults for which QEMU's message has another class than ours.
    pub pairs: &'static [NamedPair],
}

impl FormatMessages {
    /// No messages.
    pub const NONE: Self = Self { ours: &[], qemu: &[], pairs: &[] };
}
