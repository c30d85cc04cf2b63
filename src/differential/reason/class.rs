//! The classes of reasons.

/// The reason why `map`, `check`, `info` or `convert` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReasonClass {
    /// The name of a file leads nowhere.
    MissingFile,
    /// A file exists, but its type or its permissions do not allow the program to open it, or its name is refused.
    UnusableFile,
    /// The file is not an image of the format: the magic is wrong, or the file is too short.
    NotThisFormat,
    /// The image is of a version, or uses a feature, that the program does not support. Encryption is one.
    Unsupported,
    /// A structure that is read on opening is malformed: the header, its extensions, the tables that it locates.
    Invalid,
    /// The bitmaps are malformed. QEMU loads them whenever it opens an image.
    Bitmaps,
    /// A table entry that the walk met is malformed.
    Entry,
    /// A compressed cluster or grain is malformed.
    Payload,
    /// A read failed.
    Read,
    /// The image has a log or a journal that has to be replayed first.
    LogReplay,
    /// The chain of backing files contains itself, or has too many images.
    EndlessChain,
    /// The image needs more memory than the program allows.
    TooLarge,
    /// The command line is wrong.
    Usage,
    /// The output cannot be written.
    Output,
    /// The format has no checks.
    NoChecks,
    /// The human form of `map` cannot show data without a host offset.
    NoHostOffset,
    /// The check was completed and found something.
    CheckFindings,
}

impl ReasonClass {
    /// All classes.
    pub const ALL: [Self; 17] = [
        Self::MissingFile,
        Self::UnusableFile,
        Self::NotThisFormat,
        Self::Unsupported,
        Self::Invalid,
        Self::Bitmaps,
        Self::Entry,
        Self::Payload,
        Self::Read,
        Self::LogReplay,
        Self::EndlessChain,
        Self::TooLarge,
        Self::Usage,
        Self::Output,
        Self::NoChecks,
        Self::NoHostOffset,
        Self::CheckFindings,
    ];

    /// Returns the name of the class in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MissingFile => "missing file",
            Self::UnusableFile => "unusable file",
            Self::NotThisFormat => "not this format",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid structure",
            Self::Bitmaps => "invalid bitmap",
            Self::Entry => "invalid entry",
            Self::Payload => "invalid payload",
            Self::Read => "failed read",
            Self::LogReplay => "log to replay",
            Self::EndlessChain => "endless chain",
            Self::TooLarge => "too large",
            Self::Usage => "usage",
            Self::Output => "output",
            Self::NoChecks => "no checks",
            Self::NoHostOffset => "no host offset",
            Self::CheckFindings => "check findings",
        }
    }
}
