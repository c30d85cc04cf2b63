//! The committed corpus, runs of its inputs, and findings that are known.

use qcowfuzz::harness::KnownFinding;

use crate::prelude::*;

/// Returns a path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the committed seeds of a target by name. They have a text; the fuzzer's finds in the same folder have none.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let texts = fs::read_dir(repository("corpus/text").join(target)).unwrap();
    let names =
        texts.map(|it| it.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string());
    let folder = repository("corpus").join(target);
    let mut seeds: Vec<_> =
        names.map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect();
    seeds.sort();
    assert!(seeds.len() > 3, "{target}");
    seeds
}

/// Returns the committed seeds of a target.
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    seeds(target).into_iter().map(|(_, input)| input).collect()
}

/// Returns known findings with these fingerprints.
pub fn known<S: AsRef<str>>(fingerprints: &[S]) -> KnownFindings {
    let finding = |fingerprint: &S| KnownFinding {
        fingerprint: fingerprint.as_ref().to_string(),
        reason: "a test".to_string(),
        ..KnownFinding::default()
    };
    KnownFindings::new(fingerprints.iter().map(finding))
}

/// Runs an input, and returns the fingerprint of the violation.
pub fn found_in(target: &mut Harness, input: &[u8]) -> Option<String> {
    let run = target.run(input, Checks::AtCheckpoints);
    run.err().map(|failure| failure.violation.fingerprint())
}
