//! The kind of a fault in a sentence, for a reader who does not know the oracles, and who writes such images.

use crate::base::features::FeatureSet;
use crate::findings::runner::Runner;
use crate::harness::cases::target::Inputs;
use crate::harness::targets::TargetKind;

/// Returns the sentence about the oracle of a fingerprint.
pub(super) fn kind(fingerprint: &str) -> &'static str {
    let oracle = fingerprint.split_once(':').map_or(fingerprint, |(oracle, _)| oracle);
    match &*oracle.replace('_', " ") {
        "panic" => "the code under test panics",
        "process" => "the process of the code under test ends, hangs or prints no answer",
        "memory" | "bounds" => "the code under test uses too much memory, or reads too much",
        "open" | "walk" => "the code under test refuses a valid image",
        "model" => "the map of the disk is not what the program wrote",
        "partition" | "flags" | "maximal" | "window" | "lookup" => {
            "answers about the map of the disk contradict each other"
        }
        "data" | "known bytes" => "the bytes of the disk are not what the program wrote",
        "io" => "an answer is wrong while a read of the file fails",
        "snapshots" | "against snapshot" => "a snapshot is not what the program wrote",
        "info" => "the properties of the image are not what the program wrote",
        "written" | "against written" => "requests to write leave wrong bytes, or a wrong answer",
        "bitmaps" => "requests to write leave bitmaps that miss a change",
        "power cut" | "killed" => {
            "a cut at this moment loses data that were flushed, or damages the image"
        }
        "file error" => {
            "after an operation on the file has failed, bytes are lost or the image is damaged"
        }
        "refusal" => "the code under test answers about damage that QEMU refuses",
        "hostile" => "damage in one place changes answers about others",
        "hostile writes" => "requests to a damaged image spoil bytes that are not damaged",
        "refcounts" | "layout" | "declarations" | "raw data file" => {
            "the file itself is wrong: what built it, or what wrote to it, is to blame"
        }
        "qemu" | "against" => "another implementation answers differently",
        "determinism" => "two runs of the same input differ",
        _ => "an oracle found a violation",
    }
}

/// Returns who writes images such as the last one of a run, as far as its features show that. The origin of a file
/// is not known.
pub(super) fn writers(target: TargetKind, runner: &Runner) -> Option<String> {
    if target.definition().inputs == Inputs::Recipes {
        return Some("QEMU has written this one".to_string());
    }
    let vm = runner.pipeline()?.vm();
    let not_of_qemu = vm.features().common(FeatureSet::NOT_OF_QEMU);
    Some(match (vm.attacks().is_empty(), not_of_qemu == FeatureSet::EMPTY) {
        (false, _) => "nothing writes them; the program damages the image".to_string(),
        (true, true) => "QEMU writes all of their features".to_string(),
        (true, false) => format!("QEMU does not write {not_of_qemu}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_documented_oracle_has_a_sentence() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/oracles.md");
        let page = std::fs::read_to_string(page).unwrap();
        let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        let oracles = headings.filter(|it| it.starts_with(|c: char| c.is_ascii_lowercase()));
        let oracles: Vec<_> = oracles.collect();
        assert!(oracles.len() > 20, "{oracles:?}");
        for oracle in oracles {
            assert_ne!(kind(&format!("{oracle}: a, b → c")), kind("?"), "{oracle}");
        }
    }
}
