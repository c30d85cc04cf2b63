//! The classes of QEMU's refusals, for feedback, and the refusals that are named differences.

use crate::disk::observer::SecondAnswer;
use crate::harness::against::second_opinion::JudgedImage;

/// The text with which qemu-io begins a refusal.
const REFUSED: &str = "can't open";

/// Words of an error, and the class of an error that has them. The first row counts.
const REFUSAL_CLASSES: &[(&str, SecondAnswer)] = &[
    ("itmap", SecondAnswer::RefusedBitmaps),
    ("efcount", SecondAnswer::RefusedRefcounts),
    ("napshot", SecondAnswer::RefusedSnapshots),
    ("L1 ", SecondAnswer::RefusedTable),
    ("BAT", SecondAnswer::RefusedTable),
    ("L2", SecondAnswer::RefusedTable),
    ("grain", SecondAnswer::RefusedTable),
    ("eader extension", SecondAnswer::RefusedExtension),
    ("data file", SecondAnswer::RefusedOtherFile),
    ("data-file", SecondAnswer::RefusedOtherFile),
    ("acking", SecondAnswer::RefusedOtherFile),
    ("xtent", SecondAnswer::RefusedDescriptor),
    ("escriptor", SecondAnswer::RefusedDescriptor),
    ("hecksum", SecondAnswer::RefusedChecksum),
    ("eature", SecondAnswer::RefusedFeature),
    ("nsupported", SecondAnswer::RefusedFeature),
    ("etadata", SecondAnswer::RefusedMetadata),
    ("egion", SecondAnswer::RefusedMetadata),
    ("size", SecondAnswer::RefusedSize),
    ("large", SecondAnswer::RefusedSize),
    ("format", SecondAnswer::RefusedFormat),
    ("ersion", SecondAnswer::RefusedFormat),
    ("magic", SecondAnswer::RefusedFormat),
    ("Input/output error", SecondAnswer::RefusedByRead),
];

/// Words of an error about a name that leads nowhere.
const LOST: [&str; 3] = ["No such file", "requires a file name", "Unknown protocol"];

/// Returns the refusal in the output of `open`; `None` if QEMU opens the image.
pub(super) fn refusal(printed: &str) -> Option<&str> {
    let (_, refusal) = printed.split_once(REFUSED)?;
    // The name of the device has no spaces, and differs from run to run.
    let refusal = refusal.split_once("}: ").map_or(refusal, |(_, reason)| reason);
    Some(refusal.trim_start_matches(": ").trim())
}

/// Returns the class of a refusal.
pub(super) fn class(refusal: &str) -> SecondAnswer {
    let found = REFUSAL_CLASSES.iter().find(|(words, _)| refusal.contains(words));
    found.map_or(SecondAnswer::RefusedOtherwise, |(_, class)| *class)
}

/// Reports whether a refusal of an image that the engine opens is a named difference.
///
/// - The mapping of a disk does not depend on the directory of bitmaps, which QEMU loads when it opens an image.
/// - An engine has the files of the chain. QEMU looks for a file under a name that an attack has changed.
pub(super) fn is_named(refusal: &str, image: &JudgedImage) -> bool {
    let is_about_bitmaps = refusal.contains("itmap") && !refusal.contains("bitmaps_ext");
    let follows_names = image.is_damaged && image.chain.has_other_files();
    is_about_bitmaps || follows_names && LOST.iter().any(|words| refusal.contains(words))
}

/// Returns a text with `_` in place of the paths of files that QEMU opens: they differ from run to run.
pub(super) fn without_paths(text: &str) -> String {
    let is_path = |word: &str| {
        word.trim_start_matches(['\'', '"', '(']).starts_with('/') || word.contains("\"/")
    };
    let words = text.split(' ').map(|word| if is_path(word) { "_" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_classes() {
        let printed =
            "qemu-io: can't open: Could not open '/proc/1/fd/3': Invalid L1 table offset\n";
        let refused = refusal(printed).unwrap();
        assert_eq!(class(refused), SecondAnswer::RefusedTable);
        assert_eq!(class("x"), SecondAnswer::RefusedOtherwise);
        assert_eq!(refusal(""), None);
        let named =
            "qemu-io: can't open device json:{\"file\":{\"filename\":\"/proc/1/fd/3\"}}: No\n";
        assert_eq!(refusal(named), Some("No"));
        assert_eq!(without_paths("a '/proc/1': Input/output"), "a _ Input/output");
        assert_eq!(without_paths(r#"json:{"file":"/x"}: no"#), "_ no");
    }
}
