//! The judges of the minimizer: each reports whether a candidate shows the bug that the input shows.

mod judge;
mod predicate;
mod same_end;
mod same_fingerprint;

use crate::harness::implementation::Implementation;

use super::isolation::{IsolatedRun, Isolation};
use super::runner::showing;

pub use judge::{CandidateJudge, JudgeError};
pub use predicate::{Passed, Predicate};
pub use same_end::SameEnd;
pub use same_fingerprint::SameFingerprint;

/// Returns the judge for `input`, with `implementation` under test. It compares process ends if the input ends its
/// process, and fingerprints otherwise. If all that the input shows is known, the judge sets no finding aside.
///
/// # Errors
/// The input shows no bug, or could not be run.
pub fn judge_of<I: Implementation>(
    implementation: &I,
    input: &[u8],
    isolation: &Isolation,
) -> Result<Box<dyn CandidateJudge>, JudgeError> {
    Ok(match isolation.isolated_run(input)? {
        IsolatedRun::Ended(end) => Box::new(SameEnd::new(end, isolation.clone())),
        IsolatedRun::Finished { .. } => {
            let implementation = &showing(implementation, isolation.target, input);
            Box::new(SameFingerprint::new(implementation, input, isolation.target)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::isolation::tests::shell;
    use crate::harness::implementation::OurWalker;
    use crate::harness::targets::TargetKind;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    const IMAGE: &str = "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed=0 \
                         blocks=append table=append tolerance=0\n";

    fn program(operations: &str) -> Vec<u8> {
        assemble(&format!("{IMAGE}{operations}")).unwrap().encode()
    }

    fn predicate(command: &str, passed: Passed) -> Result<Predicate, String> {
        let input = program("snapshot\nwrite at=start+0 clusters=1");
        Predicate::new(command, passed, &input).map_err(|error| error.to_string())
    }

    #[test]
    fn an_input_that_ends_its_process_is_judged_by_the_end() {
        let script = r#"ulimit -c 0
            grep -q bad "$input" && kill -ABRT $$; grep -q odd "$input" && exit 3; echo {}"#;
        let isolation = shell(script);
        let mut judge = judge_of(&OurWalker, b"a bad input", &isolation).unwrap();
        assert_eq!(judge.found(), "process: end, an answer → signal: 6 (SIGABRT)");
        assert!(!judge.runs_here() && judge.rerolls() == 0);
        let shows = [&b"bad"[..], b"odd", b"good"].map(|candidate| judge.shows(candidate).unwrap());
        assert_eq!(shows, [true, false, false]);
    }

    #[test]
    fn an_input_without_a_finding_has_no_judge() {
        let isolation = shell("echo {}");
        let input = program("write at=start+0 clusters=1");
        assert!(matches!(judge_of(&OurWalker, &input, &isolation), Err(JudgeError::NothingFound)));
        assert!(SameFingerprint::new(&OurWalker, &input, TargetKind::Refcounts).is_err());
    }

    #[test]
    fn a_judge_that_cannot_judge_returns_an_error() {
        let dir = tempfile::tempdir().unwrap();
        // The first run ends its process. The second run fails with exit code 2.
        let script = format!(
            "test -e {0} && {{ echo no >&2; exit 2; }}; touch {0}; exit 3",
            dir.path().join("flag").display()
        );
        let mut judge = judge_of(&OurWalker, b"", &shell(&script)).unwrap();
        assert_eq!(judge.shows(b"").unwrap_err().to_string(), "no");
    }

    #[test]
    fn a_command_is_called_with_the_candidate_or_with_its_image() {
        // Reads the number of snapshots in the header of the image.
        let command = "f() { test $(od -An -tu1 -j63 -N1 \"$1\") -gt 0; }; f";
        let mut judge = predicate(command, Passed::Image(Limits::WALKED)).unwrap();
        assert!(judge.found().ends_with(": exit status: 0"), "{}", judge.found());
        let shows =
            ["snapshot", "write at=start+0 clusters=1", "write at=start+1 clusters=1\nsnapshot"]
                .map(|operations| judge.shows(&program(operations)).unwrap());
        assert_eq!(shows, [true, false, true]);
        // Exits with the length of the candidate.
        let mut judge = predicate("f() { exit $(wc -c <\"$1\"); }; f", Passed::Candidate).unwrap();
        assert!(judge.found().ends_with(": exit status: 36"), "{}", judge.found());
        assert!(judge.shows(&[0; 36]).unwrap() && !judge.shows(&[0; 37]).unwrap());
    }

    #[test]
    fn a_command_that_decides_nothing_is_refused() {
        let error = predicate("true", Passed::Candidate).unwrap_err();
        let expected = "true: ended with exit status: 0 for the input and for an empty program, \
                        expected different results";
        assert_eq!(error, expected);
    }
}
