//! Families of messages: a phrase that the messages have in common, and their class.

use super::class::ReasonClass;

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
pub(super) const fn family(
    phrase: &'static str,
    class: ReasonClass,
    source: &'static str,
) -> MessageFamily {
    MessageFamily { phrase, class, source }
}
